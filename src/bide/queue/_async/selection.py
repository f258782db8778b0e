"""The jobs of a queue that match a filter, for code on an event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from bide.errors import UsageError
from bide.model.durations import Duration
from bide.model.job import State
from bide.protocol.commands import enqueue as enqueue_commands
from bide.queue._async.job import AsyncJob
from bide.queue._async.scan import AsyncReader, AsyncScan, changes
from bide.queue.select import EVERY, PAGE, Filter, in_turn
from bide.queue.verbs import VERBS, BulkResult, How, read_over

if TYPE_CHECKING:
    from bide.queue._async.queue import AsyncQueue

Progress = Callable[[BulkResult], object]


class AsyncSelection:
    """The jobs of a queue that match a filter; `queue.where()`.

        async for job in queue.where(state="failed", error="TimeoutError"): ...

        await queue.where(state="delayed", kwargs={"user_id": 42}).cancel()

    Each iteration and each change reads the jobs again: state by state, each job once, a bounded
    number of jobs in a round trip. A change first finds all matching jobs, then changes them. A job
    that has another state by its turn is left alone. If a call fails, the jobs before it are
    changed; repeat the call to change the others.

    The methods that change jobs call `progress` with the `BulkResult` so far, after each round
    trip.
    """

    def __init__(self, queue: AsyncQueue, wanted: Filter, limit: int | None = None) -> None:
        self.queue: Final = queue
        self._wanted: Final = wanted
        self._limit: Final = limit

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.queue.name}>"

    async def __aiter__(self) -> AsyncIterator[AsyncJob[Any]]:
        left = self._limit
        async for found in self._scan(self._wanted.states or tuple(State)).each():
            yield AsyncJob(self.queue, found.id, snapshot=found.snapshot)
            if left is not None and (left := left - 1) == 0:
                return

    async def count(self) -> int:
        """Return the number of matching jobs, at most the `limit`."""
        chosen = await self._scan(self._wanted.states or tuple(State)).choose(self._limit)
        return sum(map(len, chosen.values()))

    async def cancel(self, running: bool = True, progress: Progress | None = None) -> BulkResult:
        """Cancel the jobs, without a state in the filter all that wait or are delayed.

        Args:
            running: whether to ask running jobs to stop, if the filter names the state `active`.
            progress: called with the result so far.

        Raises:
            UsageError: the filter is empty, or has a state of jobs that cannot be cancelled.
            BideError: the server cannot be reached, or refuses.
        """
        return await self._change("cancel", How(running=running), progress)

    async def promote(self, progress: Progress | None = None) -> BulkResult:
        """Make the jobs due now, without a state in the filter all that are delayed."""
        return await self._change("promote", How(), progress)

    async def reschedule(
        self,
        delay: Duration | None = None,
        at: datetime | None = None,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Give the jobs another due time, without a state all that wait or are delayed."""
        if delay is None and at is None:
            raise UsageError("Say when the jobs are due: give delay= or at=.")
        how = How(when=enqueue_commands.when(delay, at))
        return await self._change("reschedule", how, progress)

    async def spread(self, over: Duration, progress: Progress | None = None) -> BulkResult:
        """Spread the due times evenly over a time from now, in the order of the jobs.

        Without a state in the filter, this takes all jobs that wait or are delayed.

        Args:
            over: the time, such as `"10m"`.
            progress: called with the result so far.

        Raises:
            UsageError: `over` is invalid, or as for `cancel`.
        """
        return await self._change("spread", How(over_us=read_over(over)), progress)

    async def retry(
        self,
        delay: Duration | None = None,
        at: datetime | None = None,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Run the jobs again, without a state in the filter all that failed."""
        how = How(when=enqueue_commands.when(delay, at))
        return await self._change("retry", how, progress)

    async def delete(self, progress: Progress | None = None) -> BulkResult:
        """Delete the jobs and all their data, without a state in the filter all that have ended."""
        return await self._change("delete", How(), progress)

    def _scan(
        self, states: tuple[State, ...], tick: Callable[[int], None] | None = None
    ) -> AsyncScan:
        reader = AsyncReader(self.queue._client, self.queue.prefix)
        wanted = self._wanted.within(in_turn(states))
        return AsyncScan(reader, [self.queue.name], wanted, look=EVERY, page=PAGE, tick=tick)

    async def _change(self, name: str, how: How, progress: Progress | None) -> BulkResult:
        """Find the jobs, then change them."""
        verb, result = VERBS[name], BulkResult()
        if self._wanted == Filter(()):
            raise UsageError(
                f"Say which jobs to {name}: give where() a state, a task or another condition. "
                "queue.purge() removes all that have not begun."
            )
        verb.check(self._wanted.states)

        def tell(**news: Any) -> None:
            nonlocal result
            result = result._replace(**news)
            if progress is not None:
                progress(result)

        def tick(number: int) -> None:
            tell(looked=result.looked + number, total=max(scan.total, result.looked + number))

        scan = self._scan(self._wanted.states or verb.usual, tick)
        chosen = await scan.choose(self._limit)
        where = {queue: [*ids] for queue, ids in chosen.items()}
        tell(found=sum(map(len, where.values())))
        counted: Counter[str] = Counter()
        async for _, _, words in changes(scan.reader, verb, where, how):
            counted.update(words)
            changed = sum(counted[word] for word in verb.fine)
            tell(changed=changed, results=dict(counted))
        return result
