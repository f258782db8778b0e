"""What is given to `enqueue_many`, cut into batches: a list is one, an iterator comes in several.

So an iterator may give more jobs than fit in memory, and the next batch is prepared while the
server adds the one before. What it gave before it raised is added; what a slow one gives waits for
no more than a tenth of a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

from bide.durability import Durability, check_durability
from bide.errors import UsageError
from bide.ops.produce import Prepared
from bide.queue.parents import check_order

BATCH: Final = 100
"""Jobs of an iterator that go together: enough for a round trip to cost little for each, and few
enough for the server to begin soon."""

LONGEST_WAIT: Final = 0.1
"""Seconds after which a batch goes with what it has."""


class Batches:
    """The batches, one after another; all in them has been checked."""

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
        self._rest: Iterator[Any] = iter(())
        self._error: Exception | None = None
        if isinstance(jobs, str | bytes | Prepared) or not isinstance(jobs, Iterable):
            raise _odd(jobs)
        if isinstance(jobs, list | tuple):
            if odd := [job for job in jobs if not isinstance(job, Prepared)][:1]:
                raise _odd(odd[0])
            self._ready = self._checked(jobs)
        else:
            self._rest = iter(jobs)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sequence[Prepared]:
        """The next batch; raises what the iterator raised, once all before that has been given."""
        self.look_ahead()
        batch, self._ready = self._ready, ()
        if batch:
            return batch
        raise self._error or StopIteration

    @contextmanager
    def telling(self, added: Sequence[object]) -> Iterator[None]:
        """Have an error say how many jobs were added before it."""
        try:
            yield
        except Exception as error:
            if added:
                error.add_note(f"The {len(added):,} jobs that were given before are added.")
            raise

    def look_ahead(self) -> None:
        """Have the next batch ready: for whoever has time, such as while the server works."""
        if self._ready or self._error is not None:
            return
        batch: list[Prepared] = []
        until = time.monotonic() + LONGEST_WAIT
        try:
            for job in self._rest:
                if not isinstance(job, Prepared):
                    raise _odd(job)
                batch.append(job)
                if len(batch) == BATCH or time.monotonic() > until:
                    break
        except Exception as error:
            self._error = error
        try:
            self._ready = self._checked(batch)
        except UsageError as error:
            self._error = error

    def _checked(self, jobs: Sequence[Prepared]) -> Sequence[Prepared]:
        check_order(jobs)
        if self._durability is None:
            return jobs
        return [job._replace(durability=self._durability) for job in jobs]


def _odd(what: object) -> UsageError:
    return UsageError(
        f"enqueue_many wants a list of what queue.prepare(...) returns, not {what!r}."
    )
