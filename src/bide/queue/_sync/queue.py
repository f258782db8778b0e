"""Queues for code that blocks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from bide.client import blocking, config
from bide.client.execute import RETRY_FOR
from bide.errors import BideError
from bide.model.constraints import RunIf
from bide.model.context import current_job
from bide.model.dedup import Batch, Folding
from bide.model.durations import Duration, to_us
from bide.model.events import Event
from bide.model.ids import new_id
from bide.model.options import (
    Durability,
    OnCrash,
    Options,
    Parents,
    QueueSettings,
    ScheduleOptions,
    TaskOptions,
)
from bide.model.payload.serializers import Codec
from bide.model.retry import Retry
from bide.model.schedule import Missed
from bide.protocol.command import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared, Receipt
from bide.protocol.commands.jobs import ChangeResult, QueueStats
from bide.protocol.commands.queues import GroupCounts, WorkerInfo
from bide.protocol.keys import keys_of
from bide.queue._sync.events import EventListener, Events, stop_all
from bide.queue._sync.job import Job
from bide.queue._sync.schedules import Group, Schedules
from bide.queue.binding import FakeServer
from bide.queue.core import (
    Exchange,
    QueueCore,
    checked_callback,
    checked_ids,
    chunks,
    first_error,
    none_rejected,
    options_only,
    read_cancel,
    settings_calls,
)
from bide.queue.dependencies import by_queue, in_order
from bide.queue.job_view import not_found
from bide.queue.pipeline import Batches, EnqueuePipeline
from bide.queue.schedules import declaring
from bide.queue.task import Task, TaskDecorator
from bide.tasks.middleware import around_sending, used
from bide.tasks.task import Function

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Queue(QueueCore[blocking.Client]):
    """A queue, for code that blocks; safe to share by threads."""

    def __init__(
        self,
        name: str = "default",
        *,
        url: str | None = None,
        prefix: str | None = None,
        serializer: Codec = "json",
        retry_for: float = RETRY_FOR,
    ) -> None:
        """Create a queue; nothing is sent before the first call.

        Args:
            name: the queue's name, without braces, spaces or control characters.
            url: the server. Without it, bide takes `$BIDE_URL`, then the `url` of `[tool.bide]` in
                pyproject.toml, then redis://127.0.0.1:6379/0.
            prefix: the prefix of all keys, which separates applications that share a server.
                Without it, bide takes `$BIDE_PREFIX`, then the `prefix` of `[tool.bide]`, then
                `bide`.
            serializer: how arguments and results are encoded: `"json"`, `"msgpack"` or `"pickle"`.
                Reading a pickle runs code, so it needs a signing key ($BIDE_SIGNING_KEYS), and the
                worker must allow it too.
            retry_for: seconds for which a call is retried when the connection breaks, 0 to 10.

        Raises:
            UsageError: a name, the URL, the serializer or `retry_for` is invalid.
        """
        super().__init__(name, url, prefix, serializer, retry_for)
        self._listeners: set[EventListener] = set()

    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self, /, *, name: str | None = None, **options: Unpack[TaskOptions]
    ) -> TaskDecorator: ...
    def task(
        self, function: Any = None, /, *, name: str | None = None, **options: Unpack[TaskOptions]
    ) -> Any:
        """Register a function as a task of this queue, with default options for its jobs.

        A worker that imports the function's module can run the task, even if the module is not
        one of those that the worker serves.

        Args:
            function: the function, where the decorator is used without options.
            name: the task's name instead of `module:function`: a word such as `"send_email"`.
                Programs that do not have the function can enqueue it by this name.

        Raises:
            UsageError: a worker could not find the function by its name, another task has the
                name, or an option is invalid.
        """
        if function is None:
            return lambda function: Task(function, self, options, name)
        return Task(function, self, options, name)

    def cron(
        self,
        expression: str,
        *,
        name: str | None = None,
        tz: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        missed: Missed = "once",
        jitter: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> TaskDecorator:
        """Declare a schedule of a task; workers that serve the queue set it when they start.

            @queue.cron("0 9 * * 1-5", tz="Europe/Paris")
            def report() -> None: ...

        Args:
            expression: five fields, such as `"0 9 * * 1-5"`.
            name: the schedule's name; by default the task's.
            tz: the time zone, as for `Schedules.upsert`, like all arguments that follow.
            args: positional arguments.
            kwargs: keyword arguments.
            start: the schedule does not fire before this moment.
            end: the schedule does not fire after this moment.
            limit: maximum number of times that it fires.
            missed: what happens with times that passed while no worker was running.
            jitter: maximum time by which a job is due after its time.
            options: options of its jobs.

        Raises:
            UsageError: an argument is invalid, or the queue has another schedule of this name.
        """
        decorator: TaskDecorator = declaring(
            self,
            Task,
            name,
            args,
            kwargs,
            options,
            cron=expression,
            tz=tz,
            start=start,
            end=end,
            limit=limit,
            missed=missed,
            jitter=jitter,
        )
        return decorator

    def every(
        self,
        interval: Duration,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        missed: Missed = "once",
        jitter: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> TaskDecorator:
        """Declare a schedule of a task with an interval, such as `"90s"`; see `cron`."""
        decorator: TaskDecorator = declaring(
            self,
            Task,
            name,
            args,
            kwargs,
            options,
            every=interval,
            start=start,
            end=end,
            limit=limit,
            missed=missed,
            jitter=jitter,
        )
        return decorator

    def enqueue(
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
        unique: Folding | None = None,
        depends_on: Parents | None = None,
        run_if: RunIf | None = None,
        description: str | None = None,
        meta: Mapping[str, Any] | None = None,
        on_success: Function | str | None = None,
        on_failure: Function | str | None = None,
        **kwargs: Any,
    ) -> Job[Any]:
        """Add a job that calls `task(*args, **kwargs)`; options and errors as for `enqueue_call`.

        If the function has a parameter with the name of an option, that option is refused here.
        """
        given = (
            delay,
            at,
            priority,
            job_id,
            timeout,
            retry,
            retention,
            durability,
            on_crash,
            expires,
            group,
            group_concurrency,
            unique,
            depends_on,
            run_if,
            description,
            meta,
            on_success,
            on_failure,
        )
        options = options_only(task, given)
        return self.enqueue_call(task, args, kwargs, **options)

    def enqueue_call(
        self,
        task: Callable[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job[Any]:
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
            DuplicateJob: another job holds the key, and `unique` says to reject; nothing was
                changed.
            JobNotFound: a job of `depends_on` does not exist; nothing was added.
            DurabilityTimeout: the job was added, but its `durability` was not confirmed within
                3 s. A retry with `job_id=` is safe here too.
        """
        with around_sending(self.name, None):
            jobs = self._send([self.prepare(task, args, kwargs, **options)])
        return jobs[0]

    def enqueue_many(
        self, jobs: Iterable[Prepared], *, durability: Durability | None = None
    ) -> list[Job[Any]]:
        """Add prepared jobs: up to some thousands in one round trip; raises as `enqueue_call` does.

        If the server becomes full, the jobs before that point are added; enqueueing the same
        prepared jobs again adds the rest. If a job raises `DuplicateJob`, all other jobs are added.
        If `durability` is given, it replaces the durability of each job. The call waits for
        every confirmation that any of its jobs asks for.

        Jobs of an iterator are added in batches of a hundred; while the server adds a batch, the
        next batch is prepared and sent. If the iterator raises, the jobs that it gave before are
        added. If bide raises, the error's `left` holds the jobs that may or may not have been
        added: enqueueing them again is safe.
        """
        batches = Batches(jobs, durability)
        added: list[Job[Any]] = []
        begun: EnqueuePipeline | None = None
        ahead: EnqueuePipeline | None = None
        is_smooth = self._binding.known  # or the answer might be that a script is missing
        try:
            for batch in batches:
                with batches.sending(batch), around_sending(self.name, batch):
                    begun, ahead = ahead, None
                    if begun is None and batches.are_several:
                        begun = self._begin(batch)
                    if self._binding.known:
                        batches.look_ahead()
                    if is_smooth and batches.ready and not used():
                        ahead = self._begin(batches.ready, begun)
                    added += self._send(batch, begun)
                    is_smooth = begun is not None and begun.is_smooth
        finally:
            for left in (begun, ahead):
                if left is not None:
                    left.drop()
        return added

    def _begin(
        self, jobs: Sequence[Prepared], behind: EnqueuePipeline | None = None
    ) -> EnqueuePipeline | None:
        """Send the first round trip of these jobs without reading its replies."""
        binding = self._binding
        if binding.fake_server is not None:
            return None
        return EnqueuePipeline(self._pipeline(self._signed(jobs, binding), binding), behind)

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

    def _send(
        self, jobs: Sequence[Prepared], begun: EnqueuePipeline | None = None
    ) -> list[Job[Any]]:
        """Add jobs, or items of data, without middlewares; `begun` holds what was sent already."""
        binding = self._binding
        exchanges: Iterator[Exchange] | None = begun
        if exchanges is None:
            jobs = self._signed(jobs, binding)
            if (fake_server := binding.fake_server) is not None:
                taken = fake_server.enqueue(binding.keys, jobs)
                return [Job(self, r.id, receipt=r, snapshot=s) for r, s in taken]
            exchanges = self._pipeline(jobs, binding)
        receipts: list[Receipt] = []
        for exchange in exchanges:
            came: list[Receipt | BideError]
            try:
                if exchange.begun is None:
                    came = exchange.read(exchange.binding.client.attempt_many(exchange.commands))
                else:
                    came = exchange.read(exchange.begun.end())
            except BideError as failed:
                came = [failed]
            if error := first_error(came, jobs):
                raise error
            receipts += [receipt for receipt in came if isinstance(receipt, Receipt)]
        none_rejected(receipts, jobs)
        return [Job(self, r.id, receipt=r) for r in receipts]

    def fetch(self, id: str) -> Job[Any]:
        """Return the job with this id, in its present state.

        Raises:
            JobNotFound: the job never existed, or no longer exists.
        """
        job = self.fetch_many([id])[0]
        if job is None:
            raise not_found(id)
        return job

    def fetch_many(self, ids: Sequence[str]) -> list[Job[Any] | None]:
        """Return jobs by id in one round trip; None for a job that does not exist."""
        pages = self._client.run_many(job_commands.fetch_many(self.keys, checked_ids(ids)))
        return [s and Job(self, s.id, snapshot=s) for page in pages for s in page]

    def jobs(self, state: str, start: int = 0, count: int = 50) -> list[Job[Any]]:
        """Return a page of the jobs in a state: due jobs in running order, others newest first."""
        ids = self._client.run(job_commands.listing(self.keys, state, start, count))
        return [job for job in self.fetch_many(ids) if job is not None]

    def upcoming(self, count: int = 50, within: Duration | None = None) -> list[Job[Any]]:
        """Return the next `count` delayed jobs that are due `within` a time, of any priority."""
        within_us = 0 if within is None else to_us(within, "within")
        found = self._client.run(job_commands.upcoming(self.keys, within_us, count))
        return [job for job in self.fetch_many([id for id, _ in found]) if job is not None]

    def counts(self) -> QueueStats:
        """Return the number of jobs in each state."""
        return self._client.run(job_commands.counts(self.keys))

    def configure(self, **settings: Unpack[QueueSettings]) -> None:
        """Change settings (`bide.QueueSettings`) for all workers; other settings stay as they are.

        Raises:
            UsageError: a setting is invalid, or none is given.
        """
        self._client.run_many(settings_calls(self.keys, settings))

    def events(
        self,
        *,
        name: str | None = None,
        after: str | None = None,
        kinds: str | Iterable[str] | None = None,
        job_id: str | Iterable[str] | None = None,
        timeout: Duration | None = None,
    ) -> Events:
        """Read the queue's events, from the moment in which the context is entered.

            with queue.events(kinds=("failed", "reclaimed")) as events:
                for event in events: ...

        The server keeps events only while there is a listener, and 10,000 at most. If events were
        lost, an event of kind `gap` reports it, even if `kinds` does not name `gap`.

        Args:
            name: the listener's name. The server keeps events for ten minutes after the last read
                of this name, so that the listener can return with `after=`. Without a name, the
                server keeps them while the context lasts.
            after: the `id` of the last event that you have read; None for new events only.
            kinds: one or several of `bide.model.job.EVENTS`; None for all.
            job_id: the id of one or several jobs; None for all.
            timeout: end the iteration after this long without an event; None for no limit.

        Raises:
            UsageError: a kind does not exist, or an id, a name or the time-out is invalid.
        """
        reader = self._make_reader(name, after, kinds, job_id, timeout)
        binding = self._binding
        return Events(reader, lambda: self._make_client(binding.url, binding.clock))

    def on(
        self,
        kinds: str | Iterable[str],
        callback: Callable[[Event], object],
        *,
        name: str | None = None,
        after: str | None = None,
        job_id: str | Iterable[str] | None = None,
    ) -> EventListener:
        """Call a function with each event of the queue from now on, in a thread of its own.

        If the function raises, the error is logged. The listener runs until its `stop()` or the
        queue's `close()` is called.

        Args:
            kinds: one or several of `bide.model.job.EVENTS`.
            callback: takes the `Event`.
            name: the listener's name, as for `events`.
            after: the `id` of the last event that you have read; None for new events only.
            job_id: the id of one or several jobs; None for all.

        Raises:
            UsageError: as for `events`, or the callback is not a function.
            BideError: the server cannot be reached, or refuses.
        """
        wanted = checked_callback(kinds, callback)
        events = self.events(name=name, after=after, kinds=wanted, job_id=job_id)
        events.__enter__()
        listener = EventListener(events, wanted, callback, self._listeners.discard)
        self._listeners.add(listener)
        return listener

    def cancel(self, id: str, running: bool = True) -> bool:
        """Cancel a job before it runs; ask a running job to stop, unless `running=False`.

        A running coroutine is cancelled. A running plain function continues until it checks
        `current_job().should_stop`.

        Returns:
            True if the job is cancelled, now or before, or was asked to stop. False if it ended in
            another way, does not exist, or runs and `running=False`.
        """
        return read_cancel(self.cancel_many([id], running))

    def cancel_many(self, ids: Sequence[str], running: bool = True) -> list[str]:
        """Cancel many jobs; return for each `ok`, `asked`, its state, or `gone`."""
        commands = [job_commands.cancel(self.keys, some, running) for some in chunks(ids)]
        return [word for words in self._client.run_many(commands) for word in words]

    def reschedule_many(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Give jobs another due time; return for each `ok`, its state, or `gone`."""
        when = enqueue_commands.when(delay, at)
        return self._move([job_commands.reschedule(self.keys, some, when) for some in chunks(ids)])

    def promote_many(self, ids: Sequence[str]) -> list[str]:
        """Make jobs due now; return for each `ok`, its state, or `gone`."""
        return self._move([job_commands.promote(self.keys, some) for some in chunks(ids)])

    def retry_many(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Run finished jobs again; return for each `ok`, its state, or `gone`."""
        when = enqueue_commands.when(delay, at)
        return self._move([job_commands.retry(self.keys, some, when) for some in chunks(ids)])

    def delete_many(self, ids: Sequence[str]) -> list[str]:
        """Delete jobs; return for each `ok`, `active` (nothing was deleted) or `gone`."""
        commands = [job_commands.delete(self.keys, some) for some in chunks(ids)]
        return [word for words in self._client.run_many(commands) for word in words]

    def pause(self) -> None:
        """Stop workers from claiming jobs of this queue; running jobs continue."""
        self._client.run(job_commands.pause(self.keys))

    def resume(self) -> None:
        """Let workers claim jobs of this queue again."""
        self._client.run(job_commands.resume(self.keys))

    def purge(self) -> int:
        """Remove all delayed, waiting and blocked jobs, in bounded steps; return their number."""
        begin = new_id()
        step = self._client.run(job_commands.purge(self.keys, begin))
        while step.busy:
            step = self._client.run(job_commands.purge(self.keys, begin))
        removed = step.aside
        while step.more:
            step = self._client.run(job_commands.purge(self.keys, None))
        return removed

    @property
    def schedules(self) -> Schedules:
        """The queue's schedules."""
        return Schedules(self)

    def group(self, name: str) -> Group:
        """Return the group of this name, even if it has no jobs.

        Raises:
            UsageError: the name is invalid.
        """
        return Group(self, name)

    def groups(self) -> list[GroupCounts]:
        """Return the groups that have jobs, are configured or are paused, sorted by name."""
        found: dict[str, GroupCounts] = {}
        cursor = None
        while cursor != queue_commands.BEGIN:
            page = self._run(queue_commands.page(self.keys, cursor or queue_commands.BEGIN))
            cursor = page.cursor
            found |= {one.name: one for one in page.groups}
        return [found[name] for name in sorted(found)]

    def parents(self, id: str | None = None) -> list[Job[Any]]:
        """Return the parents of a job: the jobs that it waits or waited for, in the order given.

        Args:
            id: the id of a job of this queue; None for the job that the calling code runs in.

        Raises:
            JobNotFound: there is no job with this id, or one of its parents no longer exists.
            UsageError: no id was given, and the caller does not run in a job.
        """
        if id is None:
            home, parents = current_job().queue, current_job().parents
        else:
            home, parents = self.name, self.fetch(id).parents
        read = {}
        for name, ids in by_queue(home, parents).items():
            pages = self._client.run_many(job_commands.fetch_many(keys_of(name, self.prefix), ids))
            read[name] = [snapshot for page in pages for snapshot in page]
        return [
            Job(self._beside(name), snapshot.id, snapshot=snapshot)
            for name, snapshot in in_order(home, parents, read)
        ]

    def workers(self) -> list[WorkerInfo]:
        """Return the workers that serve this queue and live or hold a job, with their running jobs.

        A worker that dies is listed for up to 15 seconds, and for as long as it holds a job.
        """
        seen = self._client.run(queue_commands.workers(self._binding.everywhere))
        seen = [worker for worker in seen if self.name in worker.about.queues]
        held = self._client.attempt_many(queue_commands.ask(seen, self.prefix))
        return queue_commands.tell(seen, held)

    def close(self) -> None:
        """Stop the event listeners and close the connections; the next call opens new ones."""
        stop_all(self._listeners)
        self._binding.made.close()

    def _make_client(self, url: str, clock: str) -> blocking.Client:
        fake_server: FakeServer | None = config.overridden().fake_server
        if fake_server is not None:
            return fake_server.blocking(self.name)
        return blocking.Client(url, retry_for=self._retry_for, clock=clock)

    def _leave(self, client: blocking.Client) -> None:
        stop_all(self._listeners)
        client.close()

    def _run(self, command: Command[T]) -> T:
        return self._client.run(command)

    def _move(self, commands: Sequence[Command[list[ChangeResult]]]) -> list[str]:
        return [moved.result for page in self._client.run_many(commands) for moved in page]

    def _beside(self, name: str) -> Queue:
        """Return another queue of this server by its name."""
        if name == self.name:
            return self
        return type(self)(
            name,
            url=self._url,
            prefix=self._prefix,
            serializer=self.serializer,
            retry_for=self._retry_for,
        )
