"""Listeners for wake-up messages and for requests to cancel a job.

A listener for wake-up messages blocks on a connection while the worker considers a queue empty. A
request to cancel may be lost, because each reply to the renewal of a lease repeats it.
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
            heard: called in the loop's thread with the name of the sender of the wake-up message.
        """
        self._client = aio.AsyncClient(url, reply_timeout=_MARGIN)
        self._key = wake_key
        self._heard = heard
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def listen(self, wanted: bool) -> None:
        """Listen; or if not `wanted`, finish the current call and pause."""
        if not wanted:
            self._wanted.clear()
        elif not self._wanted.is_set():
            self._wanted.set()
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        """Stop immediately. A wake-up message that arrives now is lost, as any of them may be."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _listen(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                message = await self._client.pop([self._key], HINT_WAIT)
            except Exception:
                # Claims meet the same error and report it. Here only wake-up messages are lost; one
                # may have been on its way.
                await asyncio.sleep(random.uniform(0.1, 1.0))
                self._heard("-")
                continue
            if message is not None:
                self._heard(message[1])


async def listen(
    client: aio.AsyncClient, channels: Sequence[str], heard: Callable[[str, str], None]
) -> None:
    """Listen on pub/sub channels until cancelled.

    Args:
        client: of the server.
        channels: the channels of the queues that the worker serves.
        heard: called with the channel and the job's id, because two queues may share an id.
    """
    async with client.listen(*channels) as listener:
        while True:
            message = await listener.next()
            if message is not None:
                heard(*message)
