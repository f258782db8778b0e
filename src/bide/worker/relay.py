"""Relays beside a worker: of outcomes to other queues, and of an application's outbox.

The script that ends a job stores the message for jobs that depend on it, in other queues, in an
outbox on the server. The message is removed only when the other queue has recorded it. If a worker
dies in between, the next claim of any worker finds the message and delivers it again. A queue that
already recorded it ignores the repeat.

The outbox of an application is a table of its database. It is named by the module and the variable
that hold it, `shop.db:outbox`. bide's own are in `bide.contrib`, which a worker does not import by
itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from bide.client import aio
from bide.errors import BideError, ServerRefused, UsageError
from bide.logs import Log
from bide.protocol.commands import Command
from bide.protocol.commands.enqueue import (
    MOST_POST,
    DependencyMessage,
    read_outbox,
    resolve,
    subscribe,
)
from bide.protocol.keys import Keys, keys_of
from bide.tasks.task import import_module

log = Log("bide.worker")

REST: Final = 2.0
"""Seconds before a failed delivery is retried."""


class DependencyRelay:
    """Delivers in background tasks."""

    def __init__(self, client: aio.AsyncClient, reached: Callable[[set[str]], None]) -> None:
        """Set up; `reached` is called with the names of the queues that received something."""
        self._client = client
        self._reached = reached
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        """Queues for which more was found while a delivery was under way."""
        self._rests: dict[str, float] = {}
        self._logged: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether a delivery is under way."""
        return bool(self._tasks)

    def submit(self, keys: Keys) -> None:
        """Deliver the messages of a queue: now, or again after the delivery under way."""
        where = keys["meta"]
        if where in self._tasks:
            self._again.add(where)  # the delivery under way may have read before this came
        elif time.monotonic() >= self._rests.get(where, 0.0):
            self._tasks[where] = task = asyncio.create_task(self._deliver(keys))
            task.add_done_callback(partial(self._delivered, keys))

    async def close(self) -> None:
        """Wait for the deliveries under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _delivered(self, keys: Keys, task: asyncio.Task[None]) -> None:
        where = keys["meta"]
        del self._tasks[where]
        if where in self._again:
            self._again.remove(where)
            self.submit(keys)
        self._reached(set())

    async def _deliver(self, keys: Keys) -> None:
        try:
            done: Sequence[str] = ()
            after, is_last = "-", False
            while not is_last:
                messages = await self._client.run(read_outbox(keys, after, done))
                done = await self._send(keys, messages)
                is_last = len(messages) < MOST_POST
                after = messages[-1].stored if messages else after
                if len(done) < len(messages):
                    self._rests[keys["meta"]] = time.monotonic() + REST
            if done:
                await self._client.run(read_outbox(keys, after, done))
        except BideError as error:
            self._rests[keys["meta"]] = time.monotonic() + REST
            self._log_once(keys, error)

    async def _send(self, keys: Keys, messages: Sequence[DependencyMessage]) -> list[str]:
        """Send outcomes and subscriptions; return the messages that can be removed."""
        questions: defaultdict[str, list[DependencyMessage]] = defaultdict(list)
        outcomes: defaultdict[str, list[DependencyMessage]] = defaultdict(list)
        for message in messages:
            (questions if message.asks else outcomes)[message.queue].append(message)
        if not messages:
            return []
        here = f"{{{keys.queue}}}"
        commands: list[Command[Any]] = []
        for queue, some in outcomes.items():
            ended = [(message.child, here + message.parent, message.outcome) for message in some]
            commands.append(resolve(keys_of(queue, keys.prefix), ended))
        for queue, some in questions.items():
            pairs = [(here + message.child, message.parent) for message in some]
            commands.append(subscribe(keys_of(queue, keys.prefix), pairs))
        replies = await self._client.attempt_many(commands)
        done: list[str] = []
        reached = set()
        for (queue, some), reply in zip(outcomes.items(), replies, strict=False):
            if isinstance(reply, BideError):
                self._log_once(keys, reply)
            else:
                done += [message.stored for message in some]
                reached.add(queue)
        for some, reply in zip(questions.values(), replies[len(outcomes) :], strict=True):
            if isinstance(reply, BideError):
                self._log_once(keys, reply)
            elif len(reply) == len(some):
                done += await self._note(keys, some, reply)
                reached.add(keys.queue or "")
        self._reached(reached)
        return done

    async def _note(
        self, keys: Keys, questions: Sequence[DependencyMessage], outcomes: Sequence[str]
    ) -> list[str]:
        """Record the outcomes that another queue returned for its jobs."""
        ended = [
            (message.child, f"{{{message.queue}}}{message.parent}", word if word in "CFX" else "X")
            for message, word in zip(questions, outcomes, strict=True)
            if word != "-"
        ]
        if ended:
            await self._client.run(resolve(keys, ended))
        return [message.stored for message in questions]

    def _log_once(self, keys: Keys, error: BideError) -> None:
        text = f"queue {keys.queue}: outcomes could not be sent to other queues: {error}"
        if text not in self._logged:
            self._logged = {text}
            log.warning("%s", text)


# -- the outbox of an application


class OutboxRow(NamedTuple):
    """A row that has not been sent."""

    number: int
    queue: str
    verb: str
    """The change: `enqueue`, `push`, `cancel`, `cancel-waiting`, `reschedule` or `promote`."""
    job_id: str
    written: datetime
    """When it was written, by the clock of the database."""
    tries: int
    """How often it was tried, if the server answered."""
    refused: bool
    """Whether it stays until someone retries or deletes it."""
    error: str | None
    """The last error, if the server answered with one."""


class OutboxStats(NamedTuple):
    """The rows that have not been sent."""

    waiting: int
    """Rows that will be sent."""
    refused: int
    """Rows that stay until someone retries or deletes them."""
    age: float
    """Seconds since the oldest waiting row was written; 0 without one."""


class OutboxLike(Protocol):
    """The part of an outbox that a worker and the command line use."""

    def relay(self, *, burst: bool = False, stop: threading.Event | None = None) -> int:
        """Send the rows that were left; return their number."""
        raise NotImplementedError

    async def arelay(self) -> int:
        """Do as `relay`, beside a worker."""
        raise NotImplementedError

    def stats(self) -> OutboxStats:
        """Count the rows."""
        raise NotImplementedError

    def list_rows(self, limit: int = 50, *, refused: bool = False) -> list[OutboxRow]:
        """Return the oldest rows; with `refused`, only those."""
        raise NotImplementedError

    def retry_rows(self, numbers: Sequence[int] | None = None) -> int:
        """Have refused rows sent again, all or some; return their number."""
        raise NotImplementedError

    def delete_rows(self, numbers: Sequence[int]) -> int:
        """Remove rows without sending them; return their number."""
        raise NotImplementedError

    def check_ready(self) -> None:
        """Raise UsageError if the outbox cannot relay."""
        raise NotImplementedError


@contextmanager
def explained() -> Iterator[None]:
    """Convert an error of the application's database to bide's, without its statement."""
    try:
        yield
    except Exception as error:
        if (problem := database_problem(error)) is None:
            raise
        raise ServerRefused(problem) from error


def database_problem(error: Exception) -> str | None:
    """Return the sentence for an error of the application's database; None for another error."""
    cause = getattr(error, "orig", None)  # as SQLAlchemy's errors have it
    repair = "create the outbox's tables in it"
    if type(error).__module__ == "django.db.utils":
        cause, repair = error, "run `manage.py migrate`"
    if cause is None:
        return None
    told = " ".join(str(cause).split())
    return f"The database of the outbox cannot be used ({told}); start it, and {repair}."


def load_outbox(path: str) -> OutboxLike:
    """Import an outbox that can relay.

    Raises:
        UsageError: `path` does not name an outbox, or it has no engine.
        TaskNotFound: the module cannot be imported.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise UsageError(f"{path!r} does not name an outbox; write it as shop.db:outbox.")
    found: Any = getattr(import_module(module), name, None)
    if not hasattr(found, "check_ready"):
        what = "has no variable" if found is None else "holds no outbox in the variable"
        raise UsageError(
            f"The module {module!r} {what} {name!r}; name the variable of an Outbox(...) of "
            "bide.contrib.sqlalchemy or bide.contrib.django.outbox."
        )
    outbox: OutboxLike = found
    outbox.check_ready()
    return outbox


def outbox_beside(path: str, burst: bool) -> Callable[[], Coroutine[Any, Any, Any]] | None:
    """Return the coroutine function that relays beside a worker; in a burst, relay before it.

    Raises:
        UsageError: see `load_outbox`.
        ServerRefused: in a burst, the database cannot be used.
    """
    outbox = load_outbox(path)
    if not burst:
        return outbox.arelay
    with explained():
        outbox.relay(burst=True)
    return None
