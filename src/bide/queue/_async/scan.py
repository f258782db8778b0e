"""Reads jobs that match a filter, and changes them in limited steps.

`AsyncReader` reads queues of one prefix, and `AsyncScan` searches their lists. `make format` writes
`_sync/scan.py` from this module.

`AsyncSelection` is the public class for the jobs of a queue that match a filter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bide.client import aio
from bide.errors import BideError, UsageError
from bide.model.durations import Duration
from bide.model.job import LISTABLE, Snapshot, State
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.keys import Keys, keys_of
from bide.queue._async.job import AsyncJob
from bide.queue.select import (
    EVERY,
    LOOK,
    MOVING,
    ORDER,
    PAGE,
    UNFINISHED,
    VERBS,
    BulkResult,
    Filter,
    FoundJob,
    How,
    JobVerb,
    Mask,
    Paging,
    Place,
    in_turn,
    read_over,
    results,
    unmasked,
)

if TYPE_CHECKING:
    from bide.queue._async.queue import AsyncQueue

T = TypeVar("T")


class AsyncReader:
    """Reads the queues of a prefix."""

    def __init__(
        self,
        client: aio.AsyncClient,
        prefix: str,
        mask: Mask = unmasked,
        search_mask: Mask | None = None,
    ) -> None:
        """Set up; nothing is sent yet.

        Filters see values as `search_mask` shows them; by default as `mask` does.
        """
        self.client: Final = client
        self.prefix: Final = prefix
        self.mask: Final = mask
        self.search_mask: Final = search_mask or mask
        self._ahead = timedelta()

    @property
    def now(self) -> datetime:
        """The server's time, estimated from its latest reply."""
        return datetime.now(UTC) + self._ahead

    def keys(self, queue: str) -> Keys:
        """The keys of a queue."""
        return keys_of(queue, self.prefix)

    async def each(
        self, queues: Iterable[str], command: Callable[[Keys], Command[T]]
    ) -> dict[str, T]:
        """Run a command for each queue in one round trip; return the results by queue."""
        names = list(queues)
        replies = await self.client.run_many([command(self.keys(name)) for name in names])
        return dict(zip(names, replies, strict=True))

    async def counts(self, queues: Iterable[str]) -> dict[str, QueueStats]:
        """Count the jobs in each state, by queue."""
        counts = await self.each(queues, job_commands.counts)
        if counts:
            self._ahead = max(each.now for each in counts.values()) - datetime.now(UTC)
        return counts

    async def fetch(self, queue: str, ids: Sequence[str]) -> list[Snapshot]:
        """Read the jobs with these ids; missing ones are left out."""
        pages = await self.client.run_many(job_commands.fetch_many(self.keys(queue), ids))
        return [snapshot for page in pages for snapshot in page if snapshot is not None]


_READ: Final = 200
"""Jobs read per round trip."""


@dataclass
class AsyncScan:
    """A search for the jobs that match a filter, and its position."""

    reader: AsyncReader
    queues: Sequence[str]
    wanted: Filter
    look: int = LOOK
    """Maximum number of jobs to read."""
    after: str = ""
    """The position of an earlier scan; empty to start. `UsageError` is raised if it is invalid."""
    page: int = 0
    """Jobs read per round trip; 0 for `_READ`."""
    tick: Callable[[int], None] | None = None
    """Called with the number of jobs of each page that was read."""
    looked: int = 0
    """Number of jobs that were read, including earlier scans."""
    total: int = 0
    """Number of jobs to read in total."""
    states: dict[str, int] = field(default_factory=dict)
    """Number of jobs of the queues in each state."""
    next: Place | None = None
    """The position to continue from; None at the end."""
    _size: int = 0
    """The size of the list that is read."""
    _behind: tuple[str, ...] = ()
    _met: dict[str, set[str]] = field(default_factory=dict)
    """By queue, the ids that were read."""

    async def run(self, most: int) -> list[FoundJob]:
        """Return up to `most` of the next matching jobs."""
        found: list[FoundJob] = []
        async for seen, place in self._places():
            if len(found) == most:
                self.next = place
                break
            if self.wanted.fits(seen, self.reader.search_mask):
                found.append(seen)
        return found

    async def each(self) -> AsyncIterator[FoundJob]:
        """Yield all matching jobs among those that are read."""
        async for seen, _ in self._places():
            if self.wanted.fits(seen, self.reader.search_mask):
                yield seen

    async def ids(self) -> AsyncIterator[tuple[State, str, str]]:
        """Yield state, queue and id of all jobs in the filter's states, without reading jobs."""
        async for state, queue, fresh in self._pages():
            self.looked += len(fresh)
            for id in fresh:
                yield state, queue, id

    async def choose(self, limit: int | None = None) -> dict[str, dict[str, State]]:
        """Return ids and states of matching jobs by queue, in the order in which lists show them.

        Jobs are read only if necessary. With a limit, the first jobs of the search are returned.
        """
        found: list[tuple[State, str, str]] = []
        async for one in self._read() if self.wanted.reads_jobs else self.ids():
            found.append(one)
            if len(found) == limit:
                break
        chosen: dict[str, dict[str, State]] = {}
        for state, queue, id in sorted(found, key=lambda one: ORDER.index(one[0])):
            chosen.setdefault(queue, {})[id] = state
        return chosen

    async def _read(self) -> AsyncIterator[tuple[State, str, str]]:
        async for seen in self.each():
            yield seen.state, seen.queue, seen.id

    async def _places(self) -> AsyncIterator[tuple[FoundJob, Place]]:
        """Yield jobs with their places in the lists."""
        async for state, queue, fresh in self._pages():
            by_id = {one.id: one for one in await self.reader.fetch(queue, [*fresh])}
            for id, at in fresh.items():
                place = Place(at, self._size, self.looked, state, queue, self._behind)
                self.looked += 1
                self._behind = (id,) if state in MOVING else ()
                if id in by_id:
                    yield FoundJob(queue, by_id[id]), place

    def _unmet(self, queue: str, fresh: dict[str, int]) -> dict[str, int]:
        """Return the ids that were not read before: a job may have moved to another list."""
        if len(self.wanted.states) == 1:
            return fresh
        met = self._met.setdefault(queue, set())
        fresh = {id: at for id, at in fresh.items() if id not in met}
        met.update(fresh)
        return fresh

    def _may_hold(self, counts: QueueStats, state: State) -> bool:
        """Whether a list had jobs, or may have received jobs from a list that was read before it.

        Lists of finished jobs are not read for jobs that end meanwhile.
        """
        lists = {state}
        if state in UNFINISHED:
            read_before = self.wanted.states[: self.wanted.states.index(state)]
            lists |= {*read_before} & {*UNFINISHED[: UNFINISHED.index(state)]}
        return any(getattr(counts, one) for one in lists)

    async def _pages(self) -> AsyncIterator[tuple[State, str, dict[str, int]]]:
        """Yield pages: state, queue, and ids with their places in the list, each id once."""
        lists = [(state, queue) for state in self.wanted.states for queue in self.queues]
        begin = Place.read(self.after, lists)
        counts = await self.reader.counts(self.queues)
        self.states = {
            state: sum(getattr(each, state) for each in counts.values()) for state in LISTABLE
        }
        self.total = sum(self.states[state] for state in self.wanted.states)
        self.looked, most = begin.looked, begin.looked + self.look
        size = getattr(counts[begin.queue], begin.state) if lists else 0
        paging, self._behind = Paging(begin.start_in(size), begin.behind), begin.behind
        for state, queue in lists[lists.index((begin.state, begin.queue)) :] if lists else []:
            self._size = getattr(counts[queue], state)
            while self._may_hold(counts[queue], state) and not paging.is_over:
                if self.looked >= most:
                    self.next = Place(
                        paging.start, self._size, self.looked, state, queue, self._behind
                    )
                    return
                start, size = paging.page(min(self.page or _READ, most - self.looked))
                command = job_commands.listing(self.reader.keys(queue), state, start, size)
                ids = await self.reader.client.run(command)
                fresh = paging.read(ids)
                if self.tick is not None:
                    self.tick(len(fresh))
                yield state, queue, self._unmet(queue, fresh)
            paging, self._behind = Paging(), ()


_TRIP: Final = 10
"""Calls per round trip, so that a bulk change does not delay other clients."""


async def changes(
    reader: AsyncReader, verb: JobVerb, where: Mapping[str, Sequence[str]], how: How
) -> AsyncIterator[tuple[str, Sequence[str], Sequence[str]]]:
    """Change jobs of queues in limited steps; yield queue, ids and results of each step.

    Raises:
        BideError: a call failed; the results of the other calls of its round trip are yielded
            before.
    """
    for queue, ids in where.items():
        calls = verb.calls(reader.keys(queue), ids, how)
        while trip := [*islice(calls, _TRIP)]:
            done: list[str] = []
            words: list[str] = []
            failed: BideError | None = None
            replies = await reader.client.attempt_many([command for _, command in trip])
            for (some, _), reply in zip(trip, replies, strict=True):
                if isinstance(reply, BideError):
                    failed = failed or reply
                else:
                    done += some
                    words += results(reply)
            if done:
                yield queue, done, words
            if failed is not None:
                raise failed


Progress = Callable[[BulkResult], object]


class AsyncSelection:
    """The jobs of a queue that match a filter; `queue.where()`.

        async for job in queue.where(state="failed", error="TimeoutError"): ...

        await queue.where(state="delayed", kwargs={"user_id": 42}).cancel()

    Each iteration and each change reads the jobs again: state by state, each job once, a bounded
    number of jobs in a round trip. A change first finds all matching jobs, then changes them. A job
    that has started or ended by its turn, or is to run again, is left alone. If a call fails, the
    jobs before it are changed; repeat the call to change the others.

    The methods that change jobs call `progress` with the `BulkResult` so far, after each round
    trip.
    """

    def __init__(self, queue: AsyncQueue, wanted: Filter, limit: int | None = None) -> None:
        self.queue: Final = queue
        self._wanted: Final = wanted
        self._limit: Final = limit

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.queue.name}>"

    def __bool__(self) -> bool:
        raise UsageError(
            "A selection of jobs is neither true nor false, because nothing was read; ask its "
            "count() how many jobs match."
        )

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
        how = How(when=enqueue_commands.given_when(delay, at))
        return await self._change("reschedule", how, progress)

    async def spread(self, over: Duration, progress: Progress | None = None) -> BulkResult:
        """Spread the due times evenly over a time from now.

        Waiting jobs come first, then delayed jobs, each by priority and due time. Without a state
        in the filter, this takes all jobs that wait or are delayed.

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
                f"Name the jobs to {name}: give where() a state, a task or another condition. "
                f"queue.purge() removes all jobs that have not started."
            )
        verb.check(self._wanted.states)
        if progress is not None and not callable(progress):
            raise UsageError(
                f"progress must be a function that takes a BulkResult, not {progress!r}."
            )

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
        how = how._replace(states=scan.wanted.states)
        async for _, _, words in changes(scan.reader, verb, where, how):
            counted.update(words)
            changed = sum(counted[word] for word in verb.fine)
            tell(changed=changed, results=dict(counted))
        return result
