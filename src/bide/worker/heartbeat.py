"""Saying every ten seconds that the worker lives, for `bide info`; correctness needs none of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from bide import aio
from bide.errors import BideError
from bide.keys import Keys
from bide.ops.registry import About, heartbeat

EVERY: Final = 10.0


async def beat(client: aio.Client, keys: Keys, worker: str, about: About) -> None:
    """Beat until cancelled."""
    while True:
        with contextlib.suppress(BideError):
            await client.run(heartbeat(keys, worker, about))
        await asyncio.sleep(EVERY)
