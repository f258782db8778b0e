"""Workers that claim ahead: no job starts early, and what comes before its start wins."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from bide import JobStateError, Queue
from bide.protocol.commands.worker import MAX_AHEAD_US
from tests.support import jobs
from tests.support.eventually import eventually
from tests.support.workers import at_work

COUNT = 60
WINDOW = MAX_AHEAD_US / 1e6


def some_delays(rng: random.Random, count: int = COUNT) -> list[float]:
    """Delays within a second, some of them close to one another."""
    return [0.3 + rng.random() * 0.7 for _ in range(count)]


class Start(NamedTuple):
    """When a job started and when it was due, by the clock that the server reads too."""

    at_us: int
    due_us: int


def starts() -> dict[str, Start]:
    """Of each job that has started."""
    with jobs.changed:
        return {seen[0]: Start(*seen[1:]) for seen in jobs.seen if seen != "begun"}


def assert_none_early() -> None:
    assert [start for start in starts().values() if start.at_us < start.due_us] == []


@pytest.mark.parametrize("function", [jobs.note_start, jobs.note_start_in_thread])
def test_no_job_starts_before_it_is_due(queue: Queue, function: Callable[[], Any]) -> None:
    rng = random.Random(7)
    with at_work(queue, concurrency=20):
        for delay in some_delays(rng):
            queue.enqueue(function, delay=delay)
        jobs.wait_seen(COUNT)
    assert_none_early()


def test_nor_after_the_event_loop_was_blocked(queue: Queue) -> None:
    """While it is blocked, alarms ring and replies wait."""
    rng = random.Random(8)
    with at_work(queue, concurrency=20):
        for delay in some_delays(rng):
            queue.enqueue(jobs.note_start, delay=delay)
        for _ in range(20):
            queue.enqueue(jobs.block, 0.03, delay=rng.random())
        jobs.wait_seen(COUNT + 20)
    assert_none_early()


def test_claims_for_a_stream_are_fewer_than_its_jobs(queue: Queue) -> None:
    """Jobs that are due within a few milliseconds come with one claim."""
    due = 0.5
    with at_work(queue, concurrency=20):
        for i in range(COUNT):
            queue.enqueue(jobs.note_start, delay=due + i / 1000)
        before = _claims(queue)
        jobs.wait_seen(COUNT)
        assert _claims(queue) - before <= COUNT * 2 / 3
    assert_none_early()


def _claims(queue: Queue) -> int:
    told: Any = queue._client._redis.hvals(queue.keys["claims"])
    return sum(int(claim.split()[1]) for claim in told)


def _cancel(queue: Queue, id: str) -> bool:
    return queue.cancel_many([id], running=False) == ["ok"]


def _delete(queue: Queue, id: str) -> bool:
    return queue.delete_many([id]) == ["ok"]


def _reschedule(queue: Queue, id: str) -> bool:
    return queue.reschedule_many([id], delay=3600) == ["ok"]


@pytest.mark.parametrize("change", [_cancel, _delete, _reschedule])
def test_a_change_that_was_accepted_in_the_window_holds(
    queue: Queue, change: Callable[[Queue, str], bool]
) -> None:
    """Whatever the moment, either the call says that it came too late, or the job does not run."""
    rng = random.Random(9)
    won: dict[str, int] = {}
    lost = set()
    with at_work(queue, concurrency=20):
        for _ in range(COUNT):
            start = time.monotonic()
            id = queue.enqueue(jobs.note_start, delay=0.05).id
            time.sleep(max(0.0, 0.05 - rng.random() * WINDOW / 2 - (time.monotonic() - start)))
            if change(queue, id):
                won[id] = time.time_ns() // 1000
            else:
                lost.add(id)
        eventually(lambda: lost <= starts().keys())
    assert won
    ran = {id: start for id, start in starts().items() if id in won}
    if change is _delete:  # a job that has completed can be deleted too
        ran = {id: start for id, start in ran.items() if start.at_us > won[id]}
    assert ran == {}
    assert_none_early()


Stop = Callable[[Queue], object]


@pytest.mark.parametrize("stop", [Queue.pause, Queue.purge])
def test_a_pause_or_purge_in_the_window_leaves_each_job_run_or_not(
    queue: Queue, stop: Stop
) -> None:
    """Those that were claimed ahead return, unless they start before their worker hears of it."""
    rng = random.Random(10)
    ids: set[str] = set()
    with at_work(queue, concurrency=20):
        for _ in range(20):
            for _ in range(5):
                ids.add(queue.enqueue(jobs.note_start, delay=0.05 + rng.random() * WINDOW).id)
            time.sleep(0.05)
            stop(queue)
            ended_us = time.time_ns() // 1000
            eventually(lambda: queue.counts().active == 0)
            assert all(start.due_us <= ended_us for start in starts().values())
        left = ids - starts().keys()
        assert left
        counts = queue.counts()
        assert counts.delayed + counts.waiting == (len(left) if stop is Queue.pause else 0)
        assert counts.completed == len(starts())
    assert_none_early()


def test_a_job_that_was_deleted_too_late_says_so(queue: Queue) -> None:
    job = queue.enqueue(jobs.wait_async, delay=0.05)
    with at_work(queue, concurrency=20):
        jobs.wait_seen(1)
        with pytest.raises(JobStateError):
            job.delete()
