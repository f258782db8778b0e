"""A blocking queue that is called on an event loop stops the loop, and says so once."""

from __future__ import annotations

import asyncio
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import closing

import pytest

from bide import AsyncQueue, DelayQueue, Queue, testing
from bide.queue import binding
from tests.support import jobs

TEXT = "The blocking queue '(work|pile)' was called on an event loop"


@pytest.fixture(autouse=True)
def _nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(binding, "_has_warned", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


async def look(queue: Queue) -> None:
    """Call it on this event loop, several times."""
    for _ in range(2):
        queue.enqueue(jobs.add, 1)
        queue.counts()


def test_it_is_said_once_and_where(queue: Queue) -> None:
    with pytest.warns(RuntimeWarning, match=TEXT) as caught:
        asyncio.run(look(queue))
    (warning,) = caught
    assert warning.filename == __file__
    asyncio.run(look(queue))


def test_also_of_a_job_and_of_a_queue_of_data(queue: Queue) -> None:
    job = queue.enqueue(jobs.add, 1)

    async def read() -> None:
        job.refresh()

    with pytest.warns(RuntimeWarning, match=TEXT):
        asyncio.run(read())
    binding._has_warned = False

    async def push() -> None:
        with closing(DelayQueue("pile", url=queue.url)) as pile:
            pile.push(1)

    with pytest.warns(RuntimeWarning, match=TEXT):
        asyncio.run(push())


def test_nothing_is_said_where_no_loop_waits(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue(jobs.add, 1)

    async def beside() -> None:
        awaited = AsyncQueue(queue.name, url=queue.url)
        await asyncio.to_thread(queue.enqueue, jobs.add, 1)
        assert (await awaited.counts()).waiting == 2
        await awaited.close()

    asyncio.run(beside())
    with testing.eager():
        asyncio.run(look(Queue("elsewhere")))
    with testing.start():
        asyncio.run(look(Queue("elsewhere")))
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    asyncio.run(look(queue))
