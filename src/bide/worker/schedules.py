"""Schedules, as a worker serves them: it sets what its modules declare, and sends times ahead.

No worker has to be the one that fires: claims do that. But what a cron expression means, no script
can tell; so a claim that finds few of its times left says so, and who hears it sends more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from bide import aio
from bide.errors import BideError, CannotSave, ServerFull
from bide.keys import Keys
from bide.logs import Log
from bide.ops.schedules import read_schedules, refills, set_schedule
from bide.payload.signing import Keyring, Seal
from bide.queue.schedules import declared

log = Log("bide.worker")


async def set_declared(client: aio.Client, queues: Sequence[Keys], keyring: Keyring | None) -> None:
    """Set the schedules that modules of this process have declared for these queues.

    Raises:
        BideError: the server could not be reached, or one cannot be set.
    """
    drafts = [
        (keys, plan.draft(keys, Seal(keyring, keys)))
        for keys in queues
        for plan in declared(keys.queue or "")
    ]
    came = await client.attempt_many([set_schedule(keys, draft) for keys, draft in drafts])
    for (keys, draft), reply in zip(drafts, came, strict=True):
        if isinstance(reply, ServerFull | CannotSave):  # what is there goes on as it is
            log.warning("schedule %s of queue %s: %s", draft.name, keys.queue, reply)
        elif isinstance(reply, BideError):
            raise reply
        elif reply.is_changed and reply.schedule is not None:
            next_at = reply.schedule.next
            first = f"next at {next_at:%F %T} UTC" if next_at else "not to fire"
            log.info("schedule %s of queue %s is set, %s", draft.name, keys.queue, first)


class Refills:
    """Sends schedules more of their times, beside what else the worker does."""

    def __init__(self, client: aio.Client) -> None:
        self._client = client
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._told: Final[set[str]] = set()

    def send(self, keys: Keys, names: Sequence[str]) -> None:
        """Begin to send these schedules more times, those for which it has not begun yet."""
        for name in names:
            where = (keys["meta"], name)
            if where not in self._tasks:
                self._tasks[where] = task = asyncio.create_task(self._send(keys, name))
                task.add_done_callback(partial(self._sent, where))

    async def close(self) -> None:
        """Wait for what is being sent."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _send(self, keys: Keys, name: str) -> None:
        try:
            page = await self._client.run(read_schedules(keys, [name]))
            await self._client.run_many(refills(keys, page))
        except BideError as error:  # a claim will ask again
            said = f"schedule {name} of queue {keys.queue} gets no more times: {error}"
            if said not in self._told:
                self._told.add(said)
                log.warning("%s", said)

    def _sent(self, where: tuple[str, str], task: asyncio.Task[None]) -> None:
        del self._tasks[where]
