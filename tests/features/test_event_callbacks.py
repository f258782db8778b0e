"""Callbacks for a queue's events: called, ended, and never in each other's way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue as queues
import threading

import pytest

from bide import AsyncQueue, Event, Queue, UsageError
from tests.support import jobs
from tests.support.event_helpers import kinds, listens
from tests.support.workers import burst, eventually


def test_a_function_is_called_with_what_it_wants_and_raises_in_vain(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    got: queues.Queue[Event] = queues.Queue()

    def callback(event: Event) -> None:
        got.put(event)
        raise ValueError("a bug")

    listening = queue.on(["completed", "failed"], callback)
    for n in (1, 2):
        queue.enqueue(jobs.add, 1, n)
    burst(queue)
    assert kinds([got.get(timeout=90), got.get(timeout=90)]) == ["completed"] * 2
    listening.stop()
    listening.stop()
    assert [r.getMessage()[:30] for r in caplog.records if r.name == "bide.model.events"] == [
        "the callback for completed of "
    ] * 2
    assert not listens(queue)
    queue.enqueue(jobs.add, 1, 3)
    burst(queue)
    assert got.empty()


def test_closing_the_queue_ends_what_listens(queue: Queue) -> None:
    for _ in range(3):
        queue.on("added", print)
    mine = [t for t in threading.enumerate() if t.name == "bide-events"]
    assert len(mine) == 3
    assert all(thread.daemon for thread in mine)
    queue.close()
    assert not any(thread.is_alive() for thread in mine)
    assert not listens(queue)


def test_a_callback_may_stop_its_own_listening(queue: Queue) -> None:
    got: list[Event] = []

    def callback(event: Event) -> None:
        got.append(event)
        listening.stop()

    listening = queue.on("added", callback)
    queue.enqueue(jobs.add, 1, 1, delay=60)
    eventually(lambda: not listens(queue))
    queue.enqueue(jobs.add, 1, 2, delay=60)
    assert len(got) == 1


def test_callbacks_that_close_the_queue_wait_for_nobody(queue: Queue) -> None:
    """Each would wait for the other to end."""
    both = threading.Barrier(2, timeout=90)

    def callback(event: Event) -> None:
        both.wait()
        queue.close()

    for _ in range(2):
        queue.on("added", callback)
    mine = [t for t in threading.enumerate() if t.name == "bide-events"]
    with contextlib.closing(Queue("work", url=queue.url)) as producer:  # whom no close cuts off
        producer.enqueue(jobs.add, 1, 1, delay=60)
    for thread in mine:
        thread.join(60)
        assert not thread.is_alive()
    queue.close()
    assert not listens(queue)


def test_a_gap_before_what_a_callback_wants_is_logged(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    got: queues.Queue[Event] = queues.Queue()
    with caplog.at_level(logging.WARNING, "bide.model.events"):
        queue.on("added", got.put, after="1-1")
        queue.enqueue(jobs.add, 1, 1, delay=60)
        assert got.get(timeout=90).kind == "added"
    assert "were lost" in caplog.text
    queue.on(("gap", "added"), got.put, after="1-1")
    assert got.get(timeout=90).kind == "gap"


def test_a_callback_must_be_a_function_and_wants_kinds(one_url: str) -> None:
    queue = Queue("work", url=one_url)
    with pytest.raises(UsageError, match="must be a function that takes an event"):
        queue.on("added", 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs at least one kind"):
        queue.on(None, print)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"must be names of events, such as 'completed', not <"):
        queue.on(print, "completed")  # type: ignore[arg-type]
    assert not listens(queue)


# -- on an event loop


def test_a_callback_may_close_the_queue(queue: Queue) -> None:
    async def main() -> None:
        mail = AsyncQueue("work", url=queue.url)
        closed = asyncio.Event()

        async def callback(event: Event) -> None:
            await mail.close()
            await asyncio.sleep(0)  # it goes on to its end
            closed.set()

        listening = await mail.on("added", callback)
        await mail.enqueue(jobs.add, 1, 1, delay=60)
        await asyncio.wait_for(closed.wait(), 60)
        await asyncio.wait_for(asyncio.wait([listening._task]), 60)
        await mail.close()

    asyncio.run(main())
    assert not listens(queue)


def test_a_listener_stopped_on_its_loop(queue: Queue) -> None:
    async def main() -> None:
        mail = AsyncQueue("work", url=queue.url)
        stopped = asyncio.Event()

        async def callback(event: Event) -> None:
            stopped.set()
            await listening.stop()

        listening = await mail.on("added", callback)
        await mail.enqueue(jobs.add, 1, 1, delay=60)
        await asyncio.wait_for(stopped.wait(), 60)
        other = await mail.on("added", print)
        await other.stop()
        assert other._task.done()
        await mail.close()

    asyncio.run(main())
    assert not listens(queue)
