"""A queue is told what to keep, and a job may be kept for a time of its own, shorter or longer."""

from __future__ import annotations

from typing import Any

import pytest

from bide.errors import ScriptBug, UsageError
from bide.model.limits import MOST_KEPT, Retention
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Outcome, Settle
from tests.support.probe import BODY, SECOND, Probe

SPARE = 15
"""Seconds for which a job that has finished is kept in any case."""

DAY = 86_400


@pytest.fixture(params=["completed", "failed"])
def state(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def end(q: Probe, state: str, *ids: str, keep: float | None = None) -> int:
    """Run jobs to that end, each to be kept for so many seconds; the server's time of the end."""
    outcome: Outcome = "complete" if state == "completed" else "fail"
    when = "" if keep is None else f"+{round(keep * SECOND)}"
    q.add_many(*(Prepared(id, "+0", 5, BODY) for id in ids))
    jobs = q.claim(count=len(ids)).jobs
    assert [job.id for job in jobs] == sorted(ids)
    settles = [Settle(job.id, job.token, outcome, keep=when) for job in jobs]
    assert q.settle_many(*settles) == ["ok"] * len(ids)
    return q.now


def look(q: Probe) -> None:
    """What any claim does about once a second, but not where the clock has just jumped."""
    q.claim("undertaker", 0)
    q.move(1.5)
    q.claim("undertaker", 0)


def kept(q: Probe, state: str) -> set[str]:
    return set(q.zset(state))


# -- configure


def test_what_was_configured_is_read_back(q: Probe) -> None:
    assert q.run(job_commands.counts(q.keys)).retention == Retention()
    q.configure(completed="1h", failed=60, cancelled="2d", count=7)
    found = q.run(job_commands.counts(q.keys)).retention
    assert found == Retention(3600.0, 60.0, 172_800.0, 7)


def test_the_default_is_what_the_documentation_says(q: Probe) -> None:
    """The script has it in numbers of its own."""
    began = q.now
    q.configure()
    (text,) = q.raw.hmget(q.keys["meta"], "retention")
    for _ in range(2):
        jobs = [q.take(f"{state}-{text is None}") for state in ("c", "f")]
        q.settle(jobs[0], "complete", "+60000000")
        q.settle(jobs[1], "fail", "+60000000")
        q.raw.hdel(q.keys["meta"], "retention")
        text = None
    for state in ("completed", "failed"):
        configured, usual = sorted(q.zset(state).values())
        assert 0 <= usual - configured <= q.now - began


def test_it_holds_at_once_for_what_had_ended_before(q: Probe, state: str) -> None:
    end(q, state, "a")
    q.move(60)
    look(q)
    assert kept(q, state) == {"a"}
    q.configure(**{state: 30})
    look(q)
    assert kept(q, state) == set()


def test_the_last_word_holds(q: Probe, state: str) -> None:
    q.configure(**{state: 30})
    q.configure(**{state: "1h"})
    end(q, state, "a")
    q.move(60)
    look(q)
    assert kept(q, state) == {"a"}


@pytest.mark.parametrize(
    "text", ["", "1 2 3 4 5", "1 2 3 4 5 6 7", "1 2 3 4 5 x", "-1 2 3 4 5 6", "1 2.5 3 4 5 6"]
)
def test_what_no_operation_would_send_is_refused_before_anything_is_written(
    q: Probe, text: str
) -> None:
    command = job_commands.configure(q.keys, Retention())
    with pytest.raises(ScriptBug, match="BADARG configure"):
        q.run(command._replace(args=(text,)))
    assert not q.raw.exists(q.keys["meta"])


@pytest.mark.parametrize(
    "bad",
    [{"count": -1}, {"count": MOST_KEPT + 1}, {"count": 2.5}, {"count": True}, {"failed": "x"}],
)
def test_what_cannot_be_meant_is_refused(q: Probe, bad: Any) -> None:
    with pytest.raises(UsageError, match="Retention"):
        q.configure(**bad)


def test_a_full_server_can_be_told_to_keep_less(q: Probe, state: str) -> None:
    end(q, state, "a")
    q.move(60)
    q.raw.config_set("maxmemory", "1")
    try:
        q.configure(completed=0, failed=0)
    finally:
        q.raw.config_set("maxmemory", "0")
    look(q)
    assert kept(q, state) == set()


# -- a time of its own


@pytest.mark.parametrize(("own", "queues"), [(60, 200), (200, 60), (60, 60)])
def test_a_job_is_kept_for_its_own_time_and_others_for_the_queues(
    q: Probe, state: str, own: float, queues: float
) -> None:
    q.configure(**{state: queues})
    ages = {"own": own, "usual": queues}
    end(q, state, "own", keep=own)
    end(q, state, "usual")
    for passed in range(10, 230, 10):
        q.move(8.5)
        look(q)
        assert kept(q, state) == {id for id, age in ages.items() if age > passed}, passed


@pytest.mark.parametrize("own", [0, 3])
def test_for_fifteen_seconds_in_any_case(q: Probe, state: str, own: float) -> None:
    job = q.take("a")
    outcome: Outcome = "complete" if state == "completed" else "fail"
    q.settle(job, outcome, f"+{own * SECOND}")
    q.move(SPARE - 2)
    look(q)
    assert kept(q, state) == {"a"}
    assert q.settle(job, outcome, f"+{own * SECOND}") == "ok"
    q.move(2)
    look(q)
    assert kept(q, state) == set()


def test_a_queue_that_keeps_nothing_keeps_what_has_a_time_of_its_own(q: Probe, state: str) -> None:
    q.configure(completed=0, failed=0)
    end(q, state, "own", keep=60)
    end(q, state, "usual")
    q.move(50)
    look(q)
    assert kept(q, state) == {"own"}
    q.move(10)
    look(q)
    assert kept(q, state) == set()


@pytest.mark.parametrize("keep", [None, 20, 30 * DAY])
def test_when_it_ended_can_be_read(q: Probe, state: str, keep: float | None) -> None:
    before = q.now
    after = end(q, state, "a", keep=keep)
    q.move(2)
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert before <= snapshot.finished_us <= after


def test_every_trace_is_removed(q: Probe, state: str) -> None:
    end(q, state, "a", keep=20)
    q.move(21)
    look(q)
    holding = q.holding()
    assert holding.ids == set()
    assert not any(holding.hashes.values())


def test_a_cancelled_job_is_kept_as_the_queue_does(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "cancel", f"+{60 * SECOND}")
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.since_us == snapshot.finished_us <= snapshot.now_us


def test_one_that_was_asked_to_stop_and_retries_ends_at_its_time(q: Probe) -> None:
    job = q.take("a")
    q.cancel("a")
    q.settle(job, "retry", f"+{3600 * SECOND}")
    snapshot = q.fetch("a")
    assert snapshot is not None
    assert snapshot.since_us <= snapshot.now_us


def test_what_has_just_finished_is_spared_though_the_queue_is_told_to_keep_less(
    q: Probe, state: str
) -> None:
    """Its place among the others was reckoned with the age that held before."""
    q.configure(completed=DAY, failed=DAY)
    q.claim("undertaker", 0)
    end(q, state, "a", keep=600)
    q.configure(completed=60, failed=60)
    look(q)
    assert kept(q, state) == {"a"}
    q.move(SPARE)
    look(q)
    assert kept(q, state) == set()


# -- and the count


@pytest.mark.parametrize("own", [20, 3600, 300 * DAY])
def test_the_count_spares_what_has_just_finished(q: Probe, state: str, own: float) -> None:
    q.configure(count=0)
    end(q, state, "a", keep=own)
    q.move(SPARE - 3)
    end(q, state, "b", keep=own)
    assert kept(q, state) == {"a", "b"}
    q.move(5)
    look(q)
    assert kept(q, state) == {"b"}


@pytest.mark.parametrize("own", [60, 300 * DAY])
def test_the_count_bounds_also_those_with_a_time_of_their_own(
    q: Probe, state: str, own: float
) -> None:
    """Nothing grows without bound."""
    q.configure(count=3)
    for i in range(8):
        end(q, state, f"j{i}", keep=own)
        q.move(1)
    q.move(SPARE)
    look(q)
    assert kept(q, state) == {"j5", "j6", "j7"}


def test_those_that_are_kept_as_usual_go_before_those_that_were_to_be_kept_longer(
    q: Probe, state: str
) -> None:
    q.configure(count=2)
    for i in range(2):
        end(q, state, f"long{i}", keep=300 * DAY)
    for i in range(3):
        end(q, state, f"usual{i}")
    q.move(SPARE + 1)
    look(q)
    assert kept(q, state) == {"long0", "long1"}


def test_the_count_is_reached_though_newer_ones_have_a_shorter_time(q: Probe, state: str) -> None:
    """They stand before the others in the set, and are spared."""
    q.configure(count=2)
    for i in range(4):
        end(q, state, f"usual{i}")
        q.move(1)
    q.move(SPARE + 1)
    end(q, state, "short0", "short1", keep=3600)
    assert {"short0", "short1"} <= kept(q, state)
    q.move(SPARE + 1)
    look(q)
    assert len(kept(q, state)) == 2
