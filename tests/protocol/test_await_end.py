"""Waiting for a job's end: whoever said so is told, by whatever way it ends, and then forgotten."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.keys import keys_of
from tests.support.listener import ChannelListener
from tests.support.probe import BODY, LEASE, SECOND, Probe

ENDED = [("waiters", "a")]


def test_a_watch_says_where_the_job_is_and_is_noted(q: Probe) -> None:
    q.add("a", when=f"+{SECOND}")
    _ok, now, word = q.reply(job_commands.await_end(q.keys, "a", 30 * SECOND))
    assert word == b"due"
    assert q.holding().waiters == {"a": now + 30 * SECOND}
    q.move(1)
    assert q.watch("a") == "due"
    q.claim()
    assert q.watch("a") == "active"


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "gone"])
def test_nobody_waits_for_what_has_ended(q: Probe, state: str) -> None:
    if state == "cancelled":
        q.add("a")
        q.cancel("a")
    elif state != "gone":
        q.settle(q.take("a"), "complete" if state == "completed" else "fail")
    assert q.watch("a") == state
    assert q.holding().waiters == {}


def test_one_that_was_set_aside_by_purging_is_gone(q: Probe) -> None:
    q.add("a")
    q.run(job_commands.purge(q.keys, "this"))
    assert q.watch("a") == "gone"
    assert q.holding().waiters == {}


# -- told


@pytest.mark.parametrize("outcome", ["complete", "fail", "cancel"])
def test_told_when_its_worker_says_that_it_ended(
    q: Probe, listener: ChannelListener, outcome: str
) -> None:
    job = q.take("a")
    q.watch("a")
    assert listener.heard() == []
    q.settle(job, outcome)  # type: ignore[arg-type]
    assert listener.heard() == ENDED
    assert q.holding().waiters == {}


def test_told_when_it_is_cancelled_before_it_runs(q: Probe, listener: ChannelListener) -> None:
    q.add("a")
    q.watch("a")
    q.cancel("a")
    assert listener.heard() == ENDED
    assert q.holding().waiters == {}


@pytest.mark.parametrize("outcome", ["retry", "snooze", "release"])
def test_told_when_an_asked_job_is_not_run_again(
    q: Probe, listener: ChannelListener, outcome: str
) -> None:
    job = q.take("a")
    q.watch("a")
    q.cancel("a")
    q.settle(job, outcome, "+0")  # type: ignore[arg-type]
    assert listener.heard() == [("asked", "a"), *ENDED]


def test_told_when_its_worker_died_after_it_was_asked(q: Probe, listener: ChannelListener) -> None:
    q.take("a")
    q.cancel("a")
    q.watch("a")
    q.move(LEASE + 1)
    listener.heard()
    q.claim("w2", 0)
    assert listener.heard() == ENDED


def test_told_when_it_fails_by_its_crashes(q: Probe, listener: ChannelListener) -> None:
    q.add("a")
    for _ in range(5):
        assert listener.heard() == []
        q.watch("a")
        assert q.taken("doomed") == ["a"]
        q.leave("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    assert q.where("a") == "failed"
    assert listener.heard() == ENDED


@pytest.mark.parametrize("outcome", ["retry", "snooze", "release"])
def test_not_told_when_it_will_run_again(q: Probe, listener: ChannelListener, outcome: str) -> None:
    job = q.take("a")
    q.watch("a")
    q.settle(job, outcome, "+0")  # type: ignore[arg-type]
    assert listener.heard() == []
    assert q.holding().waiters.keys() == {"a"}
    (job,) = q.claim().jobs
    q.settle(job, "complete")
    assert listener.heard() == ENDED


def test_not_told_by_a_settle_that_is_refused_or_repeated(
    q: Probe, listener: ChannelListener
) -> None:
    job = q.take("a")
    q.watch("a")
    q.settle(replace(job, token=job.token - 1), "complete")
    assert listener.heard() == []
    q.settle(job, "complete")
    q.settle(job, "complete")
    assert listener.heard() == ENDED


def test_those_of_many_that_are_waited_for(q: Probe, listener: ChannelListener) -> None:
    q.add(*"abcd")
    jobs = q.claim().jobs
    q.watch("d")
    q.watch("b")
    for job in jobs:
        q.settle(job, "complete")
    assert listener.heard() == [("waiters", "b"), ("waiters", "d")]


def test_nothing_is_said_where_nobody_waits(q: Probe, listener: ChannelListener) -> None:
    q.settle(q.take("a"), "complete")
    q.settle(q.take("b"), "fail")
    q.add("c")
    q.cancel("c")
    assert listener.heard() == []


def test_a_job_that_is_retried_is_waited_for_anew(q: Probe, listener: ChannelListener) -> None:
    job = q.take("a")
    q.watch("a")
    q.settle(job, "fail")
    q.retry("a")
    (job,) = q.claim().jobs
    q.settle(job, "complete")
    assert listener.heard() == ENDED


def test_a_queue_and_its_namesake_in_another_prefix_hear_nothing_of_each_other(
    q: Probe, listener: ChannelListener
) -> None:
    other = keys_of(q.queue, "staging")
    with ChannelListener(q.raw, other) as others:
        job = q.take("a")
        q.watch("a")
        q.settle(job, "complete")
        assert others.heard() == []
    assert listener.heard() == ENDED


# -- forgotten


def test_a_repeat_renews(q: Probe) -> None:
    q.add("a")
    q.watch("a")
    first = q.holding().waiters["a"]
    q.move(2)
    q.watch("a")
    assert q.holding().waiters["a"] >= first + 2 * SECOND


def test_whoever_said_for_how_long_is_not_told_later(q: Probe, listener: ChannelListener) -> None:
    job = q.take("a")
    q.watch("a", 5)
    q.move(6)
    q.settle(job, "complete")
    assert listener.heard() == []
    assert q.holding().waiters == {}


def test_those_whose_time_is_over_are_forgotten_when_something_ends(q: Probe) -> None:
    ids = [f"j{i:03}" for i in range(100)]
    q.add_many(*(Prepared(id, f"+{3600 * SECOND}", 5, BODY) for id in ids))
    for id in ids:
        q.watch(id, 5)
    job = q.take("a")
    assert len(q.holding().waiters) == 100
    q.move(6)
    q.settle(job, "complete")
    assert len(q.holding().waiters) == 100 - 64, "a bounded number at a time"
    q.add("b")
    q.cancel("b")
    assert q.holding().waiters == {}


def test_or_when_others_wait_though_nothing_ever_ends(q: Probe) -> None:
    """Else a caller that waits in vain for one job after another would fill the server."""
    q.hold()
    for i in range(100):
        q.add(f"j{i:03}", when=f"+{3600 * SECOND}")
        q.watch(f"j{i:03}", 5)
        q.run(job_commands.delete(q.keys, [f"j{i:03}"]))
    q.move(6)
    q.add("a", "b")
    q.watch("a")
    assert len(q.holding().waiters) == 100 - 64 + 1
    q.watch("b")
    assert q.holding().waiters.keys() == {"a", "b"}


def test_a_full_server_lets_people_wait(q: Probe, listener: ChannelListener) -> None:
    job = q.take("a")
    q.raw.config_set("maxmemory", "1")
    try:
        assert q.watch("a") == "active"
        q.settle(job, "complete")
    finally:
        q.raw.config_set("maxmemory", "0")
    assert listener.heard() == ENDED
