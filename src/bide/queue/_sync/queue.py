"""Queues for code that blocks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

from bide.client import blocking, config
from bide.client.execute import RETRY_FOR
from bide.errors import BideError
from bide.model.constraints import OnParentCancel
from bide.model.context import current_job
from bide.model.dedup import Folding
from bide.model.durations import Duration, to_us
from bide.model.events import Event
from bide.model.ids import new_id
from bide.model.options import Durability, OnCrash, Options, Parents, QueueSettings, TaskOptions
from bide.model.payload.serializers import Codec
from bide.model.retry import Retry
from bide.protocol.command import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared, Receipt
from bide.protocol.commands.jobs import ChangeResult, QueueStats
from bide.protocol.commands.queues import WorkerInfo
from bide.protocol.keys import keys_of
from bide.queue._sync.events import EventListener, Events, stop_all
from bide.queue._sync.job import Job
from bide.queue._sync.schedules import Grouping, Scheduling
from bide.queue.batching import Batching, none_rejected
from bide.queue.binding import FakeServer
from bide.queue.core import (
    Exchange,
    QueueCore,
    checked_callback,
    checked_ids,
    chunks,
    first_error,
    options_only,
    read_cancel,
    settings_calls,
)
from bide.queue.dependencies import by_queue, in_order
from bide.queue.job_view import not_found
from bide.queue.pipeline import Batches, EnqueuePipeline
from bide.queue.task import Task, TaskDecorator
from bide.tasks.middleware import around_sending, used
from bide.tasks.task import Function


class Managing(QueueCore[blocking.Client]):
    """What a queue does with jobs that are there, and with itself."""

    def cancel(self, id: str, running: bool = True) -> bool:
        """Take a job back before it runs; one that runs is asked to end, unless `running=False`.

        Asked to end, a coroutine is cancelled; a plain function goes on until it looks at
        `current_job().should_stop`.

        Returns:
            Whether it is cancelled, now or before, or asked to end; False if it has ended in
            another way, does not exist, or runs and is not to be asked.
        """
        return read_cancel(self.cancel_many([id], running))

    def cancel_many(self, ids: Sequence[str], running: bool = True) -> list[str]:
        """`cancel` for many; for each `ok`, `asked`, the state it is in instead, or `gone`."""
        commands = [job_commands.cancel(self.keys, some, running) for some in chunks(ids)]
        return [word for words in self._client.run_many(commands) for word in words]

    def reschedule_many(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Give jobs another due time; for each `ok`, the state it is in instead, or `gone`."""
        when = enqueue_commands.when(delay, at)
        return self._move([job_commands.reschedule(self.keys, some, when) for some in chunks(ids)])

    def promote_many(self, ids: Sequence[str]) -> list[str]:
        """Make jobs due now; for each `ok`, the state it is in instead, or `gone`."""
        return self._move([job_commands.promote(self.keys, some) for some in chunks(ids)])

    def retry_many(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Run jobs that have ended once more; for each `ok`, its state instead, or `gone`."""
        when = enqueue_commands.when(delay, at)
        return self._move([job_commands.retry(self.keys, some, when) for some in chunks(ids)])

    def delete_many(self, ids: Sequence[str]) -> list[str]:
        """Remove every trace of jobs; for each `ok`, `active` (nothing was removed) or `gone`."""
        commands = [job_commands.delete(self.keys, some) for some in chunks(ids)]
        return [word for words in self._client.run_many(commands) for word in words]

    def pause(self) -> None:
        """Let no job be claimed; those that run go on."""
        self._client.run(job_commands.pause(self.keys))

    def resume(self) -> None:
        """Let jobs be claimed again."""
        self._client.run(job_commands.resume(self.keys))

    def purge(self) -> int:
        """Remove all delayed, waiting and blocked jobs, in bounded steps; how many there were."""
        begin = new_id()
        step = self._client.run(job_commands.purge(self.keys, begin))
        while step.busy:
            step = self._client.run(job_commands.purge(self.keys, begin))
        removed = step.aside
        while step.more:
            step = self._client.run(job_commands.purge(self.keys, None))
        return removed

    def _move(self, commands: Sequence[Command[list[ChangeResult]]]) -> list[str]:
        return [moved.result for page in self._client.run_many(commands) for moved in page]


class Reading:
    """What a queue asks of other queues, and of workers."""

    def parents(self, id: str | None = None) -> list[Job[Any]]:
        """The jobs that a job waits for, or has waited for, in the order given.

        Args:
            id: of a job of this queue; None for the job that the calling code runs in.

        Raises:
            JobNotFound: there is no job of this id, or one of those that it waits for is no more.
            UsageError: without an id, outside of a job.
        """
        queue = cast("Queue", self)
        if id is None:
            home, parents = current_job().queue, current_job().parents
        else:
            home, parents = queue.name, queue.fetch(id).parents
        read = {}
        for name, ids in by_queue(home, parents).items():
            pages = queue._client.run_many(
                job_commands.fetch_many(keys_of(name, queue.prefix), ids)
            )
            read[name] = [snapshot for page in pages for snapshot in page]
        return [
            Job(queue._beside(name), snapshot.id, snapshot=snapshot)
            for name, snapshot in in_order(home, parents, read)
        ]

    def workers(self) -> list[WorkerInfo]:
        """Return the workers that serve this queue and live or hold a job, with their running jobs.

        A worker that dies is listed for up to 15 seconds, and for as long as it holds a job.
        """
        queue = cast("Queue", self)
        seen = queue._client.run(queue_commands.workers(queue._binding.everywhere))
        seen = [worker for worker in seen if queue.name in worker.about.queues]
        held = queue._client.attempt_many(queue_commands.ask(seen, queue.prefix))
        return queue_commands.tell(seen, held)

    def _beside(self, name: str) -> Queue:
        """Another queue of the same server, by its name."""
        queue = cast("Queue", self)
        if name == queue.name:
            return queue
        return type(queue)(
            name,
            url=queue._url,
            prefix=queue._prefix,
            serializer=queue.serializer,
            retry_for=queue._patience,
        )


T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Queue(Batching, Managing, Scheduling, Grouping, Reading):
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
        """Name a queue; nothing is sent before the first call.

        Args:
            name: without braces, spaces or control characters.
            url: of the server; else `$BIDE_URL`, else that of `[tool.bide]` in pyproject.toml,
                else redis://127.0.0.1:6379/0.
            prefix: of all keys: separates applications that share a server; else `$BIDE_PREFIX`,
                else that of `[tool.bide]`, else `bide`.
            serializer: how arguments and results travel: `"json"`, `"msgpack"`, or `"pickle"`,
                which runs code when it is read: it needs a signing key ($BIDE_SIGNING_KEYS), and
                must be allowed by the worker too.
            retry_for: seconds for which a call is repeated when the connection breaks.

        Raises:
            UsageError: a name or the URL cannot be meant.
        """
        super().__init__(name, url, prefix, serializer, retry_for)
        self._listenings: set[EventListener] = set()

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
        """Register a function as a task of this queue, with options that its jobs have by default.

        Workers that import the function's module run it without being told to serve the module.

        Args:
            function: given where the decorator is used without options.
            name: by which jobs and workers know the task, instead of `module:function`: a word,
                such as `"send_email"`, which programs without the function can enqueue.

        Raises:
            UsageError: no worker could find it by its name, or another task has the name that it
                is given; or an option cannot be meant.
        """
        if function is None:
            return lambda function: Task(function, self, options, name)
        return Task(function, self, options, name)

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
        allow_failure: bool | None = None,
        if_failed: bool | None = None,
        on_parent_cancel: OnParentCancel | None = None,
        description: str | None = None,
        meta: Mapping[str, Any] | None = None,
        on_success: Function | str | None = None,
        on_failure: Function | str | None = None,
        **kwargs: Any,
    ) -> Job[Any]:
        """Add a job that calls `task(*args, **kwargs)`; options and errors as for `enqueue_call`.

        An option whose name is also one of the function's own parameters is refused here.
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
            allow_failure,
            if_failed,
            on_parent_cancel,
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
            task: a task, a function at the top level of a module, a method of an object that can
                travel, or a name `"module:function"`.
            args: positional arguments; with `kwargs` they must fit the queue's serializer.
            kwargs: keyword arguments.
            options: see `bide.Options`.

        Raises:
            UsageError: an option cannot be meant, or the arguments do not fit the function.
            PayloadError: the arguments do not fit the serializer, or take more than a megabyte.
            ServerFull: the server takes no more; nothing was changed.
            ServerUnavailable: no answer; the job may exist. Its id is in the error's `job_ids`:
                repeating with `job_id=` is safe.
            DurabilityUnavailable: the server cannot give the `durability`; nothing was changed.
            DuplicateJob: another holds the key, and `unique` says to reject; nothing was changed.
            JobNotFound: there is no job that it could depend on; nothing was added.
            DurabilityTimeout: the job was added, and its `durability` not confirmed within 3 s;
                what `ServerUnavailable` says of repeating holds for it too.
        """
        with around_sending(self.name, None):
            jobs = self._send([self.prepare(task, args, kwargs, **options)])
        return jobs[0]

    def enqueue_many(
        self, jobs: Iterable[Prepared], *, durability: Durability | None = None
    ) -> list[Job[Any]]:
        """Add prepared jobs, in one round trip up to some thousands; raises as `enqueue_call` does.

        Where the server becomes full in the middle, those before are added; enqueueing the same
        prepared jobs again adds the rest. Where one is `DuplicateJob`, all others are added. With
        `durability`, it holds for all of them; else each has its own, and all wait for what any of
        them asks for.

        What an iterator gives is added in batches of a hundred, and while the server adds one the
        next is prepared and sent. What it gave before it raised is added; of an error of ours,
        `left` are those that it gave and of which it is not known: enqueueing them again is safe.
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
        """Send what the first round trip takes of jobs, and read nothing yet."""
        place = self._binding
        if place.stand_in is not None:
            return None
        return EnqueuePipeline(self._pipeline(self._signed(jobs, place), place), behind)

    def _send(
        self, jobs: Sequence[Prepared], begun: EnqueuePipeline | None = None
    ) -> list[Job[Any]]:
        """Add jobs, or items of data; nothing surrounds it. Some may be on their way already."""
        place = self._binding
        trips: Iterator[Exchange] | None = begun
        if trips is None:
            jobs = self._signed(jobs, place)
            if (stand_in := place.stand_in) is not None:
                taken = stand_in.enqueue(place.keys, jobs)
                return [Job(self, r.id, receipt=r, snapshot=s) for r, s in taken]
            trips = self._pipeline(jobs, place)
        receipts: list[Receipt] = []
        for trip in trips:
            came: list[Receipt | BideError]
            try:
                if trip.begun is None:
                    came = trip.read(trip.place.client.attempt_many(trip.commands))
                else:
                    came = trip.read(trip.begun.end())
            except BideError as failed:
                came = [failed]
            if error := first_error(came, jobs):
                raise error
            receipts += [receipt for receipt in came if isinstance(receipt, Receipt)]
        none_rejected(receipts, jobs)
        return [Job(self, r.id, receipt=r) for r in receipts]

    def fetch(self, id: str) -> Job[Any]:
        """The job with this id, as it is now.

        Raises:
            JobNotFound: there is none, or no more.
        """
        job = self.fetch_many([id])[0]
        if job is None:
            raise not_found(id)
        return job

    def fetch_many(self, ids: Sequence[str]) -> list[Job[Any] | None]:
        """Jobs by id in one round trip; None for one that is not there."""
        pages = self._client.run_many(job_commands.fetch_many(self.keys, checked_ids(ids)))
        return [s and Job(self, s.id, snapshot=s) for page in pages for s in page]

    def jobs(self, state: str, start: int = 0, count: int = 50) -> list[Job[Any]]:
        """A page of the jobs in one state: due ones in the order they run, others newest first."""
        ids = self._client.run(job_commands.listing(self.keys, state, start, count))
        return [job for job in self.fetch_many(ids) if job is not None]

    def upcoming(self, count: int = 50, within: Duration | None = None) -> list[Job[Any]]:
        """The delayed jobs that are due next, whatever their priority; `within` looks so far."""
        within_us = 0 if within is None else to_us(within, "within")
        found = self._client.run(job_commands.upcoming(self.keys, within_us, count))
        return [job for job in self.fetch_many([id for id, _ in found]) if job is not None]

    def counts(self) -> QueueStats:
        """How many jobs are in each state."""
        return self._client.run(job_commands.counts(self.keys))

    def configure(self, **settings: Unpack[QueueSettings]) -> None:
        """Change settings (`bide.QueueSettings`) for all workers; what is left out stays as it is.

        Raises:
            UsageError: one cannot be meant, or none is given.
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
        """What becomes of the queue's jobs, from the moment in which the context begins.

            with queue.events(kinds=("failed", "reclaimed")) as events:
                for event in events: ...

        Events are kept only while someone listens, and 10,000 at most: whatever was lost shows as
        an event of kind `gap`, which comes whether it was asked for or not.

        Args:
            name: of the listener: for ten minutes after its last read, events are kept for it to
                come back to with `after=`. Without a name, they are kept while the context lasts.
            after: the `id` of the event behind which to begin; None for what happens next.
            kinds: one or several of `bide.model.job.EVENTS`; None for all.
            job_id: of one or several jobs; None for all.
            timeout: the iteration ends when nothing came for as long; None: never.

        Raises:
            UsageError: there is no such kind, or an id, a name or the time-out cannot be meant.
        """
        following = self._following(name, after, kinds, job_id, timeout)
        place = self._binding
        return Events(following, lambda: self._make_client(place.url, place.clock))

    def on(
        self,
        kinds: str | Iterable[str],
        callback: Callable[[Event], object],
        *,
        name: str | None = None,
        after: str | None = None,
        job_id: str | Iterable[str] | None = None,
    ) -> EventListener:
        """Have a function called with the queue's events, in a thread of its own, from now on.

        What the function raises is logged; nothing ends the listening but `stop()` of what is
        returned, and `close()` of the queue.

        Args:
            kinds: one or several of `bide.model.job.EVENTS`.
            callback: takes the `Event`.
            name: as for `events`, with `after` and `job_id`.
            after: the `id` of the event behind which to begin; None for what happens next.
            job_id: of one or several jobs; None for all.

        Raises:
            UsageError: as of `events`, or the callback is no function.
            BideError: the server cannot be reached, or refuses.
        """
        wanted = checked_callback(kinds, callback)
        events = self.events(name=name, after=after, kinds=wanted, job_id=job_id)
        events.__enter__()
        listening = EventListener(events, wanted, callback, self._listenings.discard)
        self._listenings.add(listening)
        return listening

    def close(self) -> None:
        """Close the connections, and end what listens; the next call opens new ones."""
        stop_all(self._listenings)
        self._binding.made.close()

    def _make_client(self, url: str, clock: str) -> blocking.Client:
        stand_in: FakeServer | None = config.overridden().fake_server
        if stand_in is not None:
            return stand_in.blocking(self.name)
        return blocking.Client(url, retry_for=self._patience, clock=clock)

    def _leave(self, client: blocking.Client) -> None:
        stop_all(self._listenings)
        client.close()

    def _run(self, command: Command[T]) -> T:
        return self._client.run(command)
