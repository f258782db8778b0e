"""Claims ahead of time: what is due within a moment is taken too, and given back when asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bide.model.job import Claimed
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.worker import MAX_AHEAD_US, Settle
from bide.protocol.keys import Keys
from tests.support.listener import ChannelListener
from tests.support.probe import LEASE, SECOND, Probe

AHEAD = 0.005
SOON = "+4000"
"""A due time within `AHEAD`, in microseconds."""


@pytest.fixture(autouse=True)
def _held_clock(q: Probe) -> None:
    q.hold()


def held(q: Probe, id: str = "a", when: str = f"+{MAX_AHEAD_US - 1000}") -> Claimed:
    """A job that a worker has claimed ahead, and that is not due yet."""
    q.add(id, when=when)
    (job,) = q.claim(ahead=MAX_AHEAD_US / SECOND).jobs
    return job


def test_what_is_due_within_the_window_is_taken_with_its_due_time(q: Probe) -> None:
    (soon,) = q.add("soon", when=SOON)
    q.add("later", when=f"+{SECOND}")
    claim = q.claim(ahead=AHEAD)
    (job,) = claim.jobs
    assert (job.id, job.due_us) == ("soon", soon.due_us)
    assert claim.now_us < job.due_us <= claim.now_us + AHEAD * SECOND


def test_its_token_and_its_start_are_its_due_time(q: Probe) -> None:
    (receipt,) = q.add("a", when=SOON)
    (job,) = q.claim(ahead=AHEAD).jobs
    record = q.record("a")
    assert job.token == record.token == record.started_us == receipt.due_us
    assert record.attempt == 1
    assert q.settle(job, "complete") == "ok"


def test_nothing_is_taken_that_is_due_after_the_longest_window(q: Probe) -> None:
    q.add("a", when=f"+{MAX_AHEAD_US + SECOND}")
    q.move(0.9)
    assert q.claim(ahead=10).jobs == []


def test_no_more_than_there_are_slots(q: Probe) -> None:
    q.add("now")
    q.add("c", "a", "b", when=SOON)
    claim = q.claim(count=10, ahead=AHEAD, slots=3)
    assert [job.id for job in claim.jobs] == ["now", "a", "b"]
    assert claim.deadline_us == q.zset_of("due:5")["c"]
    assert q.claim(count=10, ahead=AHEAD, slots=0).jobs == []


def test_the_soonest_first_and_of_one_instant_the_highest_priority(q: Probe) -> None:
    at = q.now + 4000
    q.add("low", when=f"={at}", priority=1)
    q.add("high", when=f"={at}", priority=9)
    q.add("sooner", when=f"={at - 1000}", priority=0)
    jobs = q.claim(ahead=AHEAD, slots=2).jobs
    assert {job.id for job in jobs} == {"sooner", "high"}


def test_what_is_due_now_comes_before_what_is_due_soon(q: Probe) -> None:
    q.add("soon", when=SOON, priority=9)
    q.add("now", priority=0)
    assert [job.id for job in q.claim(count=1, ahead=AHEAD).jobs] == ["now"]


@pytest.mark.parametrize("limits", [{"rate": "5/s"}, {"concurrency": 5}])
def test_a_queue_with_limits_gives_nothing_ahead(q: Probe, limits: dict[str, Any]) -> None:
    """A rate counts jobs from when they are claimed."""
    q.limit(**limits)
    q.add("a", when=SOON)
    claim = q.claim(ahead=AHEAD)
    assert claim.jobs == []
    assert not claim.soon


def test_a_paused_queue_neither(q: Probe) -> None:
    q.add("a", when=SOON)
    q.run(job_commands.pause(q.keys))
    assert q.claim(ahead=AHEAD).jobs == []


def test_a_deadline_says_whether_its_job_can_be_claimed_ahead(q: Probe) -> None:
    q.add("a", when=f"+{SECOND}")
    claim = q.claim(ahead=AHEAD)
    assert claim.soon
    assert claim.deadline_us == q.zset_of("due:5")["a"]
    q.move(1)
    assert q.taken() == ["a"]
    lease = q.claim(ahead=AHEAD)
    assert lease.deadline_us > lease.now_us
    assert not lease.soon, "the end of a lease"


def test_its_lease_is_as_long_as_any_and_what_returns_is_due_as_before(q: Probe) -> None:
    job = held(q)
    q.move(LEASE + 1)
    (again,) = q.claim("w2").jobs
    assert (again.id, again.due_us) == ("a", job.due_us)
    assert again.attempt == 1
    assert q.settle(job, "complete") == "lost"


def test_a_repeat_returns_it_again(q: Probe) -> None:
    q.add("a", when=SOON)
    first = q.claim(seq=7, ahead=AHEAD)
    again = q.claim(seq=7, ahead=AHEAD)
    assert [job.id for job in again.jobs] == ["a"]
    assert again.jobs[0].token == first.jobs[0].token
    assert again.jobs[0].due_us == first.jobs[0].due_us


def test_what_is_released_before_it_is_due_is_due_then_and_not_earlier(q: Probe) -> None:
    job = held(q)
    assert q.settle(job, "release") == "ok"
    assert q.zset_of("due:5") == {"a": job.due_us}
    assert q.record("a").attempt == 0
    assert q.taken() == []


def test_a_job_says_how_much_later_than_its_token_it_started(q: Probe) -> None:
    job = held(q)
    q.move(1)
    assert q.settle_many(Settle("a", job.token, "complete", started_us=job.due_us + 1234)) == ["ok"]
    assert q.record("a").started_us == job.due_us + 1234


Change = Callable[[Probe], Command[Any]]


def _cancel(q: Probe) -> Command[Any]:
    return job_commands.cancel(q.keys, ["a"])


def _delete(q: Probe) -> Command[Any]:
    return job_commands.delete(q.keys, ["a"])


def _reschedule(q: Probe) -> Command[Any]:
    return job_commands.reschedule(q.keys, ["a"], f"+{60 * SECOND}")


def _promote(q: Probe) -> Command[Any]:
    return job_commands.promote(q.keys, ["a"])


@pytest.mark.parametrize("change", [_cancel, _delete, _reschedule, _promote])
def test_a_call_that_changes_it_has_it_returned_and_is_repeated(q: Probe, change: Change) -> None:
    job = held(q)
    with ChannelListener(q.raw, q.keys) as listener:
        assert b"held" in q.reply(change(q))
        assert listener.heard() == [("asked", "~a")]
    assert q.settle(job, "release") == "ok"
    assert q.claim(ahead=MAX_AHEAD_US / SECOND).jobs == [], (
        "it would be taken again before the call is repeated"
    )
    word = q.reply(change(q))[1:]
    assert b"ok" in word


@pytest.mark.parametrize("change", [_cancel, _delete, _reschedule, _promote])
def test_once_it_is_due_it_is_a_job_that_runs(q: Probe, change: Change) -> None:
    held(q)
    q.move(0.1)
    reply = q.reply(change(q))
    assert b"held" not in reply
    assert b"asked" in reply or b"active" in reply


def test_the_client_repeats_it_until_the_job_is_due(q: Probe) -> None:
    q.go_on()
    held(q)
    results = q.cancel("a", running=False)
    assert results == ["active"], "no worker has returned it, so it has started"


@pytest.mark.parametrize("make", [job_commands.pause, partial(job_commands.purge, begin="x")])
def test_a_pause_or_a_purge_has_all_of_them_returned(
    q: Probe, make: Callable[[Keys], Command[Any]]
) -> None:
    command, job = make(q.keys), held(q)
    with ChannelListener(q.raw, q.keys) as listener:
        assert q.reply(command)[0] in (b"held", b"busy")
        assert listener.heard() == [("asked", "~")]
    assert q.settle(job, "release") == "ok"
    q.move(0.1)
    assert q.reply(command)[0] == b"ok"
    assert q.taken() == []


def test_the_client_waits_until_a_pause_holds(q: Probe) -> None:
    q.go_on()
    job = held(q)
    q.run(job_commands.pause(q.keys))
    assert q.now >= job.due_us


def test_a_pause_waits_for_the_latest_of_several_claims(q: Probe) -> None:
    q.add("late", when="+15000")
    assert q.claim(ahead=0.02).jobs
    q.add("soon", when="+2000")
    assert q.claim("w2", ahead=0.02).jobs
    q.move(0.01)
    assert q.reply(job_commands.pause(q.keys)) == [b"held"]
    q.move(0.01)
    assert q.reply(job_commands.pause(q.keys)) == [b"ok"]


def test_setting_limits_has_them_returned_too(q: Probe) -> None:
    held(q)
    with ChannelListener(q.raw, q.keys) as listener:
        q.limit(rate="1/m")
        assert listener.heard() == [("asked", "~")]


def test_a_job_that_pauses_the_queue_has_them_returned_too(q: Probe) -> None:
    running = q.take("r")
    held(q)
    with ChannelListener(q.raw, q.keys) as listener:
        q.settle(running, "hold", f"+{60 * SECOND}")
        assert listener.heard() == [("asked", "~")]


def test_a_clock_that_is_set_back_holds_up_no_change(q: Probe) -> None:
    held(q)
    q.move(-3600)
    assert q.reply(_cancel(q))[2] == b"asked"
    assert q.reply(job_commands.pause(q.keys)) == [b"ok"]


# -- a negative window: `previous` of a delay queue's consumers


def test_a_negative_window_leaves_what_was_due_only_just_now(q: Probe) -> None:
    (receipt,) = q.add("a")
    q.move(2)
    q.add("b")
    claim = q.claim(ahead=-3, arm=0)
    assert claim.jobs == []
    assert claim.deadline_us == receipt.due_us + 3 * SECOND
    q.move(1)
    claim = q.claim(ahead=-3, arm=0)
    assert [job.id for job in claim.jobs] == ["a"]
    assert claim.deadline_us == q.zset_of("due:5")["b"] + 3 * SECOND


def test_a_negative_window_leaves_wake_up_messages_to_others(q: Probe) -> None:
    q.claim("idle", arm=2)
    q.claim("other", arm=2)
    q.raw.delete(q.keys["wake"])
    q.add("a")
    assert q.raw.lrange(q.keys["wake"], 0, -1) == [b"-"]
    assert q.claim("w2", ahead=-3, arm=0).jobs == []
    assert q.raw.lrange(q.keys["wake"], 0, -1) == [b"-"]
    assert [job.id for job in q.claim("idle").jobs] == ["a"]


def test_a_negative_window_holds_while_others_claim_nothing_ahead(q: Probe) -> None:
    job = held(q, "soon")
    q.add("a")
    q.reply(job_commands.promote(q.keys, ["soon"]))
    assert q.settle(job, "release") == "ok"
    assert q.claim("w2", ahead=-3, arm=0).jobs == []
