"""The public class `Worker`: its arguments, its start and its stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from bide import logs
from bide.client import aio, config
from bide.client.url import resolve_prefix, resolve_url
from bide.errors import UsageError
from bide.logs import Log, count
from bide.model.durations import Duration, to_us
from bide.model.ids import check_name
from bide.model.options import OF_WORKERS, QueueSettings, not_here
from bide.model.payload.signing import VARIABLE, Keyring
from bide.protocol.commands.queues import MOST_DOING, MOST_LONG_TASKS, MOST_TASKS, WorkerReport
from bide.protocol.keys import Keys, keys_of
from bide.protocol.scripts import SERVER_CLOCK
from bide.queue import AsyncQueue, Queue
from bide.queue.binding import Permit
from bide.tasks.task import TaskRegistry
from bide.version import VERSION
from bide.worker import lifespan, metrics
from bide.worker.executors import ExecutorKind, check_limits, make_executor
from bide.worker.executors.base import Executor
from bide.worker.heartbeat import Heartbeat, Leases
from bide.worker.loop import WorkerLoop, listen, stop_when_idle
from bide.worker.metrics import ByQueue, metrics_of
from bide.worker.processes import linux
from bide.worker.queue_state import QueueState, Strategy, make_order
from bide.worker.startup import (
    declared_settings,
    is_lifo,
    prepare_server,
    queues_of,
    tasks_longer_than,
    warn,
)


def common_setting(
    what: str, given: str | None, queues: Sequence[Queue | AsyncQueue | str]
) -> str | None:
    """Return `given`; if it is None, the setting that all `Queue` objects share.

    Raises:
        UsageError: the queues differ, so one worker cannot serve them all.
    """
    found = {getattr(queue, what) for queue in queues if not isinstance(queue, str)}
    if given is not None or not found:
        return given
    if len(found) > 1:
        raise UsageError(
            f"The queues differ in their {what}, and a worker serves one server and prefix; "
            "start a worker for each."
        )
    value: str = found.pop()
    return value


def permission_for(url: str | None, queues: Sequence[Queue | AsyncQueue | str]) -> Permit:
    """Return the permission by which a test allows a worker to use its server.

    It is the permission of `url` if that is given, otherwise that of the `Queue` objects.
    """
    permits = [queue._permit for queue in queues if not isinstance(queue, str)]
    checked = [permit for permit in permits if not permit.is_given]
    return Permit(url) if url is not None or not permits else (checked or permits)[0]


def pickling(
    queues: Sequence[Queue | AsyncQueue | str], allow: bool, keyring: Keyring | None
) -> set[str]:
    """Return the names of the queues whose pickled arguments may be read.

    These are all queues, or only the `Queue` objects whose serializer is pickle.

    Raises:
        UsageError: there are such queues, and there is no key to check signatures with.
    """
    found = {
        queue if isinstance(queue, str) else queue.name
        for queue in queues
        if allow or (not isinstance(queue, str) and queue.serializer == "pickle")
    }
    if found and keyring is None:
        raise UsageError(
            "Pickles are read only with a signing key: without one, any user who can write to the "
            f"server could run any code here. Set ${VARIABLE}, or serve no queue that pickles."
        )
    return found


log = Log("bide.worker")

Beside = Callable[[], Coroutine[Any, Any, None]]

LEASE: Final = 10.0
"""Seconds until a lease ends unless it is renewed; the worker renews it every quarter of that."""

GRACE: Final = 30.0
"""Seconds that running jobs get to finish after the first signal."""

LEAVING: Final = 5.0
"""Seconds that the task beside the worker gets to end after the worker; then it is abandoned."""

_SHORTEST_LEASE_US: Final = 300_000


def checked_modules(modules: Any) -> list[str]:
    """Return names of modules as a list."""
    names = [modules] if isinstance(modules, str) else modules
    listed = list(names) if isinstance(names, Iterable) else [names]
    for name in listed:
        if not isinstance(name, str):
            raise UsageError(f"modules must be names such as 'shop.tasks', not {name!r}.")
    return listed


def checked_queues(queues: Any) -> list[Queue | AsyncQueue | str]:
    """Return queues as a list."""
    is_one = isinstance(queues, str | Queue | AsyncQueue) or not isinstance(queues, Iterable)
    given: Any = [queues] if is_one else queues
    listed: list[Any] = list(given)
    for queue in listed:
        if not isinstance(queue, str | Queue | AsyncQueue):
            raise UsageError(f"A worker serves queues of jobs, or their names, not {queue!r}.")
    return listed


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error(
            "The task beside the worker has failed, for example the relay of its outbox; the "
            "worker continues without it",
            exc_info=error,
        )


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of a `Worker` as far as this needs neither its modules nor the server.

    Raises:
        UsageError: an option is invalid.
    """
    names = ("concurrency", "max_jobs", "max_rss")
    check_limits(options.get("executor", "auto"), *(options.get(name) for name in names))
    queues = [check_name(queue, "queue name") for queue in options.get("queues") or ()]
    if queues:
        make_order(options.get("strategy", "strict"), queues)


class Worker:
    """Runs the jobs of queues until it is stopped.

    `bide worker` creates workers. In a program of your own:

        Worker(modules="shop.tasks", concurrency=10).run()
    """

    def __init__(
        self,
        queues: Queue | AsyncQueue | str | Iterable[Queue | AsyncQueue | str] | None = None,
        *,
        url: str | None = None,
        prefix: str | None = None,
        modules: str | Iterable[str] = (),
        strategy: Strategy = "strict",
        concurrency: int | None = None,
        lease: Duration = LEASE,
        grace: Duration = GRACE,
        name: str | None = None,
        executor: ExecutorKind = "auto",
        max_jobs: int | None = None,
        max_rss: int | str | None = None,
        max_idle: Duration | None = None,
        allow_pickle: bool = False,
        allow_eviction: bool = False,
    ) -> None:
        """Check the arguments and import `modules`; nothing is sent to the server yet.

        Args:
            queues: one or more queues; `strategy` decides from which queue the next job comes. By
                default the queues in `modules` and the queues of their tasks, otherwise `default`.
            url: the server; by default the server of the queues, otherwise `$BIDE_URL`.
            prefix: prefix of the keys; by default the prefix of the queues, otherwise
                `$BIDE_PREFIX`, otherwise `bide`.
            modules: modules to import and serve. Functions of other modules run only if a decorator
                registered them.
            strategy: `"strict"` claims from a queue only when nothing is due in the queues before
                it. `"fair"` claims as many jobs from each queue that has work. A mapping such as
                `{"high": 6, "low": 1}` gives each queue a weight, a whole number: its share of the
                claimed jobs while it has work. A queue does not catch up for the time that it was
                empty.
            concurrency: jobs at the same time; by default 100, or with processes the number of
                processors.
            lease: how long a job stays reserved for this worker if the lease is not renewed; at
                least 300 ms.
            grace: how long running jobs may take after the first signal to stop.
            name: the worker's name in logs and `bide info`; a few characters are added to make it
                unique. By default the host and the process id.
            executor: `"auto"` runs coroutine functions on the event loop and plain functions in
                threads. `"async"` runs coroutine functions only, and `"thread"` plain functions
                only. `"process"` runs jobs in child processes, one at a time in each. `"fork"` runs
                each job in a process of its own.
            max_jobs: maximum number of jobs that one process runs. A child process is then
                replaced; without child processes, the worker stops.
            max_rss: maximum memory of a child process: bytes, or text such as `"500MB"`. A child
                above it is replaced after its job.
            max_idle: how long to wait for jobs before the worker stops.
            allow_pickle: read pickled arguments that a key of $BIDE_SIGNING_KEYS has signed. By
                default only for `Queue` objects whose serializer is `"pickle"`. Both need a key.
            allow_eviction: serve queues of a server whose `maxmemory-policy` is not `noeviction`.
                Such a server silently drops jobs when its memory is full.

        Raises:
            UsageError: an argument is invalid, or the queues are on different servers.
            TaskNotFound: a module cannot be imported.
        """
        self._limits = limits = check_limits(executor, concurrency, max_jobs, max_rss)
        self._modules = checked_modules(modules)
        self._served = TaskRegistry(self._modules, limits.executor)
        if queues is None:
            queues = queues_of(self._modules, resolve_url(url), resolve_prefix(prefix))
        given = checked_queues(queues)
        if not given:
            raise UsageError("A worker needs at least one queue; give its name.")
        self._max_idle = None if max_idle is None else to_us(max_idle, "max_idle") / 1e6
        self._url = resolve_url(common_setting("url", url, given))
        self._permit = permission_for(url, given)
        prefix = resolve_prefix(common_setting("prefix", prefix, given))
        self._clock = config.overridden().clock or SERVER_CLOCK
        self._label = name
        self._named_in = os.getpid()
        """The process that may run under the name; 0 after a run."""
        self.name = self._unique_name()
        """The name, with a suffix that is unique to each run and each forked process."""
        self.queues: Final = [*dict.fromkeys(q if isinstance(q, str) else q.name for q in given)]
        """The names of its queues."""
        self.concurrency: Final = limits.concurrency
        """Maximum number of jobs at once."""
        self.executor: Final[ExecutorKind] = limits.executor
        self._lease_us = to_us(lease, "lease")
        if self._lease_us < _SHORTEST_LEASE_US:
            raise UsageError(f"lease={lease!r} is too short to be renewed; use 300ms or more.")
        self._grace = to_us(grace, "grace") / 1e6
        self._keyring = config.signing_keys()
        self._pickled = pickling(given, allow_pickle, self._keyring)
        self._allow_eviction = allow_eviction
        self._polling_order = make_order(strategy, self.queues)
        self._keys = [keys_of(queue, prefix) for queue in self.queues]
        self._global_keys = keys_of(None, prefix)
        self._loop: WorkerLoop | None = None
        self._executor: Executor | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._abort_at: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._declared: dict[Keys, QueueSettings] = {}
        self._given = given
        """Keeps the objects, because what an object declares ends with it."""
        self._heartbeat: Heartbeat | None = None
        self._stops = 0
        self._runs = False
        self._has_process = False
        self.metrics: ByQueue | None = None
        """The worker counts its metrics here; set it before `run` to have them."""
        self.has_health_port = False
        """Its supervisor answers probes; `bide doctor` shows whether that is so."""
        self.others: Sequence[str] = ()
        """Queues that other workers of the same supervisor serve."""
        self.on_open: Callable[[], None] = lambda: None
        """Called when its resources are open, before its first claim."""
        self.replaceable = False
        """It stopped after `max_jobs` or by a signal, so another worker may replace it."""
        self._signalled_to = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the call of bide, for calls that other libraries have."""
            raise not_here(self, name, OF_WORKERS)

    def _unique_name(self) -> str:
        label = self._label or f"{socket.gethostname()}.{os.getpid()}"
        return check_name(f"{label}.{secrets.token_hex(3)}", "worker name")

    @property
    def polled(self) -> float:
        """When the server last answered a claim (`time.monotonic()`); 0 for never.

        A worker without a free slot does not claim. Then this is when the server last accepted its
        heartbeat.
        """
        if self._loop is None or self._heartbeat is None:
            return 0.0
        if self._loop.fails:
            return self._loop.polled
        return max(self._loop.polled, self._heartbeat.accepted_at)

    @property
    def is_opening(self) -> bool:
        """Whether its resources are not open yet, so that it claims nothing."""
        return self._heartbeat is None

    def measured(self) -> ByQueue | None:
        """Return its metrics, with the starts of jobs that still run; None if it counts none."""
        if self.metrics is not None and self._executor is not None:
            for run in self._executor.held_jobs():
                if run.queue_state.metrics is not None:
                    run.queue_state.metrics.note_start(run)
        return self.metrics

    def run(self, burst: bool = False, *, beside: Beside | None = None) -> int:
        """Run jobs until SIGINT or SIGTERM; with `burst`, until nothing is due.

        The first signal lets running jobs finish. The second signal, or the end of the grace,
        returns them to the queue without using an attempt. A third signal ends the process
        immediately.

        Args:
            burst: whether to end when nothing is due.
            beside: a coroutine function that runs in the worker's event loop at the same time. If
                it raises an exception, the worker logs it and continues. When the worker stops, it
                is cancelled, and has 5 s to end.

        Returns:
            How many jobs this worker executed.

        Raises:
            ServerUnavailable: in a burst, the server could not be reached at the start. Or waiting
                cannot help, for instance because its certificate is not trusted. Otherwise the
                worker logs the error and waits for the server.
            UsageError: one of the queues is a delay queue, which holds data. Or the server would
                drop jobs when its memory is full. Or this thread already runs an event loop: use
                `await worker.arun()` there.
            ClientTooOld: a newer bide has changed the layout of one of the queues.
        """
        lifespan.check_none_runs()
        if beside is not None and not callable(beside):
            raise UsageError(f"beside must be a coroutine function, not called, not {beside!r}.")
        # Modules imported so far live as long as the process. Frozen, they are not scanned by the
        # garbage collector, which would stop all jobs for some 20 ms each time.
        gc.collect()
        gc.freeze()
        self._has_process = threading.current_thread() is threading.main_thread()
        try:
            with linux.short_slices():
                return lifespan.run(self._run_beside(burst, beside))
        finally:
            self._has_process = False
            gc.unfreeze()

    async def _run_beside(self, burst: bool, beside: Beside | None) -> int:
        if beside is None:
            return await self._run_heeding_signals(burst)
        task = asyncio.create_task(beside())
        task.add_done_callback(_log_error)
        try:
            return await self._run_heeding_signals(burst)
        finally:
            task.cancel()
            if (await asyncio.wait([task], timeout=LEAVING))[1]:
                log.warning("the task beside the worker did not end within %g s", LEAVING)

    async def _run_heeding_signals(self, burst: bool) -> int:
        with lifespan.heard(self._signalled):
            return await self.arun(burst)

    async def arun(self, burst: bool = False) -> int:
        """Do what `run` does, in the running event loop, until `stop` is called.

        Signals remain with your program. Call `stop` when it ends, and await the end of the worker.

        Args:
            burst: whether to end when nothing is due.

        Returns:
            How many jobs this worker executed.

        Raises:
            BideError: see `run`.
        """
        if self._runs:
            raise UsageError("This worker runs already; create another Worker to run beside it.")
        self._runs = True
        try:
            return await self._start(burst)
        finally:
            self._runs = False

    async def _start(self, burst: bool) -> int:
        self._permit.check("the worker", self._url)
        # The server counts the claims of a name. If two processes shared it, both would receive the
        # same jobs. If a run could not sign off, the next one would begin with numbers in use.
        if self._named_in != os.getpid():
            self.name = self._unique_name()
        self._named_in = 0
        self.replaceable = False
        self._loop = self._executor = self._heartbeat = None
        self._event_loop = asyncio.get_running_loop()
        logs.hold()  # imported modules may have changed the logging setup
        client = aio.AsyncClient(self._url, retry_for=0, clock=self._clock)
        keys, allow = self._keys, self._allow_eviction
        self._declared = declared_settings(keys, client.url)
        startup = prepare_server(
            *(client, self._global_keys, keys, allow, self._keyring, self._declared),
            waits=not burst,
        )
        try:
            if not await self._unless_stopped(startup):
                return 0
            await warn(client, self._global_keys, self._modules, self.queues, self.others)
            return await self._run(client, burst)
        finally:
            if self._abort_at is not None:  # a stop at the start, or while closing, has set it
                self._abort_at.cancel()
            self._stops = 0
            self._signalled_to = False
            await client.close()

    async def _run(self, client: aio.AsyncClient, burst: bool) -> int:
        queue_states = [
            QueueState(
                keys,
                self.name,
                self._lease_us,
                self._keyring,
                metrics_of(keys, self.metrics),
                is_lifo(keys, client.url),
            )
            for keys in self._keys
        ]
        self._loop = loop = WorkerLoop(client, queue_states, self._polling_order, burst)
        self._executor = executor = make_executor(
            self.name,
            self._limits,
            self._served,
            self._modules,
            self._pickled,
            self._keyring,
            self._global_keys.prefix,
            loop.wake,
        )
        if self._stops:
            self._begin_stop()
        is_open = False
        try:
            is_open = await self._unless_stopped(executor.open())
            if not is_open:
                return 0
        finally:
            if not is_open:
                await executor.close()
        logs.hold()  # resources may have changed the logging setup
        leases = Leases(
            client.url,
            self._clock,
            self._lease_us / 1e6,
            executor.held_jobs,
            executor.request_cancel_from_thread,
        )
        leases.start()
        channels = [self._global_keys["workers"], *(keys["asked"] for keys in self._keys)]
        self._heartbeat = Heartbeat(
            client,
            self._global_keys,
            self._keys,
            self.name,
            partial(self._about, executor, time.time_ns() // 1000),
            self._stop_requested,
            self._pause_requested,
            self._declared,
        )
        self.on_open()
        duties = [asyncio.create_task(listen(client, channels, self._on_message))]
        if self._max_idle is not None:
            duties.append(asyncio.create_task(stop_when_idle(executor, self._max_idle, loop.stop)))
        if self._has_process:
            duties.append(asyncio.create_task(metrics.keep(self.queues, executor.snapshot)))
        names = ", ".join(self.queues)
        log.info("worker %s serves %s, %d at once", self.name, names, self.concurrency)
        try:
            await loop.run(executor)
        except BaseException:
            self._abort()
            with contextlib.suppress(Exception):
                await loop.run(executor)  # release the jobs, and record the outcomes
            raise
        finally:
            if self._abort_at is not None:
                self._abort_at.cancel()
            leases.stop()
            for duty in duties:
                duty.cancel()
            await asyncio.gather(*duties, return_exceptions=True)
            await executor.close()
            await self._heartbeat.close(leaves=not loop.cut_off)
            self.replaceable = executor.is_spent or self._signalled_to
            log.info("worker %s stopped after %s", self.name, count(executor.executed, "job"))
        return executor.executed

    async def _unless_stopped(self, opening: Coroutine[Any, Any, None]) -> bool:
        """Await a step of the startup; return False if a request to stop has cancelled it."""
        self._opening = task = asyncio.create_task(opening)
        if self._stops:
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            if not self._stops:
                raise
            log.info("worker %s stopped before it had started", self.name)
            self.replaceable = self._signalled_to
            return False
        finally:
            self._opening = None
        return True

    def _on_message(self, channel: str, text: str) -> None:
        """Handle a request that came by way of the server: to stop, or to cancel a job."""
        assert self._executor is not None
        if channel != self._global_keys["workers"]:
            if text.startswith("~"):
                self._executor.recall(channel, text[1:])
            else:
                self._executor.request_cancel(channel, text)
        elif text == self.name:
            self._stop_requested()
        elif text in (f"{self.name} pause", f"{self.name} resume"):
            self._pause_requested(text.endswith("pause"))

    def stop(self) -> None:
        """Stop the worker, as a signal would; the second call does not wait for running jobs.

        Any thread may call it. If it is called before `run`, `run` ends immediately.
        """
        self._stops += 1
        with contextlib.suppress(RuntimeError):  # the event loop has closed: the worker has stopped
            if self._event_loop is not None:
                self._event_loop.call_soon_threadsafe(self._begin_stop)

    def _stop_requested(self) -> None:
        """Stop on a request that came by way of the server; a second request changes nothing."""
        if self._stops == 0:
            self.stop()

    def _pause_requested(self, paused: bool) -> None:
        """Claim nothing, or claim again, on a request that came by way of the server."""
        assert self._loop is not None
        if paused is not self._loop.paused:
            log.info("worker %s is %s", self.name, "paused" if paused else "resumed")
            self._loop.pause(paused)
            if self._heartbeat is not None:
                self._heartbeat.hurry()

    def _begin_stop(self) -> None:
        """Let running jobs finish; after a second request, release them."""
        if self._opening is not None:  # no job runs yet
            self._opening.cancel()
            if self._loop is not None:
                self._loop.stop()
            return
        if self._loop is None or self._executor is None:  # `_run` checks `_stops`
            return
        if self._stops > 1:
            self._abort()
        elif not self._loop.stopping:
            running = count(self._executor.busy, "job")
            log.info("worker %s is stopping: %s may finish", self.name, running)
            self._loop.stop()
            self._abort_at = asyncio.get_running_loop().call_later(self._grace, self._abort)

    def _abort(self) -> None:
        assert self._loop is not None
        assert self._executor is not None
        if self._executor.busy:
            running = count(self._executor.busy, "running job")
            log.warning("worker %s releases %s", self.name, running)
        self._executor.release_all()
        self._loop.abort()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: between any two bytecodes, even while a job blocks the event loop."""
        self._signalled_to = True
        self.stop()
        if self._stops > 2:
            os._exit(128 + number)  # the leases end without the worker

    def _about(self, executor: Executor, started_us: int, skew: float | None) -> WorkerReport:
        running_tasks = executor.snapshot()
        return WorkerReport(
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            executor=self.executor,
            concurrency=self.concurrency,
            started_us=started_us,
            version=VERSION,
            busy=len(running_tasks),
            doing=running_tasks[:MOST_DOING],
            rss=executor.rss(),
            unknown_tasks=executor.unknown_tasks.names(),
            skew=skew,
            paused=self._loop is not None and self._loop.paused,
            lease=self._lease_us / 1e6,
            grace=self._grace,
            long_tasks=tasks_longer_than(self._grace, self.queues)[:MOST_LONG_TASKS],
            has_health_port=self.has_health_port,
            tasks=self._served.names()[:MOST_TASKS],
        )
