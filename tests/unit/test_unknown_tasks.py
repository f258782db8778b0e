"""When the jobs of tasks that a worker does not serve are looked at again."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import pytest

from bide.model.job import Claimed
from bide.protocol.commands.worker import Claim
from bide.protocol.keys import keys_of
from bide.worker.executors.base import CLAIMS, GAP_US, UnknownTasks
from bide.worker.queue_state import QueueState
from bide.worker.running_job import RunningJob

NOW = 1_795_214_038_547_684
STATION = QueueState(keys_of("mail"), "w1", 10_000_000)


def job(task: str = "os:system", now: int = NOW, waited_us: int = 0) -> RunningJob:
    """A job that was claimed just now, and whose task is not served."""
    STATION.claimed(Claim(now, now, 0, False, False, False, []), time.monotonic(), time.monotonic())
    claimed = Claimed("a", b"{}", NOW, 1, 0, now, now, 0, NOW - waited_us)
    run = RunningJob(STATION, claimed, time.monotonic(), lambda: None)
    run.task_name = task
    return run


def moment(unknown_tasks: UnknownTasks, run: RunningJob, batch: int = 10) -> int:
    """When it is looked at again, in microseconds."""
    unknown_tasks.note(run)
    when = unknown_tasks.next_look(run, batch)
    assert when.startswith("=")
    return int(when[1:])


@pytest.mark.parametrize(("waited", "delay"), [(0, 1), (20, 20), (3_000, 60)])
def test_one_is_looked_at_after_as_long_as_it_has_waited(waited: int, delay: int) -> None:
    at = moment(UnknownTasks(), job(waited_us=waited * 1_000_000))
    assert 0 <= at - NOW - delay * 1_000_000 < GAP_US + 1_000_000


@pytest.mark.parametrize("batch", [2, 50])
def test_many_are_spread_over_moments_that_are_apart(batch: int) -> None:
    unknown_tasks = UnknownTasks()
    moments = Counter(moment(unknown_tasks, job(), batch) for _ in range(1_000))
    assert max(moments.values()) == CLAIMS * batch
    ordered = sorted(moments)
    assert {later - at for at, later in pairwise(ordered)} == {GAP_US}


def test_the_looks_of_all_tasks_share_what_they_may_cost() -> None:
    unknown_tasks = UnknownTasks()
    names = [f"os:f{n}" for n in range(4)]
    for name in names:
        moment(unknown_tasks, job(name))
    moments = Counter(moment(unknown_tasks, job(name)) for _ in range(500) for name in names)
    first, last = min(moments), max(moments)
    looks = sum(moments.values()) / (CLAIMS * 10)
    assert looks <= (last - first) / GAP_US + len(names)


def test_jobs_with_other_arguments_are_apart_from_those_of_a_task_that_is_missing() -> None:
    unknown_tasks, run = UnknownTasks(), job("shop:send")
    run.missing = "arguments"
    moment(unknown_tasks, run)
    moment(unknown_tasks, job("shop:send"))
    assert unknown_tasks.names() == ["shop:send", "shop:send (other arguments)"]


def test_a_clock_that_is_set_back_puts_nothing_off() -> None:
    unknown_tasks = UnknownTasks()
    moment(unknown_tasks, job())
    for back_us in (5_000_000, 86_400_000_000):
        assert moment(unknown_tasks, job(now=NOW - back_us)) - (NOW - back_us) < 3_000_000


def test_the_more_wait_the_later_each_is_looked_at() -> None:
    """A worker with one slot claims one job at a time, and makes no more claims a second."""
    unknown_tasks = UnknownTasks()
    moments = Counter(moment(unknown_tasks, job(), 1) for _ in range(5_000))
    assert max(moments.values()) == CLAIMS
    assert max(moments) - min(moments) == (5_000 // CLAIMS - 1) * GAP_US
