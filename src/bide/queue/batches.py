"""What is given to `enqueue_many`, cut into batches: a list is one, an iterator comes in several.

So nobody has to hold a million prepared jobs, and a batch can be prepared while the server adds the
one before. What an iterator gave before it raised is added; of what it gave and a refusal or a
broken connection kept out, the error tells.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Final, Self

from bide.durability import Durability, check_durability
from bide.errors import BideError, NotUnique, UsageError
from bide.ops.produce import Prepared
from bide.queue.parents import check_order

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
        self._rejected: NotUnique | None = None
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
        except NotUnique as error:
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
