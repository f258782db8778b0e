"""What a worker says and asks when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from bide import aio
from bide.errors import BideError, CannotSave, ServerUnavailable, TooOld, UsageError
from bide.keys import Keys
from bide.logs import Log
from bide.ops.registry import Beginning, begin, register
from bide.payload.signing import Keyring
from bide.refusals import may_pass
from bide.worker.again import SAY_EVERY, pause_after
from bide.worker.schedules import set_declared

log = Log("bide.worker")

SCRIPTS: Final = ("note", "settle", "claim", "extend", "leave")
"""What a worker calls while it serves."""


async def begin_with(
    client: aio.Client,
    everywhere: Keys,
    queues: Sequence[Keys],
    allow_eviction: bool,
    keyring: Keyring | None = None,
    *,
    waits: bool,
) -> None:
    """Note that the queues are in use, and set the schedules that are declared for them.

    Args:
        client: of the server.
        everywhere: the keys that no queue owns.
        queues: the keys of each queue.
        allow_eviction: whether the server may drop keys when its memory is full.
        keyring: what signs the jobs of schedules.
        waits: whether to try again until the server can be reached.

    Raises:
        ServerUnavailable: the server could not be reached, and it is not to be waited for, or
            waiting does not help: its certificate is not trusted, for instance.
        UsageError, TooOld, BideError: as of `_begin`.
    """
    failures = 0
    while True:
        try:
            return await _begin(client, everywhere, queues, allow_eviction, keyring)
        except ServerUnavailable as error:
            if not waits or not may_pass(error):
                raise
            if failures % SAY_EVERY == 0:
                log.warning("%s Trying again until it works.", error)
        failures += 1
        await asyncio.sleep(pause_after(failures))


async def _begin(
    client: aio.Client,
    everywhere: Keys,
    queues: Sequence[Keys],
    allow_eviction: bool,
    keyring: Keyring | None,
) -> None:
    """Begin, or not at all; a repeat changes nothing.

    Raises:
        ServerUnavailable: the server could not be reached.
        UsageError: one of them holds data: all of it would fail; or its server drops keys when its
            memory is full, and that was not allowed.
        TooOld: one of them was laid out by a newer bide.
    """
    # Of calls that share a round trip, one whose script the server does not know would be sent
    # again, behind the others: notes and outcomes go ahead of claims. And what is read now need not
    # be read when no file can be opened, or is another version's.
    await client.load(SCRIPTS, [keys["meta"] for keys in queues])
    noting = register(everywhere, [str(keys.queue) for keys in queues])
    noted, *begun = await client.attempt_many([noting, *map(begin, queues)])
    for keys, found in zip(queues, begun, strict=True):
        if isinstance(found, TooOld):
            raise found
        if not isinstance(found, Beginning):  # if it is refused, the loop says so
            continue
        if found.is_data:
            raise UsageError(
                f"Queue {keys.queue} is a delay queue: it holds data, which no worker can run; "
                "name another queue, or take what it holds with a DelayQueue."
            )
        if not allow_eviction:
            _check_policy(client.where, found.policy)
    # It will pass, and producers note their queues, too. The list may be on another node.
    if isinstance(noted, CannotSave | ServerUnavailable):
        log.warning("%s", noted)
    elif isinstance(noted, BideError):
        raise noted
    await set_declared(client, queues, keyring)


def _check_policy(where: str, policy: str | None) -> None:
    """Refuse a server that forgets jobs rather than to refuse new ones."""
    if policy is None:
        log.info("whether %s drops jobs when it is full is not known: INFO is denied", where)
    elif policy != "noeviction":
        raise UsageError(
            f"The server at {where} would drop jobs without a word when its memory is full "
            f"(maxmemory-policy {policy}); set maxmemory-policy noeviction, or accept that with "
            "--allow-eviction or Worker(..., allow_eviction=True)."
        )
