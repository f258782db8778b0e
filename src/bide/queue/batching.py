"""Gathering: the items of many calls, run together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from bide.errors import DuplicateJob
from bide.model.constraints import Constraints
from bide.model.dedup import Batch
from bide.model.durations import Duration
from bide.model.options import Options
from bide.protocol.commands.enqueue import Prepared, Receipt

if TYPE_CHECKING:
    from bide.queue._async.job import AsyncJob
    from bide.queue._sync.job import Job


class Batching:
    """What `Queue` has of it."""

    def enqueue_call(
        self,
        task: Callable[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job[Any]:
        """As the queue does it."""
        raise NotImplementedError

    def batch(
        self,
        key: str | int,
        item: object,
        *,
        into: Callable[..., Any] | str,
        quiet: Duration = "5s",
        max_wait: Duration | None = "60s",
        max_size: int = 100,
        **options: Unpack[Options],
    ) -> Job[Any]:
        """Add an item to those that `into` is called with, as one list, in their order of arrival.

        Args:
            key: items with the same key, for the same task, are gathered.
            item: what travels as an argument does.
            into: the task; what its annotation says of its list, each item becomes.
            quiet: the job is due when no item has come for as long;
            max_wait: or when the first came as long ago; None: no limit;
            max_size: or when there are so many; 10,000 at most. It is also due when it has a
                megabyte of them.
            options: see `bide.Options`; those of the first item hold for the job.

        Returns:
            The job that has the item; its `outcome` is `"new"` or `"added"`.

        Raises:
            BideError: as of `enqueue_call`.
        """
        policy = Batch(quiet, max_wait, max_size, key)
        return self.enqueue_call(into, (item,), **(options | {"unique": policy}))


class AsyncBatching:
    """What `AsyncQueue` has of it."""

    async def enqueue_call(
        self,
        task: Callable[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> AsyncJob[Any]:
        """As the queue does it."""
        raise NotImplementedError

    async def batch(
        self,
        key: str | int,
        item: object,
        *,
        into: Callable[..., Any] | str,
        quiet: Duration = "5s",
        max_wait: Duration | None = "60s",
        max_size: int = 100,
        **options: Unpack[Options],
    ) -> AsyncJob[Any]:
        """As `Queue.gather`."""
        policy = Batch(quiet, max_wait, max_size, key)
        return await self.enqueue_call(into, (item,), **(options | {"unique": policy}))


def none_rejected(receipts: Sequence[Receipt], jobs: Sequence[Prepared]) -> None:
    """Tell of the first job that was rejected, once all others are in.

    Raises:
        DuplicateJob: there is one.
    """
    for receipt, job in zip(receipts, jobs, strict=True):
        if receipt.outcome == "rejected":
            raise not_unique(receipt.id, repr(Constraints.read(job.terms.encode()).key))


def not_unique(holder: str, key: str) -> DuplicateJob:
    """The error for a job that was rejected; `key` says which, for people."""
    error = DuplicateJob(
        f"The job {holder} holds the key {key}; wait for it or cancel it, or enqueue with "
        'on_conflict="keep" or "replace".'
    )
    error.job_id = holder
    return error
