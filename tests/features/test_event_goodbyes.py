"""Who stops listening while the server is away is not held up by it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from bide import AsyncQueue, Queue, UsageError
from bide.embedded import Server
from tests.support.cpu_waits import Witness
from tests.support.event_helpers import kinds, listens

Start = Callable[..., Server]


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """A server that takes connections and answers nothing."""
    pid = server._process.pid if server._process else 0
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def calls(server: Server) -> int:
    """How many scripts the server was asked for since it began."""
    with redis.Redis.from_url(server.url) as raw:
        stats: Any = raw.info("commandstats")
    return sum(
        int(stats.get(f"cmdstat_{verb}", {}).get("calls", 0)) for verb in ("evalsha", "script|load")
    )


def test_all_goodbyes_of_a_queue_together_take_about_a_second(
    tmp_server: Start, witness: Witness
) -> None:
    server = tmp_server()
    queue = Queue("work", url=server.url)
    for _ in range(5):
        queue.on("added", print)
    with frozen(server), witness.within(4):
        queue.close()


def test_a_context_that_ends_says_goodbye_once(tmp_server: Start, witness: Witness) -> None:
    server = tmp_server()
    queue = Queue("work", url=server.url)
    events = queue.events()
    events.__enter__()
    with frozen(server), witness.within(3):
        events.__exit__()


@pytest.mark.slow
def test_awaited_goodbyes_take_about_a_second(tmp_server: Start, witness: Witness) -> None:
    server = tmp_server()

    async def main() -> None:
        mail = AsyncQueue("work", url=server.url)
        for _ in range(5):
            await mail.on("added", print)
        events = mail.events()
        await events.__aenter__()
        with frozen(server), witness.within(4):
            await events.__aexit__()
            await mail.close()

    asyncio.run(main())


def test_one_that_had_no_answer_says_no_goodbye(tmp_server: Start) -> None:
    server = tmp_server()
    with Queue("work", url=server.url).events(timeout=0) as events:
        server.kill()
        assert [*events] == []
        server.restart()
    assert calls(server) == 0

    async def main() -> None:
        async with AsyncQueue("work", url=server.url).events(timeout=0) as events:
            server.kill()
            assert [event async for event in events] == []
            server.restart()

    asyncio.run(main())
    assert calls(server) == 0


def test_events_that_are_read_already_are_not_entered_again(queue: Queue) -> None:
    events = queue.events(timeout=0)
    with events:
        with pytest.raises(UsageError, match="are being read already"), events:
            pass
        assert [*events] == []
    assert not listens(queue)
    with events:
        assert kinds([*events]) == ["gap"], "nobody held it open meanwhile"

    async def main() -> None:
        mail = AsyncQueue("work", url=queue.url)
        events = mail.events(timeout=0)
        async with events:
            with pytest.raises(UsageError, match="are being read already"):
                await events.__aenter__()
            assert [event async for event in events] == []
        await mail.close()

    asyncio.run(main())
    assert not listens(queue)
