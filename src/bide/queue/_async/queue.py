"""Queues for code on an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from bide.client import aio, config
from bide.client.execute import RETRY_FOR
from bide.client.url import RedisClient
from bide.errors import BideError, DuplicateJob
from bide.model.context import current_job
from bide.model.dedup import Batch, DedupPolicy, in_batch
from bide.model.durations import Duration, to_us
from bide.model.ids import new_id
from bide.model.job import Event
from bide.model.limits import DECLARED
from bide.model.options import (
    Constraints,
    Durability,
    OnCrash,
    Options,
    Parents,
    QueueSettings,
    RunIf,
    ScheduleOptions,
    TaskOptions,
)
from bide.model.payload.serializers import Codec
from bide.model.retry import Retry
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared, Receipt
from bide.protocol.commands.jobs import ChangeResult, QueueStats
from bide.protocol.commands.queues import GroupCounts, WorkerInfo
from bide.protocol.keys import keys_of
from bide.queue import loops
from bide.queue._async.events import AsyncEventListener, AsyncEvents
from bide.queue._async.job import AsyncJob, AsyncTask, AsyncTaskDecorator
from bide.queue._async.schedules import AsyncGroup, AsyncSchedules
from bide.queue.batches import Batches
from bide.queue.binding import FakeServer
from bide.queue.core import (
    Exchange,
    as_declared,
    checked_ids,
    checked_limit,
    chunks,
    not_unique,
    options_only,
    retryable,
    settings_calls,
    signed,
)
from bide.queue.dependencies import by_queue, in_order
from bide.queue.schedules import declaring
from bide.tasks import middleware
from bide.tasks.middleware import around_sending
from bide.tasks.task import Function

if TYPE_CHECKING:
    from bide.queue._async.scan import AsyncSelection
    from bide.queue.select import BulkResult

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class AsyncQueue(loops.AsyncQueueSide):
    """A queue, for code on an event loop; safe to share by loops, in one thread or in several.

    A job calls a function of a module, or a task of the decorator `task`:

        queue = AsyncQueue("mail")
        job = await queue.enqueue(send, "ann@example.org", delay="10m")
    """

    def __init__(
        self,
        name: str = "default",
        *,
        url: str | RedisClient | None = None,
        prefix: str | None = None,
        serializer: Codec = "json",
        retry_for: float = RETRY_FOR,
        defaults: TaskOptions | None = None,
        lifo: bool = False,
        **settings: Unpack[QueueSettings],
    ) -> None:
        """Create a queue; nothing is sent before the first call.

        Args:
            name: the queue's name, without braces, spaces or control characters.
            url: the server; by default `$BIDE_URL`, then `url` of `[tool.bide]` in pyproject.toml,
                then redis://127.0.0.1:6379/0. You can also give a client of redis-py or valkey-py:
                bide copies its address, login and TLS options.
            prefix: the prefix of all keys, which separates applications that share a server; by
                default `$BIDE_PREFIX`, then `prefix` of `[tool.bide]`, then `bide`.
            serializer: how arguments and results are encoded: `"json"`, `"msgpack"` or `"pickle"`.
                Reading a pickle runs code, so it needs a signing key ($BIDE_SIGNING_KEYS), and the
                worker must allow it too.
            retry_for: seconds for which a call is retried when the connection breaks, 0 to 10.
            defaults: options for each job that is enqueued with this object, such as
                `{"delay": "5m"}`. Options of the task and of the call take precedence.
            lifo: workers that import this object start the newest due jobs of each priority first.
            settings: limits and retention (`bide.QueueSettings`). A worker that serves the queue
                applies them when it starts, unless `configure` has changed them. Settings that
                are left out stay as they are; None declares no limit.

        Raises:
            UsageError: an argument is invalid.
        """
        super().__init__(name, url, prefix, serializer, retry_for)
        self._declare(defaults, lifo, settings)

    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> AsyncTask[P, R, R]: ...
    @overload
    def task(
        self, /, *, name: str | None = None, **options: Unpack[TaskOptions]
    ) -> AsyncTaskDecorator: ...
    def task(
        self, function: Any = None, /, *, name: str | None = None, **options: Unpack[TaskOptions]
    ) -> Any:
        """Register a function as a task of this queue, with default options for its jobs.

        A worker that imports the function's module can run the task, even if the module is not
        one of those that the worker serves.

        Args:
            function: the function, where the decorator is used without options.
            name: the task's name instead of `module:function`: a word such as `"send_email"`.
                Programs that do not have the function can enqueue it by this name. `"*"` makes it
                the catch-all, which runs each job whose task its worker does not have.

        Raises:
            UsageError: a worker could not find the function by its name, another task has the
                name, or an option is invalid.
        """
        if function is None:
            return lambda function: AsyncTask(function, self, options, name)
        return AsyncTask(function, self, options, name)

    def cron(
        self,
        expression: str,
        *,
        name: str | None = None,
        tz: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> AsyncTaskDecorator:
        """Declare a schedule of a task; workers that serve the queue set it when they start.

            @queue.cron("0 9 * * 1-5", tz="Europe/Paris")
            def report() -> None: ...

        Args:
            expression: five fields, such as `"0 9 * * 1-5"`.
            name: the schedule's name; by default the task's.
            tz: the time zone, such as `"Europe/Paris"`; UTC by default.
            args: positional arguments.
            kwargs: keyword arguments.
            options: bounds, missed times, jitter and job options: see `bide.ScheduleOptions`.

        Raises:
            UsageError: an argument is invalid, or the queue has another schedule of this name.
        """
        decorator: AsyncTaskDecorator = declaring(
            self, AsyncTask, name, args, kwargs, options, cron=expression, tz=tz
        )
        return decorator

    def every(
        self,
        interval: Duration,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> AsyncTaskDecorator:
        """Declare a schedule of a task with an interval, such as `"90s"`; see `cron`."""
        decorator: AsyncTaskDecorator = declaring(
            self, AsyncTask, name, args, kwargs, options, every=interval
        )
        return decorator

    async def enqueue(
        self,
        task: Callable[..., Any] | str,
        /,
        *args: Any,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        job_id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | int | None = None,
        retention: Duration | None = None,
        durability: Durability | None = None,
        on_crash: OnCrash | None = None,
        expires: Duration | datetime | None = None,
        group: str | None = None,
        group_concurrency: int | None = None,
        unique: DedupPolicy | None = None,
        depends_on: Parents | None = None,
        run_if: RunIf | None = None,
        description: str | None = None,
        meta: Mapping[str, Any] | None = None,
        on_success: Function | str | None = None,
        on_failure: Function | str | None = None,
        **kwargs: Any,
    ) -> AsyncJob[Any]:
        """Add a job that calls `task(*args, **kwargs)`; options and errors as for `enqueue_call`.

        If the function has a parameter with the name of an option, that option is refused here.
        """
        options = options_only(task, locals())
        return await self.enqueue_call(task, args, kwargs, **options)

    async def enqueue_call(
        self,
        task: Callable[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> AsyncJob[Any]:
        """Add a job that calls `task(*args, **kwargs)` when it is due.

        Args:
            task: a task, a function at the top level of a module, a method of an object that the
                serializer can encode, or a name `"module:function"`.
            args: positional arguments, which the queue's serializer must be able to encode.
            kwargs: keyword arguments, which the serializer must be able to encode too.
            options: see `bide.Options`.

        Raises:
            UsageError: an option is invalid, or the arguments do not fit the function.
            PayloadError: the serializer cannot encode the arguments, or they take more than 1 MB.
            ServerFull: the server has reached its memory limit; nothing was changed.
            ServerUnavailable: the server did not answer, so the job may exist. Its id is in the
                error's `job_ids`: a retry with `job_id=` is safe.
            DurabilityUnavailable: the server cannot give the `durability`; nothing was changed.
            DuplicateJob: another job holds the key, and `on_conflict="reject"`; nothing changed.
            JobNotFound: a job of `depends_on` does not exist; nothing was added.
            DurabilityTimeout: the job was added, but its `durability` was not confirmed within
                3 s. A retry with `job_id=` is safe here too.
        """
        with around_sending(self.name, None) if middleware.in_use else middleware.NOT_AROUND:
            jobs = await self._send([self.prepare(task, args, kwargs, **options)])
        return jobs[0]

    async def enqueue_many(
        self, jobs: Iterable[Prepared], *, durability: Durability | None = None
    ) -> list[AsyncJob[Any]]:
        """Add prepared jobs: up to some thousands in one round trip; raises as `enqueue_call` does.

        Calls that start while another is in flight share the next round trip.
        If the server becomes full, the jobs before that point are added; enqueueing the same
        prepared jobs again adds the rest. If a job raises `DuplicateJob`, all other jobs are added.
        If `durability` is given, it replaces the durability of each job. The call waits for
        every confirmation that any of its jobs asks for.

        Jobs of an iterator are added in batches of a hundred. If the iterator raises, the jobs that
        it gave before are added. If bide raises, the error's `left` holds the jobs that may or may
        not have been added: enqueueing them again is safe. If both raise, the iterator's
        error is raised, and bide's error is its `__cause__`.
        """
        return await loops.add_batches(self, Batches(jobs, durability))

    async def batch(
        self,
        key: str | int,
        item: object,
        *,
        into: Callable[..., Any] | str,
        quiet: Duration = "5s",
        max_wait: Duration | None = "60s",
        max_size: int = 100,
        close: Duration | None = None,
        **options: Unpack[Options],
    ) -> AsyncJob[Any]:
        """Add an item to a batch; one job calls `into` with the list of items, in order of arrival.

        The job is due as soon as one of `quiet`, `max_wait` and `max_size` is reached, or when its
        items take 1 MB. An item that you add with `close` marks the end of the batch: later items
        join, and do not postpone the job beyond that time.

        Args:
            key: items with the same key and task share a batch.
            item: a value that the serializer can encode, like an argument.
            into: the task. Each item is converted to the annotated item type of its list.
            quiet: time without a new item.
            max_wait: time since the first item; None for no limit.
            max_size: number of items, at most 10,000.
            close: maximum time from this item, the end marker, until the job is due. The marker may
                come first. If it comes again, the earlier time counts.
            options: see `bide.Options`; the options of the first item apply to the job.

        Returns:
            The job that holds the item; its `enqueue_result` is `"created"` or `"batched"`.

        Raises:
            BideError: as for `enqueue_call`.
        """
        policy = Batch(quiet, max_wait, max_size, key, close)
        return await self.enqueue_call(into, (item,), **in_batch(policy, options))

    async def _send(self, jobs: Sequence[Prepared]) -> list[AsyncJob[Any]]:
        """Add jobs, or items of data, without middlewares."""
        binding = self._binding
        if binding.seal.keyring is not None:
            jobs = signed(jobs, binding.seal)
        if (fake_server := binding.fake_server) is not None:
            taken = await fake_server.enqueue_async(binding.keys, jobs)
            return [AsyncJob(self, r.id, receipt=r, snapshot=s) for r, s in taken]
        return self._added(await self._attempt_shared(jobs), jobs)

    async def _attempt(
        self, jobs: Sequence[Prepared], exchanges: Iterator[Exchange] | None = None
    ) -> list[Receipt | BideError]:
        """Add jobs up to the end of the first round trip in which a job failed.

        Args:
            jobs: signed.
            exchanges: the round trips that add them, if they were prepared.

        Returns:
            A receipt or an error for each job. If the server did not answer, that error stands for
            all remaining jobs.
        """
        receipts: list[Receipt | BideError] = []
        for exchange in exchanges or self._pipeline(jobs, self._binding):
            client = exchange.binding.client
            try:
                replies = await client.attempt_many(exchange.commands)
            except BideError as error:
                return [*receipts, *[error] * (len(jobs) - len(receipts))]
            if not exchange.read(replies, receipts):
                break
        return receipts

    def _added(
        self, replies: Sequence[Receipt | BideError], jobs: Sequence[Prepared]
    ) -> list[AsyncJob[Any]]:
        """Return the jobs that were added, or raise the first error.

        If a job was rejected, all others are added.
        """
        added: list[AsyncJob[Any]] = []
        rejected: DuplicateJob | None = None
        for reply, job in zip(replies, jobs, strict=False):
            if isinstance(reply, BideError):
                raise retryable(reply, jobs)
            if reply.result == "rejected" and rejected is None:
                key = Constraints.read(job.constraints.encode()).key
                rejected = not_unique(reply.id, repr(key))
            added.append(AsyncJob(self, reply.id, receipt=reply))
        if rejected is not None:
            raise rejected
        return added

    async def fetch(self, id: str) -> AsyncJob[Any]:
        """Return the job with this id, in its present state.

        Raises:
            JobNotFound: the job never existed, or no longer exists.
        """
        checked_ids([id])
        job: AsyncJob[Any] = AsyncJob(self, id)
        return await job.refresh()

    async def fetch_many(self, ids: Sequence[str]) -> list[AsyncJob[Any] | None]:
        """Return jobs by id in one round trip; None for a job that does not exist."""
        pages = await self._client.run_many(job_commands.fetch_many(self.keys, checked_ids(ids)))
        return [s and AsyncJob(self, s.id, snapshot=s) for page in pages for s in page]

    async def jobs(self, state: str, start: int = 0, count: int = 50) -> list[AsyncJob[Any]]:
        """Return a page of the jobs in a state: due jobs in running order, others newest first."""
        ids = await self._client.run(job_commands.listing(self.keys, state, start, count))
        return [job for job in await self.fetch_many(ids) if job is not None]

    def where(
        self,
        *,
        state: str | Iterable[str] | None = None,
        task: Function | str | None = None,
        group: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        error: str | None = None,
        older_than: Duration | None = None,
        due_before: Duration | datetime | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncSelection:
        """Select the jobs that match all given conditions, to read or to change them.

            await queue.where(state="delayed", kwargs={"user_id": 42}).cancel()

        Nothing is sent before the selection is used. A selection without conditions can be read,
        and not changed.

        Args:
            state: one or several states; without it all, or those that the change usually affects.
            task: a task, or the name of one, which may be a pattern: `"shop:*"`.
            group: the name of a group.
            args: the first positional arguments.
            kwargs: arguments by name. A positional argument counts under the name of its parameter
                if this process has imported the function. Arguments that are pickled never match.
            meta: entries of the job's meta.
            error: a part of the last error, or a pattern: `"KeyError: *"`.
            older_than: jobs that ended, started or were due (depending on their state) longer ago.
            due_before: jobs that are due before a moment, or within a duration from now.
            since: jobs that ended, started or are due (depending on their state) at this moment or
                later.
            until: the same before this moment.
            limit: maximum number of jobs.

        Raises:
            UsageError: a condition is invalid.
        """
        from bide.queue._async.scan import AsyncSelection  # when it is first used
        from bide.queue.select import make_filter

        wanted = make_filter(
            state=state,
            task=task,
            group=group,
            args=args,
            kwargs=kwargs,
            meta=meta,
            error=error,
            older_than=older_than,
            due_before=due_before,
            since=since,
            until=until,
        )
        return AsyncSelection(self, wanted, checked_limit(limit))

    async def spread(self, over: Duration) -> BulkResult:
        """Spread the jobs that are due and wait evenly over a time from now, such as `"10m"`.

        `where(...).spread(over)` spreads other jobs.

        Raises:
            UsageError: `over` is invalid.
        """
        return await self.where(state="waiting").spread(over)

    async def upcoming(
        self, count: int = 50, within: Duration | None = None
    ) -> list[AsyncJob[Any]]:
        """Return the next `count` delayed jobs that are due `within` a time, 500 at most."""
        within_us = 0 if within is None else to_us(within, "within")
        found = await self._client.run(job_commands.upcoming(self.keys, within_us, count))
        return [job for job in await self.fetch_many([id for id, _ in found]) if job is not None]

    async def counts(self) -> QueueStats:
        """Return the number of jobs in each state."""
        return await self._client.run(job_commands.counts(self.keys))

    async def configure(self, **settings: Unpack[QueueSettings]) -> None:
        """Change settings (`bide.QueueSettings`) for all workers; other settings stay as they are.

        Raises:
            UsageError: a setting is invalid or not declared, or none is given.
        """
        if DECLARED in settings.values():
            settings = as_declared(settings, await self.counts(), self.name)
        await self._client.run_many(settings_calls(self.keys, settings))

    def events(
        self,
        *,
        name: str | None = None,
        after: str | None = None,
        kinds: str | Iterable[str] | None = None,
        job_id: str | Iterable[str] | None = None,
        timeout: Duration | None = None,
    ) -> AsyncEvents:
        """Read the queue's events, from the moment in which the context is entered.

            async with queue.events(kinds=("failed", "reclaimed")) as events:
                async for event in events: ...

        The server keeps events only while there is a listener, and 10,000 at most. If events were
        lost, an event of kind `gap` reports it, even if `kinds` does not name `gap`.

        Args:
            name: the listener's name. The server keeps events for ten minutes after the last read
                of this name, so that the listener can return with `after=`. Without a name, the
                server keeps them while the context lasts.
            after: the `id` of the last event that you have read; None for new events only.
            kinds: one or several kinds of events, such as `"completed"`; None for all.
            job_id: the id of one or several jobs; None for all.
            timeout: end the iteration after this long without an event; None for no limit.

        Raises:
            UsageError: a kind does not exist, or an id, a name or the time-out is invalid.
        """
        reader = self._make_reader(name, after, kinds, job_id, timeout)
        binding = self._binding
        return AsyncEvents(reader, lambda: self._make_client(binding.url, binding.clock))

    async def on(
        self,
        kinds: str | Iterable[str],
        callback: Callable[[Event], object],
        *,
        name: str | None = None,
        after: str | None = None,
        job_id: str | Iterable[str] | None = None,
    ) -> AsyncEventListener:
        """Call a function with each event of the queue from now on, in a task of its own.

        A coroutine function is awaited. If the function raises, the error is logged. The listener
        runs until its `stop()` or the queue's `close()` is called.

        Args:
            kinds: one or several kinds of events, such as `"completed"`.
            callback: takes the `Event`.
            name: the listener's name, as for `events`.
            after: the `id` of the last event that you have read; None for new events only.
            job_id: the id of one or several jobs; None for all.

        Raises:
            UsageError: as for `events`, or the callback is not a function.
            BideError: the server cannot be reached, or refuses.
        """
        wanted = loops.checked_callback(kinds, callback)
        events = self.events(name=name, after=after, kinds=wanted, job_id=job_id)
        await events.__aenter__()
        listener = AsyncEventListener(events, wanted, callback, self._listeners.discard)
        self._listeners.add(listener)
        return listener

    async def cancel(self, id: str, running: bool = True) -> bool:
        """Cancel a job before it runs; ask a running job to stop, unless `running=False`.

        A running coroutine is cancelled. A running plain function continues until it checks
        `current_job().should_stop`.

        Returns:
            True if the job is cancelled, now or before, or was asked to stop. False if it ended in
            another way, does not exist, or runs and `running=False`.
        """
        binding = self._binding
        command = job_commands.cancel(binding.keys, checked_ids([id]), running)
        (word,) = await binding.client.run(command)
        return word in ("ok", "asked", "cancelled")  # by this call, or an earlier retry

    async def cancel_many(self, ids: Sequence[str], running: bool = True) -> list[str]:
        """Cancel many jobs; return for each `ok`, `asked`, its state, or `gone`."""
        commands = [job_commands.cancel(self.keys, some, running) for some in chunks(ids)]
        return [word for words in await self._client.run_many(commands) for word in words]

    async def reschedule_many(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Give jobs another due time; return for each `ok`, its state, or `gone`."""
        parts = [*chunks(ids)]
        when = enqueue_commands.given_when(delay, at)
        return await self._move([job_commands.reschedule(self.keys, some, when) for some in parts])

    async def promote_many(self, ids: Sequence[str]) -> list[str]:
        """Make jobs due now; return for each `ok`, its state, or `gone`."""
        return await self._move([job_commands.promote(self.keys, some) for some in chunks(ids)])

    async def retry_many(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Run finished jobs again; return for each `ok`, its state, or `gone`."""
        when = enqueue_commands.when(delay, at)
        return await self._move([job_commands.retry(self.keys, some, when) for some in chunks(ids)])

    async def delete_many(self, ids: Sequence[str]) -> list[str]:
        """Delete jobs; return for each `ok`, `active` (nothing was deleted) or `gone`."""
        commands = [job_commands.delete(self.keys, some) for some in chunks(ids)]
        return [word for words in await self._client.run_many(commands) for word in words]

    async def pause(self) -> None:
        """Stop workers from claiming jobs of this queue; running jobs continue."""
        await self._client.run(job_commands.pause(self.keys))

    async def resume(self) -> None:
        """Let workers claim jobs of this queue again."""
        await self._client.run(job_commands.resume(self.keys))

    async def purge(self) -> int:
        """Remove all delayed, waiting and blocked jobs, in bounded steps; return their number."""
        begin = new_id()
        step = await self._client.run(job_commands.purge(self.keys, begin))
        while step.busy:
            step = await self._client.run(job_commands.purge(self.keys, begin))
        removed = step.aside
        while step.more:
            step = await self._client.run(job_commands.purge(self.keys, None))
        return removed

    @property
    def schedules(self) -> AsyncSchedules:
        """The queue's schedules."""
        return AsyncSchedules(self)

    def group(self, name: str) -> AsyncGroup:
        """Return the group of this name, even if it has no jobs.

        Raises:
            UsageError: the name is invalid.
        """
        return AsyncGroup(self, name)

    async def groups(self) -> list[GroupCounts]:
        """Return the groups that have jobs, are configured or are paused, sorted by name."""
        found: dict[str, GroupCounts] = {}
        cursor = None
        while cursor != queue_commands.BEGIN:
            page = await self._run(queue_commands.page(self.keys, cursor or queue_commands.BEGIN))
            cursor = page.cursor
            found |= {one.name: one for one in page.groups}
        return [found[name] for name in sorted(found)]

    async def parents(self, id: str | None = None) -> list[AsyncJob[Any]]:
        """Return the parents of a job: the jobs that it waits or waited for, in the order given.

        Args:
            id: the id of a job of this queue; None for the job that the calling code runs in.

        Raises:
            JobNotFound: there is no job with this id, or one of its parents no longer exists.
            UsageError: no id was given, and the caller does not run in a job.
        """
        if id is None:
            own, parents = current_job().queue, current_job().parents
        else:
            own, parents = self.name, (await self.fetch(id)).parents
        read = {}
        for name, ids in by_queue(own, parents).items():
            fetches = job_commands.fetch_many(keys_of(name, self.prefix), ids)
            pages = await self._client.run_many(fetches)
            read[name] = [snapshot for page in pages for snapshot in page]
        return [
            AsyncJob(self._beside(name), snapshot.id, snapshot=snapshot)
            for name, snapshot in in_order(own, parents, read)
        ]

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers that serve this queue and live or hold a job, with their running jobs.

        A worker that dies is listed for up to 15 seconds, and for as long as it holds a job.
        """
        seen = await self._client.run(queue_commands.workers(self._binding.everywhere))
        seen = [worker for worker in seen if self.name in worker.about.queues]
        held = await self._client.attempt_many(queue_commands.ask(seen, self.prefix))
        return queue_commands.tell(seen, held)

    async def close(self) -> None:
        """Close the connections of this event loop, after the enqueues that are in flight.

        The event listeners of this loop stop. The next call opens new connections.
        """
        await self._wind_up()
        await self._binding.made.close()

    def _make_client(self, url: str, clock: str) -> aio.AsyncClient:
        fake_server: FakeServer | None = config.overridden().fake_server
        if fake_server is not None:
            return fake_server.awaited(self.name)
        return aio.AsyncClient(url, retry_for=self._retry_for, clock=clock)

    async def _run(self, command: Command[T]) -> T:
        return await self._client.run(command)

    async def _move(self, commands: Sequence[Command[list[ChangeResult]]]) -> list[str]:
        return [moved.result for page in await self._client.run_many(commands) for moved in page]

    def _beside(self, name: str) -> AsyncQueue:
        if name == self.name:
            return self
        return type(self)(
            name,
            url=self._url,
            prefix=self._prefix,
            serializer=self.serializer,
            retry_for=self._retry_for,
        )
