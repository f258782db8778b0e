"""The batches of `enqueue_many`: a list is one batch, an iterator comes in several.

So a program need not hold a million prepared jobs, and a batch can be prepared while the server
adds the batch before. If the iterator raises, the jobs that it gave before are added. If the server
refuses or the connection breaks, the error names the jobs that may be missing. If both happen, the
iterator's error is raised.

`bide.queue.threads` and `bide.queue.loops` send the batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from itertools import pairwise
from typing import Any, Final, NoReturn, Self

from bide.errors import BideError, DuplicateJob, UsageError
from bide.model.options import Durability, check_durability
from bide.protocol.commands.enqueue import Prepared
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

        If `durability` is given, it replaces that of each job.
        """
        self._durability = None if durability is None else check_durability(durability)
        self.ready: Sequence[Prepared] = ()
        """The jobs of the next batch that are drawn already."""
        self._rest: Iterator[Any] | None = None
        self._quick = False
        self._given = 0
        """Number of jobs in the batches before this one."""
        self._error: Exception | None = None
        self._rejected: DuplicateJob | None = None
        # Jobs drawn while a batch is in flight do not belong to its context, such as a span.
        self._context = copy_context()
        if isinstance(jobs, str | bytes | Prepared) or not isinstance(jobs, Iterable):
            raise _odd(jobs)
        self.are_several: Final = isinstance(jobs, Iterator)
        """Whether there may be more than one batch."""
        if isinstance(jobs, Iterator):
            self._rest = jobs
        else:
            many = jobs if isinstance(jobs, list | tuple) else list(jobs)
            if odd := [job for job in many if not isinstance(job, Prepared)][:1]:
                raise _odd(odd[0])
            check_order(many)
            self.ready = self._lasting(many)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sequence[Prepared]:
        """Return the next batch; at the end, raise the iterator's error or the first rejection."""
        if not self.ready:
            self._draw()
        batch, self.ready = self.ready, ()
        if batch:
            return batch
        error, self._error = self._error, None
        self._tell(error)
        _raise_first(error, self._rejected)

    @contextmanager
    def sending(self, batch: Sequence[Prepared]) -> Iterator[None]:
        """Surround the sending of a batch; keep a rejection until all other jobs are added.

        If the iterator has raised meanwhile, its error is raised, from that of the batch: a caller
        that continues with the iterator would miss the jobs that it did not give.
        """
        try:
            yield
        except DuplicateJob as error:
            self._rejected = self._rejected or error
        except Exception as error:
            if self._rest is not None:
                for each in (error, self._error):
                    self._tell(each)
                    if isinstance(each, BideError):
                        each.left = (*batch, *self.ready)
            _raise_first(self._error, error, self._rejected)
        self._given += len(batch)

    def look_ahead(self) -> None:
        """Draw the next batch while the server works, if the iterator is fast."""
        if self._quick and not self.ready:
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
        self.ready = self._lasting(batch)

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

    def _tell(self, error: Exception | None) -> None:
        if error is not None:
            error.add_note(f"Added before, of what the iterator gave: {self._given:,}.")


def _raise_first(*errors: Exception | None) -> NoReturn:
    """Raise the first error, caused by the next one and so on; `StopIteration` if all are None."""
    raised = [error for error in errors if error is not None] or [StopIteration()]
    for error, cause in pairwise(raised):
        error.__cause__ = cause
    raise raised[0]


def _odd(what: object) -> UsageError:
    if isinstance(what, Prepared):
        return UsageError(
            "enqueue_many needs a list of jobs from queue.prepare(...); write enqueue_many([job])."
        )
    return UsageError(
        "enqueue_many needs jobs from queue.prepare(...), in a list or from an iterator, not "
        f"{what!r}."
    )
