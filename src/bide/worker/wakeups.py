"""Hearing wake hints: a connection that blocks while the worker takes a queue to be empty.

The message is a hint: the answer to every renewal of a lease says the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from bide.client import aio
from bide.client.url import HINT_WAIT

_MARGIN: Final = 3.0


class SharedListener:
    """Listens on the wake list of one queue."""

    def __init__(self, url: str, wake_key: str, heard: Callable[[str], None]) -> None:
        """Set up.

        Args:
            url: the server.
            wake_key: the list to listen on.
            heard: called in the loop's thread with who pushed the hint.
        """
        self._client = aio.AsyncClient(url, reply_timeout=_MARGIN)
        self._key = wake_key
        self._heard = heard
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def listen(self, wanted: bool) -> None:
        """Listen, or finish the call under way and then no more."""
        if not wanted:
            self._wanted.clear()
        elif not self._wanted.is_set():
            self._wanted.set()
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        """Stop at once. A hint that is just arriving is lost, as any hint may be."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _listen(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                hint = await self._client.pop([self._key], HINT_WAIT)
            except Exception:
                # The claims meet the same trouble and report it; here it only costs hints, of which
                # one may have been under way.
                await asyncio.sleep(random.uniform(0.1, 1.0))
                self._heard("-")
                continue
            if hint is not None:
                self._heard(hint[1])


async def listen(
    client: aio.AsyncClient, channels: Sequence[str], ask: Callable[[str, str], None]
) -> None:
    """Listen until cancelled.

    Args:
        client: of the server.
        channels: of the queues that the worker serves.
        ask: called with the channel and the id of the job: ids are each queue's own.
    """
    async with client.listen(*channels) as listener:
        while True:
            said = await listener.next()
            if said is not None:
                ask(*said)
