"""Several queues in one worker: from which of them jobs are taken, and who hears of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis

from bide import Queue, Retry, UsageError, Worker
from bide.protocol.keys import DUE_SETS
from bide.worker.executors import local
from bide.worker.queue_state import QueueState
from tests.support import jobs
from tests.support.cpu_waits import Witness
from tests.support.workers import at_work, burst, claims, eventually
from tests.worker import ordered

pytestmark = pytest.mark.slow

MODULES = ("tests.worker.ordered",)
HORIZON = 2.0
"""Seconds that an idle worker waits at most if it hears nothing."""


@pytest.fixture
def queue_of(one_url: str) -> Iterator[Callable[[str], Queue]]:
    made: dict[str, Queue] = {}

    def get(name: str) -> Queue:
        return made.setdefault(name, Queue(name, url=one_url))

    yield get
    for queue in made.values():
        queue.close()


@pytest.fixture
def high(queue_of: Callable[[str], Queue]) -> Queue:
    return queue_of("high")


@pytest.fixture
def low(queue_of: Callable[[str], Queue]) -> Queue:
    return queue_of("low")


@pytest.fixture
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are claimed for slots that are free, and no more though they are quick."""
    monkeypatch.setattr(local, "ENOUGH", 0)


def fill(queue: Queue, count: int, task: Callable[[], Any] = ordered.mark) -> None:
    queue.enqueue_many([queue.prepare(task) for _ in range(count)])


def commands(direct: redis.Redis) -> int:
    stats: Any = direct.info("stats")
    return int(stats["total_commands_processed"])


@contextmanager
def at_work_many(count: int, *queues: Queue, **options: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(at_work(*queues, modules=MODULES, **options))
        yield


# -- strict


@pytest.mark.parametrize("concurrency", [1, 7, 100])
def test_strict_takes_from_a_lower_queue_only_when_the_higher_are_empty(
    high: Queue, low: Queue, concurrency: int
) -> None:
    fill(low, 300)
    fill(high, 300)
    assert burst(high, low, modules=MODULES, concurrency=concurrency) == 600
    assert [queue for queue, _ in itertools.groupby(jobs.seen)] == ["high", "low"]


@pytest.fixture
def hints_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a worker gets a wake-up message stands among what its jobs note."""
    on_wakeup = QueueState.on_wakeup

    def noted(queue_state: QueueState, caller: str) -> None:
        jobs.note(f"wake-up for {queue_state.queue}")
        on_wakeup(queue_state, caller)

    monkeypatch.setattr(QueueState, "on_wakeup", noted)


@pytest.mark.usefixtures("hints_noted")
@pytest.mark.parametrize("is_burst", [False, True])
@pytest.mark.parametrize("concurrency", [1, 100])
def test_what_comes_into_the_higher_queue_is_claimed_next(
    high: Queue, low: Queue, one_url: str, concurrency: int, is_burst: bool
) -> None:
    """A message tells: the lower queue has hundreds, and the worker is full of them."""
    count = 10 * concurrency + 100
    fill(low, count, ordered.mark_slowly)
    low.enqueue(ordered.call, one_url)
    fill(low, count, ordered.mark_slowly)
    if is_burst:
        burst(high, low, modules=MODULES, concurrency=concurrency)
    else:
        with at_work(high, low, modules=MODULES, concurrency=concurrency):
            eventually(lambda: Counter(jobs.seen)["low"] == 2 * count and "high" in jobs.seen)
    came = jobs.seen.index("high")
    heard = [at for at in range(came) if jobs.seen[at] == "wake-up for high"]
    assert came - heard[-1] <= 2 * concurrency + 2, "what ran already, and one claim under way"
    assert came < len(jobs.seen) - count // 2, "before most of what is lower"


@pytest.mark.parametrize("concurrency", [1, 100])
def test_and_what_falls_due_there(
    high: Queue, low: Queue, concurrency: int, witness: Witness
) -> None:
    """A deadline tells, though the worker has not been idle since it heard of it."""
    with at_work(high, low, modules=MODULES, concurrency=concurrency):
        job = high.enqueue(ordered.mark, delay=0.3)
        while job.refresh().lateness is None:
            fill(low, 500)
        assert witness.lateness(job) < 0.5
        low.purge()


@pytest.mark.usefixtures("nothing_ahead")
def test_a_retry_without_delay_goes_before_the_lower_queue(high: Queue, low: Queue) -> None:
    """The slot that it leaves is its own again, though a lower job waits for one."""
    high.enqueue(ordered.again, retry=Retry(3, backoff="fixed", base=0))
    low.enqueue(ordered.hold)
    low.enqueue(ordered.hold)
    with at_work(high, low, modules=MODULES, concurrency=2):
        jobs.wait_seen(6)
        jobs.gate.set()
    assert jobs.seen == ["held", *(f"attempt {n}" for n in (1, 2, 3, 4)), "held"]


def test_priorities_order_the_jobs_of_each_queue(high: Queue, low: Queue) -> None:
    for queue in (low, high):
        for priority in (0, 9, 5):
            queue.enqueue(jobs.add, priority, int(queue is high), priority=priority)
    burst(high, low, concurrency=1)
    assert jobs.seen == [("add", p, h) for h in (1, 0) for p in (9, 5, 0)]


def test_a_paused_queue_holds_up_no_other(high: Queue, low: Queue) -> None:
    fill(high, 5)
    fill(low, 5)
    high.pause()
    assert burst(high, low, modules=MODULES) == 5
    assert burst(high, low, modules=MODULES, strategy="fair") == 0


# -- fair, and by weight


@pytest.mark.parametrize("concurrency", [1, 100])
def test_fair_gives_both_the_same_though_one_produces_a_hundred_times_as_much(
    queue_of: Callable[[str], Queue], concurrency: int
) -> None:
    loud, quiet = queue_of("loud"), queue_of("quiet")
    fill(loud, 30_000)
    fill(quiet, 300)
    with at_work(loud, quiet, modules=MODULES, strategy="fair", concurrency=concurrency):
        seen = jobs.wait_seen(1000)
    end = max(i for i, queue in enumerate(seen) if queue == "quiet")
    counts = Counter(seen[: end + 1])
    print(counts)
    assert counts["quiet"] == 300
    assert 0.45 <= counts["quiet"] / counts.total() <= 0.55
    loud.purge()


@pytest.mark.parametrize("concurrency", [1, 100])
@pytest.mark.parametrize("workers", [1, 3])
def test_fair_holds_while_both_go_on_producing(
    queue_of: Callable[[str], Queue], concurrency: int, workers: int
) -> None:
    """A hundred to one; and of both there is always something."""
    loud, quiet = queue_of("loud"), queue_of("quiet")
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set():
            fill(loud, 2000)
            fill(quiet, 20)

    fill(loud, 2000)
    fill(quiet, 2000)
    producer = threading.Thread(target=produce)
    producer.start()
    try:
        with at_work_many(workers, loud, quiet, strategy="fair", concurrency=concurrency):
            seen = jobs.wait_seen(2000)[:2000]
    finally:
        stop.set()
        producer.join(30)
        loud.purge()
        quiet.purge()
    counts = Counter(seen)
    print(counts)
    assert 900 <= counts["quiet"] <= 1100


@pytest.mark.parametrize("concurrency", [1, 100])
def test_weights_hold_over_ten_thousand_jobs(high: Queue, low: Queue, concurrency: int) -> None:
    fill(high, 9_500)
    fill(low, 9_500)
    with at_work(
        high, low, modules=MODULES, strategy={"low": 1, "high": 6}, concurrency=concurrency
    ):
        seen = jobs.wait_seen(10_000, 300)[:10_000]
        high.purge()
        low.purge()
    counts = Counter(seen)
    print(counts)
    assert 0.95 * 60_000 / 7 <= counts["high"] <= 1.05 * 60_000 / 7
    assert 0.95 * 10_000 / 7 <= counts["low"] <= 1.05 * 10_000 / 7


def test_what_a_queue_did_not_use_while_it_was_empty_is_not_made_up_for(
    high: Queue, low: Queue
) -> None:
    with at_work(high, low, modules=MODULES, strategy="fair", concurrency=1):
        fill(low, 1000)
        jobs.wait_seen(1000)
        low.enqueue(ordered.hold)
        jobs.wait_seen(1001)  # until both are there, the worker is held
        fill(low, 200)
        fill(high, 200)
        jobs.gate.set()
        later = jobs.wait_seen(1401)[1001:]
    first = later.index("high")
    assert first < 200, "they met"
    assert 40 <= later[first : first + 100].count("high") <= 60


# -- what it costs


@pytest.mark.parametrize("order", ["strict", "fair", {"high": 6, "low": 1}])
@pytest.mark.parametrize("concurrency", [1, 10])
def test_an_idle_queue_costs_no_round_trip_per_claim_of_another(
    high: Queue, low: Queue, direct: redis.Redis, order: Any, concurrency: int
) -> None:
    with at_work(high, low, modules=MODULES, strategy=order, concurrency=concurrency):
        eventually(lambda: claims(direct, high) and claims(direct, low))
        begun, before = time.monotonic(), claims(direct, high)
        for i in range(1, 11):
            fill(low, 100)
            jobs.wait_seen(100 * i)
        made, took = claims(direct, high) - before, time.monotonic() - begun
        print(f"{made} claims of the idle queue, {claims(direct, low)} of the other, {took:.2f} s")
        assert claims(direct, low) >= 10
        assert made <= 4 + 4 * took / HORIZON


def test_a_worker_with_work_makes_one_claim_for_each_batch(low: Queue, direct: redis.Redis) -> None:
    """It does not hear, and pass on, the messages of a queue that it knows to have work."""
    fill(low, 1000)
    with at_work(low, modules=MODULES, concurrency=1):
        jobs.wait_seen(1000)
        made = claims(direct, low)
    print(f"{made} claims")
    assert 1000 <= made <= 1050


@pytest.mark.parametrize("order", ["strict", "fair"])
def test_a_full_worker_asks_nobody_for_nothing(
    high: Queue, low: Queue, direct: redis.Redis, order: Any
) -> None:
    """Both queues have work, and messages, and none of its slots is free."""
    with at_work(high, low, modules=MODULES, strategy=order, concurrency=1):
        low.enqueue(ordered.hold)
        jobs.wait_seen(1)
        fill(high, 50)
        fill(low, 50)
        before = commands(direct)
        for _ in range(25):
            fill(high, 1)
            time.sleep(0.1)
        made = commands(direct) - before
        print(f"{made} commands")
        assert made < 500, "a loop that does not wait sends thousands"
        jobs.gate.set()


# -- who hears of it


def test_a_full_worker_passes_a_wakeup_on_to_one_that_is_idle(
    high: Queue, low: Queue, witness: Witness
) -> None:
    with at_work(high, low, modules=MODULES, concurrency=1):
        low.enqueue(ordered.hold)
        jobs.wait_seen(1)
        with at_work(high, modules=MODULES):
            for i in range(5):
                job = high.enqueue(ordered.mark)
                jobs.wait_seen(2 + i)
                assert witness.lateness(job.refresh()) < HORIZON / 4
            jobs.gate.set()


@pytest.mark.parametrize("delay", [0, 0.4])
def test_and_a_deadline_that_it_cannot_keep(
    high: Queue, low: Queue, direct: redis.Redis, delay: float, witness: Witness
) -> None:
    """Two workers had a deadline when the job is due, and then were filled by the other queue."""
    with at_work_many(2, high, low, concurrency=1):
        eventually(lambda: len(high.workers()) == 2)
        job = high.enqueue(ordered.mark, delay=6)
        by = job.due.timestamp() + 0.1
        eventually(lambda: direct.zcount(high.keys["keep"], "-inf", by * 1e6) == 2)
        low.enqueue(ordered.hold, delay=delay)
        low.enqueue(ordered.hold, delay=delay)
        jobs.wait_seen(2)
        with at_work(high, modules=MODULES):
            jobs.wait_seen(3)
            lateness = witness.lateness(job.refresh())
            print(f"{lateness * 1e3:.1f} ms late")
            assert lateness < HORIZON / 5
            jobs.gate.set()


def test_a_queue_whose_turn_it_is_not_is_left_to_others(
    high: Queue, low: Queue, witness: Witness
) -> None:
    """A strict worker that heard of a lower job, and takes higher ones, tells who is idle."""
    with at_work(high, low, modules=MODULES, concurrency=1), at_work(low, modules=MODULES):
        for i in range(5):
            fill(high, 50)
            job = low.enqueue(ordered.mark)
            jobs.wait_seen(51 * (i + 1))
            assert witness.lateness(job.refresh()) < HORIZON / 4


@pytest.mark.parametrize("order", ["strict", "fair"])
def test_beside_a_suspect_nothing_is_claimed_from_another_queue(
    high: Queue, low: Queue, direct: redis.Redis, order: Any
) -> None:
    suspect = high.enqueue(ordered.alone)
    due = high.keys.names["due"]
    direct.zadd(due[DUE_SETS.index("alone")], {suspect.id: direct.zscore(due[4], suspect.id) or 0})
    direct.zrem(due[4], suspect.id)
    fill(low, 10)
    assert burst(high, low, modules=MODULES, strategy=order) == 11
    assert jobs.seen == ["alone", "over"] + ["low"] * 10


# -- what may be asked for


@pytest.mark.parametrize(
    ("order", "match"),
    [
        ("unfair", "strategy must be 'strict', 'fair', or a weight"),
        ({"high": 6, "low": 1, "lwo": 1}, "'lwo', which is none of the worker's queues"),
        ({"high": 6}, "no weight to 'low'"),
        ({"high": 6, "low": 0}, "whole number from 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(order: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Worker(["high", "low"], url="redis://127.0.0.1:1", strategy=order)


def test_a_queue_given_twice_is_one(high: Queue) -> None:
    fill(high, 3)
    assert burst(high, high, modules=MODULES, strategy={"high": 2}) == 3
