"""Wake-up messages: a worker is woken if a job is due before every deadline of a timekeeper.

The list holds one message at most. A deadline counts until it has come, and a little longer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.worker import Outcome
from tests.support.probe import LEASE, SECOND, Probe

Make = Callable[[int], None]
"""Makes a job due so many microseconds from now."""


@pytest.fixture(params=["enqueue", "reschedule", "retry", "snooze"])
def make(request: pytest.FixtureRequest, q: Probe) -> Make:
    """Each verb by which a job becomes due at another time."""
    verb: str = request.param
    if verb == "reschedule":
        q.add("a", when=f"+{3600 * SECOND}")
    elif verb != "enqueue":
        job = q.take("a", "busy")
        q.leave("busy")
    q.hear()

    def make(us: int) -> None:
        if verb == "enqueue":
            q.add("a", when=f"+{us}")
        elif verb == "reschedule":
            q.reschedule("a", f"+{us}")
        else:
            outcome: Outcome = "retry" if verb == "retry" else "snooze"
            assert q.settle(job, outcome, f"+{us}") == "ok"

    return make


def arm(q: Probe, worker: str, seconds: float) -> None:
    """As a claim of the worker would have done so long before the moment."""
    q.raw.zadd(q.keys["keep"], {worker: q.now + round(seconds * SECOND)})


def test_due_now_wakes_someone_whatever_the_deadlines(q: Probe, make: Make) -> None:
    arm(q, "k1", 0.5)
    arm(q, "k2", 0.6)
    make(0)
    assert q.hear() == "-"


def test_due_before_every_deadline_wakes_someone(q: Probe, make: Make) -> None:
    arm(q, "k1", 10)
    make(5 * SECOND)
    assert q.wakeups() == 1


def test_due_when_there_is_no_timekeeper_wakes_someone(q: Probe, make: Make) -> None:
    make(5 * SECOND)
    assert q.wakeups() == 1


def test_due_after_a_deadline_wakes_nobody(q: Probe, make: Make) -> None:
    arm(q, "k1", 4)
    arm(q, "k2", 60)
    make(5 * SECOND)
    assert q.wakeups() == 0


def test_a_deadline_whose_moment_has_passed_covers_nothing(q: Probe, make: Make) -> None:
    arm(q, "dead", -0.01)
    arm(q, "k2", 60)
    make(5 * SECOND)
    assert q.wakeups() == 1


def test_a_timekeeper_that_is_about_to_claim_covers_what_comes_now(q: Probe) -> None:
    """A lone worker would be woken once more for every other job of a stream."""
    told: list[object] = []
    for i in itertools.count():  # until the job came within those milliseconds for sure
        if len(told) == 3:
            break
        q.hear()
        deadline = q.now
        arm(q, "k1", 0)
        (receipt,) = q.add(f"j{i}", when=f"+{5 * SECOND}")
        if receipt.due_us - 5 * SECOND < deadline + 4_000:
            told.append(q.wakeups())
    assert not any(told)


def test_the_list_holds_one_wakeup_at_most(q: Probe) -> None:
    q.add("a")
    q.add("b")
    q.add("c", when=f"+{SECOND}")
    q.promote("c")
    q.run(job_commands.pause(q.keys))
    q.run(job_commands.resume(q.keys))
    assert q.wakeups() == 1


def test_many_jobs_in_one_call_are_one_wakeup_for_the_earliest(q: Probe) -> None:
    arm(q, "k1", 10)
    q.add("b", when=f"+{20 * SECOND}")
    assert q.wakeups() == 0
    q.add("c", "d", when=f"+{5 * SECOND}")
    assert q.wakeups() == 1


def test_an_id_that_existed_wakes_nobody(q: Probe) -> None:
    q.add("a")
    q.hear()
    q.add("a")
    assert q.wakeups() == 0


def test_a_job_given_back_wakes_someone(q: Probe) -> None:
    job = q.take("a")
    q.hear()
    q.settle(job, "release")
    assert q.wakeups() == 1


@pytest.mark.parametrize("outcome", ["complete", "fail"])
def test_a_job_that_has_ended_wakes_nobody(q: Probe, outcome: Outcome) -> None:
    job = q.take("a")
    q.hear()
    q.settle(job, outcome)
    assert q.wakeups() == 0


def test_a_repeated_settle_wakes_nobody(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "retry", "+0")
    q.hear()
    q.settle(job, "retry", "+0")
    assert q.wakeups() == 0


def test_promote_wakes_someone_and_a_job_that_waits_already_does_not(q: Probe) -> None:
    q.add("a", when=f"+{SECOND}")
    q.hear()
    q.promote("a")
    assert q.hear()
    q.promote("a")
    assert q.wakeups() == 0


def test_cancel_and_delete_wake_nobody(q: Probe) -> None:
    q.add("a", "b")
    q.hear()
    q.cancel("a")
    q.run(job_commands.delete(q.keys, ["b"]))
    assert q.wakeups() == 0


def test_a_claim_that_sees_to_all_that_is_due_takes_the_wakeup_away(q: Probe) -> None:
    """Nobody needs to be woken for what was just taken."""
    q.add("a")
    assert q.wakeups() == 1
    assert q.taken("w1", 5) == ["a"]
    assert q.wakeups() == 0


def test_a_claim_that_leaves_something_due_passes_the_wakeup_on(q: Probe) -> None:
    """The chain that spreads a burst: each woken worker wakes the next."""
    q.add("a", "b", "c")
    for worker, wakeups in (("w1", 1), ("w2", 1), ("w3", 0)):
        q.hear()
        assert len(q.taken(worker, 1)) == 1
        assert q.wakeups() == wakeups, worker


def test_a_worker_without_a_slot_passes_on_a_wakeup_that_it_heard(q: Probe) -> None:
    q.add("a")
    assert q.hear()
    assert q.taken("full", 0, busy=5) == []
    assert q.wakeups() == 1


def test_a_full_worker_wakes_nobody_when_nothing_is_due(q: Probe) -> None:
    q.add("a", when=f"+{SECOND}")
    q.hear()
    q.claim("full", 0, busy=5)
    assert q.wakeups() == 0


def test_a_timekeeper_that_leaves_wakes_another(q: Probe) -> None:
    q.claim("k1")
    q.leave("k1")
    assert q.wakeups() == 1


def test_a_sleeper_or_a_stranger_that_leaves_wakes_nobody(q: Probe) -> None:
    for worker in ("k1", "k2", "k1", "sleeper"):  # the first was alone, and is called
        q.claim(worker)
    q.hear()
    q.leave("sleeper")
    q.leave("stranger")
    assert q.wakeups() == 0


def test_an_expired_lease_that_a_full_worker_finds_wakes_someone(q: Probe) -> None:
    q.take("a", "doomed")
    q.hear()
    q.move(LEASE + 1)
    q.claim("full", 0, busy=5)
    assert q.wakeups() == 1
