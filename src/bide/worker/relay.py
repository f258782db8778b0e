"""Telling other queues how jobs have ended that theirs wait for, and asking them the same.

What is to be told stands on the server from the script on that ended the job, and is taken off only
when the other queue has taken note. So whoever dies in between, the next claim of any worker finds
it, and it is told again: who has been told already, changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from bide.client import aio
from bide.errors import BideError
from bide.logs import Log
from bide.protocol.command import Command
from bide.protocol.commands.dependencies import (
    MOST_POST,
    DependencyMessage,
    read_outbox,
    resolve,
    subscribe,
)
from bide.protocol.keys import Keys, keys_of

log = Log("bide.worker")

REST: Final = 2.0
"""Seconds before what could not be told is tried again."""


class DependencyRelay:
    """Delivers beside what else the worker does."""

    def __init__(self, client: aio.AsyncClient, told: Callable[[set[str]], None]) -> None:
        """Set up.

        Args:
            client: of the server.
            told: called with the names of the queues that have been told something.
        """
        self._client = client
        self._told = told
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        """Where more was found while what had been found before was under way."""
        self._rests: dict[str, float] = {}
        self._said: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether something is being delivered."""
        return bool(self._tasks)

    def submit(self, keys: Keys) -> None:
        """Deliver what a queue has for others: now, or once more behind what is under way."""
        where = keys["meta"]
        if where in self._tasks:
            self._again.add(where)  # what is under way may have read before this came
        elif time.monotonic() >= self._rests.get(where, 0.0):
            self._tasks[where] = task = asyncio.create_task(self._deliver(keys))
            task.add_done_callback(partial(self._delivered, keys))

    async def close(self) -> None:
        """Wait for what is being delivered."""
        while self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _delivered(self, keys: Keys, task: asyncio.Task[None]) -> None:
        where = keys["meta"]
        del self._tasks[where]
        if where in self._again:
            self._again.remove(where)
            self.submit(keys)
        self._told(set())

    async def _deliver(self, keys: Keys) -> None:
        try:
            done: Sequence[str] = ()
            after, is_last = "-", False
            while not is_last:
                letters = await self._client.run(read_outbox(keys, after, done))
                done = await self._send(keys, letters)
                is_last = len(letters) < MOST_POST
                after = letters[-1].stored if letters else after
                if len(done) < len(letters):
                    self._rests[keys["meta"]] = time.monotonic() + REST
            if done:
                await self._client.run(read_outbox(keys, after, done))
        except BideError as error:
            self._rests[keys["meta"]] = time.monotonic() + REST
            self._say(keys, error)

    async def _send(self, keys: Keys, letters: Sequence[DependencyMessage]) -> list[str]:
        """Tell and ask; which of the letters are done with."""
        asked: defaultdict[str, list[DependencyMessage]] = defaultdict(list)
        told: defaultdict[str, list[DependencyMessage]] = defaultdict(list)
        for letter in letters:
            (asked if letter.asks else told)[letter.queue].append(letter)
        if not letters:
            return []
        here = f"{{{keys.queue}}}"
        commands: list[Command[Any]] = []
        for queue, some in told.items():
            news = [(letter.child, here + letter.parent, letter.outcome) for letter in some]
            commands.append(resolve(keys_of(queue, keys.prefix), news))
        for queue, some in asked.items():
            pairs = [(here + letter.child, letter.parent) for letter in some]
            commands.append(subscribe(keys_of(queue, keys.prefix), pairs))
        replies = await self._client.attempt_many(commands)
        done: list[str] = []
        reached = set()
        for (queue, some), reply in zip(told.items(), replies, strict=False):
            if isinstance(reply, BideError):
                self._say(keys, reply)
            else:
                done += [letter.stored for letter in some]
                reached.add(queue)
        for some, reply in zip(asked.values(), replies[len(told) :], strict=True):
            if isinstance(reply, BideError):
                self._say(keys, reply)
            elif len(reply) == len(some):
                done += await self._note(keys, some, reply)
                reached.add(keys.queue or "")
        self._told(reached)
        return done

    async def _note(
        self, keys: Keys, asked: Sequence[DependencyMessage], said: Sequence[str]
    ) -> list[str]:
        """Take note of what another queue has said of its jobs."""
        news = [
            (letter.child, f"{{{letter.queue}}}{letter.parent}", word if word in "CFX" else "X")
            for letter, word in zip(asked, said, strict=True)
            if word != "-"
        ]
        if news:
            await self._client.run(resolve(keys, news))
        return [letter.stored for letter in asked]

    def _say(self, keys: Keys, error: BideError) -> None:
        text = f"queue {keys.queue}: what other queues wait for could not be told: {error}"
        if text not in self._said:
            self._said = {text}
            log.warning("%s", text)
