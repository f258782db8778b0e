"""The batches of `enqueue_many`: a list is one batch, an iterator comes in several.

So a program need not hold a million prepared jobs, and a batch can be prepared while the server
adds the batch before. If the iterator raises, the jobs that it gave before are added. If the server
refuses or the connection breaks, the error names the jobs that may be missing.

Blocking queues send the next batch before they have read the reply to the last. The jobs of one
caller must be added in order, so a batch may only follow a batch that it cannot overtake: both must
be one call of the script `enqueue` with the same keys, because then both get the same answer. If a
batch had to be retried nevertheless, the batch behind it is sent alone.

On an event loop, one round trip is in flight at a time. Calls that start meanwhile, or in the same
tick of the event loop, share the next round trip. If a caller is cancelled, its round trip is still
read to the end: its jobs may exist, as after a lost reply.
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
"""Jobs of an iterator in one batch: enough to make the round trip cheap for each job, few enough
for the server to start soon."""

LONGEST_WAIT: Final = 0.1
"""Seconds after which a batch is sent with the jobs that it has."""

QUICK: Final = 0.01
"""Maximum seconds in which an iterator fills a batch that is drawn while the last one is in flight.
A slower iterator is drawn only after the server has answered, because the caller may have to act on
that answer first."""


class Batches:
    """An iterator over batches of prepared jobs."""

    def __init__(self, jobs: Any, durability: Durability | None) -> None:
        """Set up; a list is checked at once, an iterator as its jobs come.

        Args:
            jobs: prepared jobs, in a list or another iterable.
            durability: the durability of all jobs; None leaves each job its own.

        Raises:
            UsageError: `jobs` is not iterable, or the durability does not exist; or a list holds
                something that is not a prepared job, or a job before one of its parents.
        """
        self._durability = None if durability is None else check_durability(durability)
        self._ready: Sequence[Prepared] = ()
        self._rest: Iterator[Any] | None = None
        self._quick = False
        self._given = 0
        """Number of jobs in the batches before this one."""
        self._error: Exception | None = None
        self._rejected: DuplicateJob | None = None
        # Jobs drawn while a batch is in flight do not belong to its context (a trace's span, say).
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
        """Return the next batch; at the end, raise the iterator's error or the first rejection."""
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
        """Surround the sending of a batch; keep a rejection until all other jobs are added."""
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
        """Whether there may be more than one batch."""
        return self._rest is not None

    @property
    def ready(self) -> Sequence[Prepared]:
        """The jobs of the next batch that are drawn already."""
        return self._ready

    def look_ahead(self) -> None:
        """Draw the next batch while the server works, if the iterator is fast."""
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
    """The exchanges of a batch, of which the first may be in flight."""

    def __init__(self, exchanges: Iterator[Exchange], behind: EnqueuePipeline | None) -> None:
        """Send the first exchange.

        Args:
            exchanges: at least one.
            behind: the pipeline in flight. If this batch could overtake it, nothing is sent yet.
        """
        self._begun: InFlight | None = None
        first, second = next(exchanges), next(exchanges, None)
        self._only: Command[Any] | None = None
        """The call, if the whole batch is one call that only adds jobs."""
        (command, *others) = first.commands
        if second is None and not others and not command.confirm and command.script == "enqueue":
            self._only = command
        if behind is None or self._may_follow(behind):
            self._begun = first.binding.client.begin(first.commands, behind and behind._begun)
        rest = () if second is None else (second,)
        self._exchanges = chain((first._replace(begun=self._begun),), rest, exchanges)

    def _may_follow(self, other: EnqueuePipeline) -> bool:
        if self._only is None or other._only is None or other._begun is None:
            return False
        return self._only.keys == other._only.keys

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Exchange:
        return next(self._exchanges)

    @property
    def is_smooth(self) -> bool:
        """Whether the first exchange ended without a retry."""
        return self._begun is not None and self._begun.is_smooth

    def drop(self) -> None:
        """Drop the reply to the first exchange, unless it was read."""
        if self._begun is not None:
            self._begun.drop()


Send = Callable[[Sequence[Prepared]], Awaitable[list[Receipt | BideError]]]


class _Caller(NamedTuple):
    jobs: Sequence[Prepared]
    answer: asyncio.Future[list[Receipt]]


class CallBatcher:
    """Batches the enqueues of concurrent callers on one event loop."""

    def __init__(self, send: Send) -> None:
        """Set up.

        Args:
            send: adds jobs; returns a receipt or an error for each, and stops after a round trip in
                which a job failed.
        """
        self._send = send
        self._waiting: list[_Caller] = []
        self._busy = False
        self._sender: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None] | None = None

    async def add(self, jobs: Sequence[Prepared]) -> list[Receipt]:
        """Add jobs together with those of other callers.

        Raises:
            BideError: a job failed; this is the first error.
        """
        if not jobs:
            return []
        loop = asyncio.get_running_loop()
        caller = _Caller(jobs, loop.create_future())
        self._waiting.append(caller)
        if not self._busy:
            self._busy = True
            try:
                await asyncio.sleep(0)  # let other callers of this tick join
                if len(self._waiting) == 1:
                    return await self._add_alone(jobs)
            except asyncio.CancelledError:
                caller.answer.cancel()
                raise
            finally:
                self._go_on(loop)
        return await caller.answer

    async def settled(self) -> None:
        """Wait until no jobs are being added."""
        if self._busy:
            self._settled = self._settled or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._settled])

    async def _add_alone(self, jobs: Sequence[Prepared]) -> list[Receipt]:
        """Add the jobs of the only caller, without a task of its own."""
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
        """Serve callers that came meanwhile; if the sender was cancelled, cancel them too."""
        if sender.cancelled():  # maybe before it started, so it could not do this itself
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
        """Add the jobs of all callers; a failed job stops only its own caller's jobs."""
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
