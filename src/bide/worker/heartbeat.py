"""A worker reports every ten seconds that it is alive. Nothing depends on this for correctness.

The report is for those who look, and the reply says whether the worker is to stop. With it, the
worker registers its queues again, in case somebody removed the list of queues. If the server has
lost its scripts, the worker loads the scripts that viewers call: viewers have no permission to load
them. What the worker runs is in the report for older releases and for users who may not read all
queues: see `bide.ops.holders`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from bide import aio
from bide.connection import GOODBYE
from bide.errors import BideError
from bide.keys import Keys
from bide.ops.consume import leave
from bide.ops.registry import EVERY, About, heartbeat, register
from bide.rights import SCRIPTS

AGAIN: Final = 1.0
"""Seconds before a heartbeat that failed is sent again."""


async def beat(
    client: aio.Client,
    keys: Keys,
    queues: Sequence[Keys],
    worker: str,
    about: Callable[[float | None], About],
    beaten: Callable[[], None],
    stop: Callable[[], None],
    over: asyncio.Event,
) -> None:
    """Beat until it is over, and the server has answered the last.

    One that nobody waits for any more could arrive, over its own connection, behind the goodbye.

    Args:
        client: of the server.
        keys: those that no queue owns.
        queues: those that it serves.
        worker: its name.
        about: what it says of itself, given how far its clock is ahead of the server's.
        beaten: called each time the server has taken note.
        stop: called once, when someone wants it to stop.
        over: set when the worker has stopped.
    """
    skew: float | None = None
    asked = False
    missed = -1
    names = [str(each.queue) for each in queues]
    while not over.is_set():
        pause = AGAIN
        with contextlib.suppress(BideError):
            before = time.time()
            calls = (heartbeat(keys, worker, about(skew)), register(keys, names))
            pulse, _ = await client.attempt_many(calls)
            if isinstance(pulse, BideError):
                raise pulse
            beaten()
            pause = EVERY
            skew = (before + time.time()) / 2 - pulse.now_us / 1e6
            if pulse.stop and not asked:
                asked = True
                stop()
            if client.missed_scripts != missed:
                before_load = client.missed_scripts
                await client.load_everywhere(SCRIPTS["viewer"])
                missed = before_load
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await over.wait()


async def say_goodbye(
    client: aio.Client,
    keys: Keys,
    queues: Sequence[Keys],
    worker: str,
    beating: asyncio.Task[None],
) -> None:
    """Drop what the server remembers of a worker; if it cannot be said, it is forgotten."""
    goodbye = [leave(each, worker) for each in queues]
    with contextlib.suppress(BideError, TimeoutError):
        async with asyncio.timeout(GOODBYE):
            await asyncio.wait([beating])
            await client.run_many([*goodbye, heartbeat(keys, worker, None)])
