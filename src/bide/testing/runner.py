"""Runs the jobs of tests: in an event loop or a thread, with open resources.

Without a running event loop, plain functions run in the calling thread, so that they share what
belongs to that thread (a database transaction, for instance), and coroutines run in an event loop
of their own. In a running event loop, coroutines run in it, and plain functions in threads, as in a
worker.

Arguments are decoded and converted to the annotated types, resources are injected, middlewares and
callbacks run, and the result is encoded. Two things differ from a worker: tasks of all modules are
served, and a plain function has no time-out.

It claims and settles as a worker does. Between two jobs it may move the clock to the next due time,
so that a chain of delayed jobs runs in the right order and at the right times.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from bide.client import aio, blocking, config
from bide.errors import BideError, TaskNotFound, UsageError
from bide.model.context import enter
from bide.model.job import Claimed
from bide.model.retry import NO_RETRY
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.schedules import read_schedules, refills
from bide.protocol.commands.worker import Claim, Ended, Settle, worker_leave
from bide.protocol.keys import Keys, keys_of
from bide.protocol.scripts import SHARED_CLOCK
from bide.tasks.registry import Resource
from bide.tasks.task import Target, TaskRegistry
from bide.testing.expect import JobSeen, Store
from bide.worker import outcome
from bide.worker.invoke import Invocation, Wait, call_hooks, from_thread, hooks_due, prepare, read
from bide.worker.lifespan import Lifespan
from bide.worker.queue_state import QueueState
from bide.worker.relay import DependencyRelay
from bide.worker.running_job import RunningJob
from bide.worker.startup import is_lifo

T = TypeVar("T")


Caught = tuple[Any, BaseException | None]
"""The result of a job's code, or the error that it raised."""


def catch(function: Callable[..., Any], *args: Any) -> Caught:
    """Call a job's code; only errors for the test, such as KeyboardInterrupt, pass."""
    try:
        return function(*args), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, error


async def catch_async(coroutine: Coroutine[Any, Any, Any]) -> Caught:
    """Await a job's code in a task of its own; only errors for the test, and cancellation, pass."""
    try:
        return await coroutine, None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:
        return None, error


class AsyncRunner:
    """Runs jobs in an event loop, by default the running one."""

    def __init__(
        self, opens_nothing: str = "", loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Set up; `opens_nothing` is the reason if resources cannot be opened here."""
        self.lifespan = Lifespan()
        self._opens_nothing = opens_nothing
        self.loop: Final = loop or asyncio.get_running_loop()
        self._orders: asyncio.Queue[tuple[Coroutine[Any, Any, None], asyncio.Future[None]]] = (
            asyncio.Queue()
        )
        self._owner: asyncio.Task[None] | None = None

    @property
    def inner(self) -> AsyncRunner:
        """The runner that holds the resources: this one."""
        return self

    async def call(self, context: Context, function: Callable[[Wait], T]) -> T:
        """Call a plain function in a thread, with a function that waits for coroutines."""
        wait = from_thread(self.loop)
        return await self.loop.run_in_executor(None, lambda: context.run(function, wait))

    async def wait(self, context: Context, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine."""
        return await self.loop.create_task(coroutine, context=context)

    async def open(self) -> None:
        """Open all resources, as a worker does when it starts."""
        await self._keep(self.lifespan.open())

    async def open_for(self, injected: Iterable[Resource[Any]]) -> None:
        """Open these resources and what they need.

        Raises:
            UsageError: resources cannot be opened here.
        """
        if self._opens_nothing:
            raise UsageError(self._opens_nothing)
        await self._keep(self.lifespan.open_for(injected))

    @property
    def is_idle(self) -> bool:
        """Whether no resource is open."""
        return self._owner is None

    async def close(self) -> None:
        """Close the open resources."""
        if self._owner is not None:
            await self._keep(self.lifespan.close())
            self._owner.cancel()
            await asyncio.wait([self._owner])
            self._owner = None

    async def _keep(self, order: Coroutine[Any, Any, None]) -> None:
        """Let one task open and close everything: a cancel scope must be left in its own task."""
        if self._owner is None:
            self._owner = self.loop.create_task(self._serve())
        done: asyncio.Future[None] = self.loop.create_future()
        self._orders.put_nowait((order, done))
        await done

    async def _serve(self) -> None:
        while True:
            order, done = await self._orders.get()
            try:
                await order
            except asyncio.CancelledError:
                done.cancel()
                raise
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)


class Runner:
    """Runs jobs in this thread, with an event loop for coroutines."""

    def __init__(self) -> None:
        self._event_loop = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._inner: AsyncRunner | None = None

    @property
    def inner(self) -> AsyncRunner:
        """The runner that holds the resources: the one in the event loop."""
        if self._inner is None:
            self._inner = AsyncRunner(loop=self._event_loop.get_loop())
        return self._inner

    def play(self, steps: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that awaits only `call` and `wait`, which never suspend it here.

        So no event loop runs in this thread during the job's plain functions.
        """
        __tracebackhide__ = True
        try:
            steps.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("a step was suspended")

    async def call(self, context: Context, function: Callable[[Wait], T]) -> T:
        """Call a plain function, with a function that waits for coroutines."""
        return context.run(function, self._wait)

    async def wait(self, context: Context, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine."""
        return self._event_loop.run(coroutine, context=context)

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._event_loop.run(coroutine, context=copy_context())

    def close(self) -> None:
        """Close the open resources, then the event loop."""
        if self._inner is not None:
            self._event_loop.run(self._inner.close())
        self._event_loop.close()


def is_in_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def outside_of_loops(function: Callable[[], T]) -> T:
    """Call a function that may run an event loop: in another thread, if one runs in this."""
    if not is_in_loop():
        return function()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(copy_context().run, function).result()


WORKER: Final = "bide-testing"
"""The name of the worker for jobs."""


class Everything(TaskRegistry):
    """Serves the module of any task: tests do not check which modules a worker serves."""

    def find(self, name: str) -> Target:
        """Return the task of a name; raises as `TaskRegistry.find` does."""
        try:
            return super().find(name)
        except TaskNotFound:
            module, colon, _ = name.partition(":")
            if not colon:
                raise
            self.serve(module)
            return super().find(name)

    def _serves(self, module: str) -> bool:
        return True


class JobRun(NamedTuple):
    """The result of a run."""

    ended: Ended
    error: BaseException | None


async def run_job(
    run: RunningJob, served: TaskRegistry, runner: Runner | AsyncRunner, *, retries: bool = True
) -> JobRun:
    """Run a job with the resources of a runner; without `retries`, an error is final."""
    context = copy_context()
    value: Any = None
    error: BaseException | None = None
    call: Invocation | None = None
    try:
        target = context.run(read, run, served, allow_pickle=True)
    except BideError as refused:
        error = refused
    else:
        if target.signature.injected:
            await runner.wait(context, runner.inner.open_for(target.signature.injected.values()))
        try:
            call = context.run(prepare, run, target, runner.inner.lifespan)
        except BideError as refused:
            error = refused
    if call is None:
        context.run(enter, run.job or run.as_job())
        run.missing = ""  # there is no other worker that may have the code
    elif call.target.is_async:
        try:
            value, error = await runner.wait(context, catch_async(_in_time(run, call)))
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task() if is_in_loop() else None
            if task is not None and task.cancelling():
                raise
            error = cancelled  # the job has cancelled its own task
    else:
        value, error = await runner.call(context, partial(catch, call.run))
    if not retries:
        run.policy = run.policy._replace(retry=NO_RETRY, has_retry=False)
    if error is None:
        judged = context.run(outcome.completed, run, value)
    else:
        judged = context.run(outcome.raised, run, error, served, in_run=call is not None)
    if hooks_due(judged):
        await runner.call(context, partial(call_hooks, run, judged, served))
    failed = judged.value if isinstance(judged.value, BaseException) else error
    return JobRun(judged.ended, error if judged.ended.outcome == "complete" else failed)


async def _in_time(run: RunningJob, call: Invocation) -> Any:
    limit = asyncio.timeout(run.policy.timeout)
    try:
        async with limit:
            return await call.run_async()
    except BaseException:
        run.timed_out = limit.expired()
        raise


_LEASE_US: Final = 3_600_000_000
"""A long lease, so that a debugger may stop in a job."""


class Work:
    """Claims the remaining jobs one by one."""

    def __init__(
        self, client: blocking.Client, store: Store, prefix: str, until_us: int | None, limit: int
    ) -> None:
        """Set up, to serve all queues of a prefix; None for `until_us` leaves the clock alone."""
        self.seen: list[JobSeen] = []
        """The runs that have ended."""
        self._client = client
        self._store = store
        self._prefix = prefix
        self._until_us = until_us
        self._limit = limit
        self._runs = 0
        self._sent = 0.0
        self._worker = f"{WORKER}.{secrets.token_hex(3)}"
        self._queue_states: dict[str, QueueState] = {}

    def next(self) -> RunningJob | None:
        """Claim and return the next job; None if there are no more.

        Raises:
            UsageError: there were more jobs than the limit.
        """
        while True:
            run, next_us = self._claim_next()
            if run is not None:
                return run
            now_us = self._store.now_us()
            if self._until_us is None or not now_us < next_us <= self._until_us:
                break
            self._store.advance(int(next_us) - now_us)
        if self._until_us is not None:
            self._store.advance(max(0, self._until_us - self._store.now_us()))
        return None

    def look(self) -> None:
        """Fire the schedules whose time has come, and cancel jobs that have expired; run nothing.

        A worker does this when it claims. A test bed has no worker, and calls this instead.
        """
        for due in self._queues():
            if due.passes_us <= due.now_us:
                self._claim(due.queue_state, 0)

    def settle(self, run: RunningJob, job_run: JobRun) -> JobSeen | None:
        """Record the outcome of a run; return the job, or None if it no longer exists."""
        queue_state, claimed = run.queue_state, run.claimed
        # One after another: of calls that share a round trip, one whose script the server does not
        # have yet runs last.
        while notes := queue_state.take_notes():
            self._client.run_many(notes)
        self._client.run(queue_state.settle([job_run.ended.settle(claimed)]))
        (snapshot,) = self._client.run(job_commands.fetch(queue_state.keys, [claimed.id]))
        if snapshot is None:
            return None
        seen = JobSeen(queue_state.seal, snapshot, job_run.error)
        self.seen.append(seen)
        return seen

    def release(self, run: RunningJob) -> None:
        """Return a job to its queue that has not started."""
        settle = Settle(run.claimed.id, run.claimed.token, "release")
        self._client.run(run.queue_state.settle([settle]))

    def leave(self) -> None:
        """Remove this worker from the server."""
        leaving = [
            worker_leave(queue_state.keys, self._worker)
            for queue_state in self._queue_states.values()
        ]
        self._client.run_many(leaving)

    def _claim_next(self) -> tuple[RunningJob | None, float]:
        """Claim and return the next job; otherwise None, and when there may be one.

        A claim also fires schedules and expires jobs. So if no queue has a job that may run, all
        queues are claimed from until nothing is left to do.
        """
        while True:
            next_us, again = math.inf, False
            for due in sorted(self._queues(), key=lambda due: due.at_us):
                claim, told = self._claim(due.queue_state, 1)
                again = again or told
                for claimed in claim.jobs:
                    return self._begun(due.queue_state, claimed), next_us
                # If a due job may not run yet, the claim returns when it may.
                at_us = due.at_us if due.at_us > due.now_us else claim.deadline_us or math.inf
                next_us = min(next_us, at_us)
            if not again:
                return None, next_us

    def _begun(self, queue_state: QueueState, claimed: Claimed) -> RunningJob:
        run = RunningJob(queue_state, claimed, self._sent, lambda: None)
        if self._runs == self._limit:
            self.release(run)
            raise UsageError(self._too_many())
        self._runs += 1
        return run

    def _claim(self, queue_state: QueueState, count: int) -> tuple[Claim, bool]:
        """Claim until there is a job or nothing left; return whether a message was delivered."""
        delivered = False
        while True:
            self._sent = time.monotonic()
            claim: Claim = self._client.run(queue_state.claim(count, busy=0, slots=0))
            queue_state.claimed(claim, self._sent, time.monotonic())
            again = claim.more
            if claim.thin:
                page = self._client.run(read_schedules(queue_state.keys, claim.thin))
                again = any(self._client.run_many(refills(queue_state.keys, page))) or again
            if claim.post and not delivered:
                outside_of_loops(partial(self._deliver, queue_state.keys))
                delivered = again = True
            if claim.jobs or not again:
                return claim, delivered and not claim.post

    def _deliver(self, keys: Keys) -> None:
        """Deliver the outcomes of parents to other queues, as a worker does."""

        async def deliver() -> None:
            client = aio.AsyncClient(self._client.url, clock=SHARED_CLOCK)
            try:
                relay = DependencyRelay(client, lambda queues: None)
                relay.submit(keys)
                await relay.close()
            finally:
                await client.close()

        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(deliver())

    def _queues(self) -> list[_Due]:
        """Return the queues that hold jobs, and when there is something to do in each."""
        for name in self._client.run(queue_commands.queues(keys_of(None, self._prefix))):
            if name not in self._queue_states:
                keys = keys_of(name, self._prefix)
                self._queue_states[name] = QueueState(
                    keys,
                    self._worker,
                    _LEASE_US,
                    config.signing_keys(),
                    lifo=is_lifo(keys, self._client.url),
                )
        queue_states = list(self._queue_states.values())
        all_counts = self._client.run_many([job_commands.counts(s.keys) for s in queue_states])
        return [
            self._due(queue_state, counts)
            for queue_state, counts in zip(queue_states, all_counts, strict=True)
            if not counts.is_data
        ]

    def _due(self, queue_state: QueueState, counts: QueueStats) -> _Due:
        fires_us = 0 if counts.paused else counts.next_fire_us
        passes_us = _first(fires_us, self._store.expires_us(queue_state.keys))
        at_us = passes_us if counts.paused else _first(counts.next_due_us, passes_us)
        return _Due(queue_state, counts.now_us, at_us, passes_us)

    def _too_many(self) -> str:
        calls = list(dict.fromkeys(seen.call for seen in self.seen[-10:]))
        return (
            f"run() has run {self._limit:,} jobs, and another is due; does a task enqueue itself, "
            f"or is retried without end? The last were {', '.join(calls[-3:])}. If so many are "
            "right, give limit=."
        )


class _Due(NamedTuple):
    """When there is something to do in a queue."""

    queue_state: QueueState
    now_us: int
    at_us: float
    """When its next job is due, or `passes_us` has passed; infinite for never."""
    passes_us: float
    """When its next schedule fires, or its next job may expire; infinite for never."""


def _first(*times_us: float) -> float:
    """Return the earliest of some times; 0 stands for never."""
    return min((at_us for at_us in times_us if at_us), default=math.inf)
