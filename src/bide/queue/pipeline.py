"""What is given to `enqueue_many`, cut into batches: a list is one, an iterator comes in several.

So nobody has to hold a million prepared jobs, and a batch can be prepared while the server adds the
one before. What an iterator gave before it raised is added; of what it gave and a refusal or a
broken connection kept out, the error tells.

Jobs of one caller are added in the order in which they are given. So only what cannot be overtaken
by what is sent behind it has something sent behind it: one call of the script `enqueue`, which is
followed by one with the same keys, and so meets with the same answer. Where one had to be sent
again nevertheless, what is behind it goes alone.

One round trip is under way at a time; what is to be enqueued meanwhile, or in the same tick of the
event loop, goes with the next. A caller that is cancelled is detached, and the round trip is read
to its end: its jobs may exist, as after a lost reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from itertools import chain
from typing import Any, Final, NamedTuple, Self

from bide.client.blocking import InFlight
from bide.errors import BideError, DuplicateJob, UsageError
from bide.model.options import Durability, check_durability
from bide.protocol.command import Command
from bide.protocol.commands.enqueue import Prepared, Receipt
from bide.queue.core import Exchange, first_error
from bide.queue.dependencies import check_order

BATCH: Final = 100
"""Jobs of an iterator that go together: enough for a round trip to cost little for each, and few
enough for the server to begin soon."""

LONGEST_WAIT: Final = 0.1
"""Seconds after which a batch goes with what it has."""

QUICK: Final = 0.01
"""Seconds in which an iterator gives a batch that is drawn while the one before is under way. What
a slower one gives is drawn when the server has answered, for an answer may be what has to be acted
upon."""


class Batches:
    """The batches, one after another; all in them are prepared jobs."""

    def __init__(self, jobs: Any, durability: Durability | None) -> None:
        """Set up; a list is looked through at once, an iterator as it comes.

        Args:
            jobs: what `prepare` returned, in a list or anything else that can be gone through.
            durability: what all of them are to have; None leaves each its own.

        Raises:
            UsageError: it is nothing of the kind, or there is no such durability; or a list has
                something else in it, or a job that stands before one that it waits for.
        """
        self._durability = None if durability is None else check_durability(durability)
        self._ready: Sequence[Prepared] = ()
        self._rest: Iterator[Any] | None = None
        self._quick = False
        self._given = 0
        """How many jobs were in the batches before this one."""
        self._error: Exception | None = None
        self._rejected: DuplicateJob | None = None
        # What is drawn while a batch is under way does not belong to that (a trace's span, say).
        self._context = copy_context()
        if isinstance(jobs, str | bytes | Prepared) or not isinstance(jobs, Iterable):
            raise _odd(jobs)
        if isinstance(jobs, Iterator):
            self._rest = jobs
        else:
            many = jobs if isinstance(jobs, list | tuple) else list(jobs)
            if odd := [job for job in many if not isinstance(job, Prepared)][:1]:
                raise _odd(odd[0])
            check_order(many)
            self._ready = self._lasting(many)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sequence[Prepared]:
        """The next batch; at the end, what the iterator raised, or who was rejected first."""
        if not self._ready:
            self._draw()
        batch, self._ready = self._ready, ()
        if batch:
            return batch
        if self._error is not None:
            error, self._error = self._error, None
            self._tell(error)
            raise error
        if self._rejected is not None:
            raise self._rejected
        raise StopIteration

    @contextmanager
    def sending(self, batch: Sequence[Prepared]) -> Iterator[None]:
        """Surrounds the sending of a batch. Who was rejected is told of when all others are in."""
        try:
            yield
        except DuplicateJob as error:
            self._rejected = self._rejected or error
        except Exception as error:
            if self._rest is not None:
                self._tell(error)
                if isinstance(error, BideError):
                    error.left = (*batch, *self._ready)
            raise
        self._given += len(batch)

    @property
    def are_several(self) -> bool:
        """Whether more than one may come."""
        return self._rest is not None

    @property
    def ready(self) -> Sequence[Prepared]:
        """What is known of the next batch."""
        return self._ready

    def look_ahead(self) -> None:
        """Have the next batch ready, if it takes no time: for whoever waits for the server."""
        if self._quick and not self._ready:
            self._draw()

    def _draw(self) -> None:
        if self._rest is None or self._error is not None:
            return
        begun = time.monotonic()
        batch: list[Prepared] = []
        try:
            self._context.run(self._fill, batch, begun + LONGEST_WAIT)
        except Exception as error:
            self._error = error
        self._quick = time.monotonic() - begun < QUICK
        self._ready = self._lasting(batch)

    def _fill(self, batch: list[Prepared], until: float) -> None:
        for job in self._rest or ():
            if not isinstance(job, Prepared):
                raise _odd(job)
            batch.append(job)
            if len(batch) == BATCH or time.monotonic() > until:
                break

    def _lasting(self, jobs: Sequence[Prepared]) -> Sequence[Prepared]:
        if self._durability is None:
            return jobs
        return [job._replace(durability=self._durability) for job in jobs]

    def _tell(self, error: Exception) -> None:
        error.add_note(f"Added before, of what the iterator gave: {self._given:,}.")


def _odd(what: object) -> UsageError:
    return UsageError(
        "enqueue_many wants what queue.prepare(...) returns, in a list or from an iterator, "
        f"not {what!r}."
    )


class EnqueuePipeline:
    """Round trips, of which the first may be on its way."""

    def __init__(self, trips: Iterator[Exchange], behind: EnqueuePipeline | None) -> None:
        """Send what the first of them brings.

        Args:
            trips: at least one.
            behind: what is on its way. Nothing is sent behind what could be overtaken by it.
        """
        self._begun: InFlight | None = None
        first, second = next(trips), next(trips, None)
        self._only: Command[Any] | None = None
        """The one call that all of it is, if nothing comes of that but that jobs are added."""
        (command, *others) = first.commands
        if second is None and not others and not command.confirm and command.script == "enqueue":
            self._only = command
        if behind is None or self._may_follow(behind):
            self._begun = first.place.client.begin(first.commands, behind and behind._begun)
        rest = () if second is None else (second,)
        self._trips = chain((first._replace(begun=self._begun),), rest, trips)

    def _may_follow(self, other: EnqueuePipeline) -> bool:
        if self._only is None or other._only is None or other._begun is None:
            return False
        return self._only.keys == other._only.keys

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Exchange:
        return next(self._trips)

    @property
    def is_smooth(self) -> bool:
        """Whether the first came to its end with what was sent at first."""
        return self._begun is not None and self._begun.is_smooth

    def drop(self) -> None:
        """Do without the reply to the first, unless it was read."""
        if self._begun is not None:
            self._begun.drop()


Send = Callable[[Sequence[Prepared]], Awaitable[list[Receipt | BideError]]]


class _Caller(NamedTuple):
    jobs: Sequence[Prepared]
    answer: asyncio.Future[list[Receipt]]


class CallBatcher:
    """Gathers what concurrent callers on one event loop enqueue."""

    def __init__(self, send: Send) -> None:
        """Set up.

        Args:
            send: adds jobs; returns what came of each, and stops after a round trip in which one
                failed.
        """
        self._send = send
        self._waiting: list[_Caller] = []
        self._busy = False
        self._sender: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None] | None = None

    async def add(self, jobs: Sequence[Prepared]) -> list[Receipt]:
        """Add jobs with whatever else is being added.

        Raises:
            BideError: what came of the first that failed.
        """
        if not jobs:
            return []
        loop = asyncio.get_running_loop()
        caller = _Caller(jobs, loop.create_future())
        self._waiting.append(caller)
        if not self._busy:
            self._busy = True
            try:
                await asyncio.sleep(0)  # others of this tick
                if len(self._waiting) == 1:
                    return await self._add_alone(jobs)
            except asyncio.CancelledError:
                caller.answer.cancel()
                raise
            finally:
                self._go_on(loop)
        return await caller.answer

    async def settled(self) -> None:
        """Wait until nothing is being added."""
        if self._busy:
            self._settled = self._settled or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._settled])

    async def _add_alone(self, jobs: Sequence[Prepared]) -> list[Receipt]:
        """Nobody else is concerned, so it needs no task of its own."""
        self._waiting = []
        receipts = await self._send(jobs)
        failed = first_error(receipts, jobs)
        if failed is not None:
            raise failed
        return [receipt for receipt in receipts if isinstance(receipt, Receipt)]

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting:
            self._sender = loop.create_task(self._send_waiting())
            self._sender.add_done_callback(self._sent)
        else:
            self._rest()

    def _sent(self, sender: asyncio.Task[None]) -> None:
        """Go on with who came meanwhile; the end of a sender that was cancelled is theirs, too."""
        if sender.cancelled():  # maybe before it began, so it could not see to this itself
            left, self._waiting = self._waiting, []
            for caller in left:
                caller.answer.cancel()
        if self._waiting:
            self._go_on(sender.get_loop())
        else:
            self._rest()

    def _rest(self) -> None:
        self._busy = False
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.set_result(None)

    async def _send_waiting(self) -> None:
        while self._waiting:
            callers, self._waiting = self._waiting, []
            try:
                came = await self._send_for(callers)
            except Exception as error:
                for caller in callers:
                    if not caller.answer.done():
                        caller.answer.set_exception(error)
                continue
            except BaseException:
                for caller in callers:
                    caller.answer.cancel()
                raise
            for caller, mine in zip(callers, came, strict=True):
                if caller.answer.done():  # cancelled
                    continue
                failed = first_error(mine, caller.jobs)
                if failed is not None:
                    caller.answer.set_exception(failed)
                else:
                    caller.answer.set_result([r for r in mine if isinstance(r, Receipt)])

    async def _send_for(self, callers: Sequence[_Caller]) -> list[list[Receipt | BideError]]:
        """What came of each caller's jobs, up to the first that failed; that ends no other's."""
        came: list[list[Receipt | BideError]] = [[] for _ in callers]
        todo = [(i, job) for i, caller in enumerate(callers) for job in caller.jobs]
        while todo:
            receipts = await self._send([job for _, job in todo])
            failed = set()
            for (i, _), receipt in zip(todo, receipts, strict=False):
                came[i].append(receipt)
                if isinstance(receipt, BideError):
                    failed.add(i)
            todo = [one for one in todo[len(receipts) :] if one[0] not in failed]
        return came
