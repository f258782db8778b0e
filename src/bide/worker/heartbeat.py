"""What a worker says every ten seconds, for those who look; correctness needs none of it.

It says that it lives, and hears whether it is to stop. It notes again which queues it serves, so
that their list is whole again if somebody removed it. And where the server has lost its scripts, it
loads those that viewers call, who may not.
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
from bide.ops.registry import About, heartbeat, register
from bide.rights import SCRIPTS

EVERY: Final = 10.0


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
    loads = -1
    names = [str(each.queue) for each in queues]
    while not over.is_set():
        with contextlib.suppress(BideError):
            before = time.time()
            calls = (heartbeat(keys, worker, about(skew)), register(keys, names))
            pulse, _ = await client.run_many(calls)
            beaten()
            skew = (before + time.time()) / 2 - pulse.now_us / 1e6
            if pulse.stop and not asked:
                asked = True
                stop()
            if client.loads != loads:
                loads = client.loads
                await client.load(
                    SCRIPTS["viewer"], [keys["workers"], *(q["meta"] for q in queues)]
                )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVERY):
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
