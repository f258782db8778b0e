"""What a queue declares: settings that a worker applies, and default options of its jobs."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from bide import AsyncQueue, Queue, Retention, Retry, TaskOptions, UsageError, Worker
from bide.protocol.commands import jobs as job_commands
from bide.queue.core import declared_of
from bide.worker import heartbeat
from tests.support import jobs
from tests.support.workers import at_work, burst, eventually

SETTINGS: dict[str, Any] = {
    "rate": "5/s",
    "concurrency": 3,
    "retention": Retention(count=7),
    "group_rate": "2/m",
    "group_burst": 2,
}
HOUR = timedelta(hours=1)


@pytest.fixture
def looking(one_url: str) -> Iterator[Queue]:
    with closing(Queue("hooks", url=one_url)) as queue:
        yield queue


def stored(queue: Queue) -> tuple[Any, ...]:
    counts = queue.counts()
    return counts.limits.rate, counts.limits.concurrency, counts.retention.count


# -- settings


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_worker_applies_them_when_it_starts(
    one_url: str, looking: Queue, kind: type[Queue] | type[AsyncQueue]
) -> None:
    declaring = kind("hooks", url=one_url, **SETTINGS)
    assert stored(looking) == (None, None, 10_000), "nothing is sent before"
    Worker("hooks", url=one_url).run(burst=True)
    assert stored(looking) == ("5/s", 3, 7)
    limits = looking.counts().limits
    assert (limits.group_rate, limits.group_burst) == ("2/m", 2)
    assert declaring.name == "hooks"


def test_a_worker_keeps_the_objects_that_it_was_given(one_url: str, looking: Queue) -> None:
    worker = Worker([Queue("hooks", url=one_url, rate="5/s")])
    gc.collect()
    worker.run(burst=True)
    assert stored(looking)[0] == "5/s"


def test_they_are_for_this_queue_of_this_server_and_prefix(one_url: str, looking: Queue) -> None:
    others = [
        Queue("other", url=one_url, rate="1/s"),
        Queue("hooks", url=one_url, prefix="other", rate="1/s"),
        Queue("hooks", url="redis://192.0.2.1", rate="1/s"),
    ]
    burst(looking)
    assert stored(looking)[0] is None
    assert len(others) == 3


def test_configure_has_the_last_word_and_the_log_says_so(
    one_url: str, looking: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    declaring = Queue("hooks", url=one_url, **SETTINGS)
    burst(declaring)
    looking.configure(rate="1/s", retention=Retention(count=9))
    caplog.set_level(logging.INFO, "bide.worker")
    burst(declaring)
    assert stored(looking) == ("1/s", 3, 9)
    assert "queue hooks: the declared rate='5/s' and retention=Retention(" in caplog.text
    assert "`bide queues limit hooks --declared` lets the code decide again" in caplog.text
    assert looking.counts().limits.declared == "5/s"
    looking.configure(group_rate=None)
    assert looking.counts().limits.declared == "5/s, 2/m in bursts of 2 in each group"
    looking.configure(rate="5/s")
    del declaring
    burst(Queue("hooks", url=one_url, rate="7/s", concurrency=None, group_rate="3/s"))
    assert stored(looking) == ("7/s", None, 9)
    assert looking.counts().limits.group_rate is None


def test_a_worker_that_lives_applies_them_when_the_last_that_declared_others_has_gone(
    one_url: str, looking: Queue, direct: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.02)
    declaring = Queue("hooks", url=one_url, rate="5/s")
    with at_work(declaring):
        assert stored(looking)[0] == "5/s"
        old = declared_of({"rate": "9/s"})
        looking._client.run(job_commands.declare(looking.keys, old, True))
        assert stored(looking)[0] == "9/s"
        direct.hset(looking.keys["meta"], "declared_until", 1)
        eventually(lambda: stored(looking)[0] == "5/s")


def test_the_limits_show_what_is_declared_without_effect(one_url: str, looking: Queue) -> None:
    declaring = Queue("hooks", url=one_url, rate="5/s", burst=2, concurrency=3)
    burst(declaring)
    assert looking.counts().limits.declared is None
    looking.configure(rate=None)
    assert looking.counts().limits.declared == "5/s in bursts of 2"
    looking.configure(concurrency=9)
    assert looking.counts().limits.declared == "5/s in bursts of 2, 3 at once"
    looking.configure(rate="5/s", burst=2, concurrency=3)
    assert looking.counts().limits.declared is None
    burst(Queue("hooks", url=one_url, rate="5/s", burst=2, concurrency=3))
    del declaring
    burst(Queue("hooks", url=one_url, rate=None, concurrency=None))
    looking.configure(rate="1/s", concurrency=2)
    assert looking.counts().limits.declared == "no rate, any number at once"


def test_configure_returns_to_what_the_code_declares(one_url: str, looking: Queue) -> None:
    declaring = Queue("hooks", url=one_url, **SETTINGS)
    burst(declaring)
    assert looking.counts().overridden == {}
    looking.configure(rate="1/s", concurrency=None, group_rate=None, retention=Retention(count=9))
    counts = looking.counts()
    assert counts.declared == counts.overridden
    assert (counts.overridden["rate"], counts.overridden["burst"]) == ("5/s", 1)
    looking.configure(rate="declared", concurrency="declared")
    assert stored(looking) == ("5/s", 3, 9)
    assert looking.counts().overridden.keys() == {"group_rate", "group_burst", "retention"}

    async def return_the_others() -> None:
        queue = AsyncQueue("hooks", url=one_url)
        await queue.configure(group_rate="declared", retention="declared")
        await queue.close()

    asyncio.run(return_the_others())
    assert stored(looking) == ("5/s", 3, 7)
    assert looking.counts().limits.group_burst == 2
    looking.configure(rate="5/s", burst=4)
    assert looking.counts().overridden == {"rate": "5/s", "burst": 1}
    looking.configure(rate="declared")
    assert looking.counts().overridden == {}
    burst(declaring)
    assert looking.counts().overridden == {}


def test_no_limit_may_be_what_the_code_declares(one_url: str, looking: Queue) -> None:
    burst(Queue("hooks", url=one_url, rate=None, concurrency=None))
    looking.configure(rate="1/s", concurrency=2)
    assert looking.counts().overridden == {"rate": None, "burst": None, "concurrency": None}
    looking.configure(rate="declared", concurrency="declared")
    assert stored(looking) == (None, None, 10_000)


def test_there_is_no_way_back_to_what_nobody_has_declared(one_url: str, looking: Queue) -> None:
    burst(Queue("hooks", url=one_url, rate="5/s"))
    with pytest.raises(UsageError, match=r"No worker of queue hooks has declared concurrency=; wr"):
        looking.configure(rate="declared", concurrency="declared")
    with pytest.raises(UsageError, match="The declared rate has its own burst; leave out burst="):
        looking.configure(rate="declared", burst=3)
    assert stored(looking) == ("5/s", None, 10_000)
    with pytest.raises(UsageError, match="rate must be how many in which time"):
        Queue("hooks", url=one_url, rate="declared")


def test_objects_that_contradict_each_other_are_refused(one_url: str) -> None:
    one = Queue("hooks", url=one_url, rate="5/s", concurrency=3)
    other = AsyncQueue("hooks", url=one_url, concurrency=3)
    burst(one)
    third = Queue("hooks", url=one_url, rate="6/s")
    with pytest.raises(UsageError, match=r"is declared with rate='[56]/s' and with rate='[56]/s'"):
        burst(one)
    assert (other.name, third.name) == ("hooks", "hooks")


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rate": "fast"}, "rate must be how many in which time"),
        ({"burst": 3}, "give it along with rate="),
        ({"concurrency": 0}, "concurrency must be a whole number"),
        ({"retention": "1d"}, r"such as Retention\(completed='7d'\), not '1d'"),
        ({"speed": 3}, "Queue has no argument 'speed'; there are name, url, prefix, .*rate"),
        ({"defaults": {"dealy": 3}}, "defaults of queue hooks: There is no option 'dealy'"),
        ({"defaults": {"delay": "soon"}}, "delay='soon' is not"),
        ({"defaults": {"at": datetime.now(UTC)}}, "There is no option 'at' here"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_written(
    kind: Any, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        kind("hooks", **given)


# -- defaults


@pytest.fixture
def slow(one_url: str) -> Iterator[Queue]:
    defaults: TaskOptions = {"delay": HOUR, "priority": 2, "retry": 4}
    with closing(Queue("hooks", url=one_url, defaults=defaults)) as queue:
        yield queue


def delay_of(job: Any) -> timedelta:
    return timedelta(hours=round((job.due - datetime.now(UTC)) / HOUR))


def test_jobs_have_the_defaults_that_neither_call_nor_task_has(slow: Queue) -> None:
    job = slow.enqueue(jobs.add, 1, 2)
    assert (delay_of(job), job.priority) == (HOUR, 2)
    assert job.refresh().retry_policy == Retry(4)
    own = slow.enqueue_call("some:task", priority=7, delay=2 * HOUR, retry=None)
    assert (delay_of(own), own.priority) == (2 * HOUR, 7)
    assert own.refresh().retry_policy == Retry(4)
    many = slow.enqueue_many([slow.prepare(jobs.add, (1, 2)), slow.prepare("a:b", delay=0)])
    assert [delay_of(job) for job in many] == [HOUR, timedelta()]


def test_a_moment_takes_the_place_of_the_delay(slow: Queue) -> None:
    at = datetime.now(UTC) + 3 * HOUR
    assert delay_of(slow.enqueue(jobs.add, 1, 2, at=at)) == 3 * HOUR


def test_options_of_a_task_take_precedence(slow: Queue) -> None:
    task = slow.task(name="quick_add", delay=0, retry=1)(jobs.add)
    job = task.enqueue(1, 2)
    assert (delay_of(job), job.priority) == (timedelta(), 2)
    assert task.later("2h").enqueue(1, 2).priority == 2
    assert burst(slow) == 1
    assert delay_of(task.later("2h").enqueue(1, 2)) == 2 * HOUR


@pytest.mark.anyio
async def test_an_awaited_queue_has_them_too(one_url: str) -> None:
    queue = AsyncQueue("hooks", url=one_url, defaults={"delay": HOUR})
    job = await queue.enqueue(jobs.add, 1, 2)
    assert delay_of(job) == HOUR
    await queue.close()
