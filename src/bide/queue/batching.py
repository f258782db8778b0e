"""`batch`: one job for the items of many calls."""

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
    """The part of `Queue` that batches."""

    def enqueue_call(
        self,
        task: Callable[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job[Any]:
        """The queue overrides this."""
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
        """Add an item to a batch; one job calls `into` with the list of items, in order of arrival.

        The job is due as soon as one of `quiet`, `max_wait` and `max_size` is reached, or when its
        items take 1 MB.

        Args:
            key: items with the same key and task share a batch.
            item: a value that the serializer can encode, like an argument.
            into: the task. Each item is converted to the annotated item type of its list.
            quiet: time without a new item.
            max_wait: time since the first item; None for no limit.
            max_size: number of items, at most 10,000.
            options: see `bide.Options`; the options of the first item apply to the job.

        Returns:
            The job that holds the item; its `enqueue_result` is `"created"` or `"batched"`.

        Raises:
            BideError: as for `enqueue_call`.
        """
        policy = Batch(quiet, max_wait, max_size, key)
        return self.enqueue_call(into, (item,), **(options | {"unique": policy}))


class AsyncBatching:
    """The part of `AsyncQueue` that batches."""

    async def enqueue_call(
        self,
        task: Callable[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> AsyncJob[Any]:
        """The queue overrides this."""
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
        """Add an item to a batch; see `Queue.batch`."""
        policy = Batch(quiet, max_wait, max_size, key)
        return await self.enqueue_call(into, (item,), **(options | {"unique": policy}))


def none_rejected(receipts: Sequence[Receipt], jobs: Sequence[Prepared]) -> None:
    """Raise for the first rejected job, once all others are added.

    Raises:
        DuplicateJob: a job was rejected.
    """
    for receipt, job in zip(receipts, jobs, strict=True):
        if receipt.result == "rejected":
            raise not_unique(receipt.id, repr(Constraints.read(job.terms.encode()).key))


def not_unique(holder: str, key: str) -> DuplicateJob:
    """Return the error for a rejected job; `key` describes its key, for people."""
    error = DuplicateJob(
        f"The job {holder} holds the key {key}; wait for it or cancel it, or enqueue with "
        'on_conflict="keep" or "replace".'
    )
    error.job_id = holder
    return error
