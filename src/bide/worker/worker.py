"""The public class: what a worker serves, how it starts, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final

from bide import logs
from bide.client import aio, config
from bide.client.url import resolve_prefix, resolve_url
from bide.errors import UsageError
from bide.logs import Log
from bide.model.durations import Duration, to_us
from bide.model.ids import check_name
from bide.model.payload.signing import VARIABLE, Keyring
from bide.protocol.commands.queues import MOST_DOING, WorkerReport
from bide.protocol.keys import SCHEMA, keys_of
from bide.protocol.scripts import SERVER_CLOCK
from bide.queue import AsyncQueue, Queue
from bide.queue.binding import Permit
from bide.tasks.task import TaskRegistry
from bide.version import VERSION
from bide.worker import lifespan, metrics, wakeups
from bide.worker import loop as idleness
from bide.worker.executors import Executor, check_limits, make_executor
from bide.worker.executors.local import LocalExecutor
from bide.worker.executors.processes import ProcessExecutor
from bide.worker.heartbeat import Leases, deregister, send_heartbeats
from bide.worker.loop import WorkerLoop
from bide.worker.metrics import ByQueue, metrics_of
from bide.worker.queue_state import OrderChoice, QueueState, make_order
from bide.worker.startup import prepare_server, queues_of, warn


def common_setting(
    what: str, given: str | None, queues: Sequence[Queue | AsyncQueue | str]
) -> str | None:
    """What was given, else what the queues that are objects have in common.

    Raises:
        UsageError: they differ, so one worker cannot serve them all.
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
    """Whether a test lets a worker use its server: its own, or that of queues that are objects."""
    permits = [queue._permit for queue in queues if not isinstance(queue, str)]
    asked = [permit for permit in permits if not permit.is_given]
    return Permit(url) if url is not None or not permits else (asked or permits)[0]


def pickling(
    queues: Sequence[Queue | AsyncQueue | str], allow: bool, keyring: Keyring | None
) -> set[str]:
    """The names of those whose pickled arguments are read: all, or those that chose pickle.

    Raises:
        UsageError: there are such, and no key could tell who has made them.
    """
    found = {
        queue if isinstance(queue, str) else queue.name
        for queue in queues
        if allow or (not isinstance(queue, str) and queue.serializer == "pickle")
    }
    if found and keyring is None:
        raise UsageError(
            "Pickles are read only with a signing key, or whoever can write to the server could "
            f"run any code here; set ${VARIABLE}, or serve no queue that pickles."
        )
    return found


log = Log("bide.worker")

Beside = Callable[[], Coroutine[Any, Any, None]]

LEASE: Final = 10.0
"""Seconds for which a job is held without being renewed; it is renewed every quarter of it."""

GRACE: Final = 30.0
"""Seconds that running jobs get to end after the first signal."""

_SHORTEST_LEASE_US: Final = 300_000


class Worker:
    """Runs the jobs of some queues in this process until it is told to stop."""

    def __init__(
        self,
        queues: Queue | AsyncQueue | str | Iterable[Queue | AsyncQueue | str] | None = None,
        *,
        url: str | None = None,
        prefix: str | None = None,
        modules: str | Iterable[str] = (),
        order: OrderChoice = "strict",
        concurrency: int | None = None,
        lease: Duration = LEASE,
        grace: Duration = GRACE,
        name: str | None = None,
        executor: Executor = "auto",
        max_jobs: int | None = None,
        max_rss: int | None = None,
        max_idle: Duration | None = None,
        allow_pickle: bool = False,
        allow_eviction: bool = False,
    ) -> None:
        """Set up; nothing is sent before `work`.

        Args:
            queues: one or several; `order` decides from which queue the next job is taken. By
                default the queues in `modules` and the queues of their tasks, otherwise `default`.
            url: the server; by default that of the queues, else `$BIDE_URL`.
            prefix: of the keys; by default that of the queues, else `$BIDE_PREFIX`, else `bide`.
            modules: modules to import and serve; functions of others are not run, unless a
                decorator registered them.
            order: `"strict"`: from a queue only when nothing is due in those before it; `"fair"`:
                as many from each, while they have work; or the weight of each by its name, a whole
                number, such as `{"high": 6, "low": 1}`: shares of the jobs taken while they have
                work. What a queue did not use while it was empty is not made up for.
            concurrency: jobs at once; by default 100, in processes as many as there are processors.
            lease: how long a job stays this worker's if it is not renewed.
            grace: how long running jobs may take after the first signal to stop.
            name: what logs and `bide info` call it, before a few characters that make it unique;
                by default host and process id.
            executor: `"auto"` runs coroutine functions on the event loop and plain functions in
                threads; `"async"` runs the former only, and `"thread"` the latter; `"process"` runs
                jobs in child processes, one at a time in each; `"fork"` gives each job a process of
                its own.
            max_jobs: after how many jobs the process that ran them has had enough: a child is
                replaced; where there are none, the worker stops.
            max_rss: above how many bytes of memory a child is, once it has ended its job.
            max_idle: how long to wait for jobs before stopping.
            allow_pickle: read arguments that were pickled, where a key of $BIDE_SIGNING_KEYS has
                signed them. Without it, this is done for queues given as objects whose serializer
                is `"pickle"`, and no others. Both need a key.
            allow_eviction: serve queues of a server whose `maxmemory-policy` is not `noeviction`,
                which drops jobs without a word when its memory is full.

        Raises:
            UsageError: an argument cannot be meant, or the queues are on different servers.
            TaskNotFound: a module cannot be imported.
        """
        self._limits = limits = check_limits(executor, concurrency, max_jobs, max_rss)
        self._modules = [modules] if isinstance(modules, str) else list(modules)
        self._served = TaskRegistry(self._modules, limits.executor)
        if queues is None:
            queues = queues_of(self._modules, resolve_url(url), resolve_prefix(prefix))
        given = [queues] if isinstance(queues, str | Queue | AsyncQueue) else list(queues)
        if not given:
            raise UsageError("A worker needs at least one queue.")
        self._max_idle = None if max_idle is None else to_us(max_idle, "max_idle") / 1e6
        self._url = resolve_url(common_setting("url", url, given))
        self._permit = permission_for(url, given)
        prefix = resolve_prefix(common_setting("prefix", prefix, given))
        self._clock = config.overridden().clock or SERVER_CLOCK
        label = name or f"{socket.gethostname()}.{os.getpid()}"
        self.name: Final = check_name(f"{label}.{secrets.token_hex(3)}", "worker name")
        self.queues: Final = [*dict.fromkeys(q if isinstance(q, str) else q.name for q in given)]
        self.concurrency: Final = limits.concurrency
        self.executor: Final[Executor] = limits.executor
        self._lease_us = to_us(lease, "lease")
        if self._lease_us < _SHORTEST_LEASE_US:
            raise UsageError(f"lease={lease!r} is too short to be renewed; use 300ms or more.")
        self._grace = to_us(grace, "grace") / 1e6
        self._keyring = config.signing_keys()
        self._pickled = pickling(given, allow_pickle, self._keyring)
        self._allow_eviction = allow_eviction
        self._order = make_order(order, self.queues)
        self._keys = [keys_of(queue, prefix) for queue in self.queues]
        self._global_keys = keys_of(None, prefix)
        self._loop: WorkerLoop | None = None
        self._running: LocalExecutor | ProcessExecutor | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._abort_at: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._beaten = 0.0
        self._stops = 0
        self._has_process = False
        self.figures: ByQueue | None = None
        """What is counted while it works; set before, where somebody asks."""
        self.replaceable = False
        """It has stopped because it had run `max_jobs`, or by a signal: another may do its work."""
        self._signalled_to = False

    @property
    def polled(self) -> float:
        """When it last looked for work and was answered (`time.monotonic()`); 0 for never.

        With no slot free it does not look: then, when the server last took note that it lives.
        """
        if self._loop is None:
            return 0.0
        return self._loop.polled if self._loop.fails else max(self._loop.polled, self._beaten)

    def work(self, burst: bool = False, *, beside: Beside | None = None) -> int:
        """Work until SIGINT or SIGTERM; with `burst`, until nothing is due.

        The first signal lets running jobs finish; the second, or the end of the grace, gives them
        back without using an attempt; a third ends the process at once.

        Args:
            burst: whether to end when nothing is due.
            beside: a coroutine function to be run in the worker's event loop meanwhile.

        Returns:
            How many jobs this worker executed.

        Raises:
            ServerUnavailable: in a burst, the server could not be reached at the start; or the
                URL can never reach it: its certificate is not trusted, for instance. Otherwise the
                worker waits for the server, and logs that.
            UsageError: one of the queues is a delay queue, which holds data, or its server would
                drop jobs when its memory is full; or this thread runs an event loop already, in
                which `await worker.run()` works.
            ClientTooOld: one of the queues was laid out by a newer bide.
        """
        lifespan.check_none_runs()
        # What is imported by now lives as long as the process: the collector, which would stop all
        # jobs for some 20 ms to look at it again, need not.
        gc.collect()
        gc.freeze()
        self._has_process = threading.current_thread() is threading.main_thread()
        try:
            return lifespan.run(self._run_beside(burst, beside))
        finally:
            self._has_process = False
            gc.unfreeze()

    async def _run_beside(self, burst: bool, beside: Beside | None) -> int:
        if beside is None:
            return await self.run(burst)
        task = asyncio.create_task(beside())
        try:
            return await self.run(burst)
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def run(self, burst: bool = False) -> int:
        """`work`, in the event loop that runs now."""
        self._permit.check("the worker", self._url)
        self.replaceable = self._signalled_to = False
        self._loop = self._running = None
        self._event_loop = asyncio.get_running_loop()
        logs.hold()  # against what the modules have set up that were imported
        client = aio.AsyncClient(self._url, retry_for=0, clock=self._clock)
        keys, allow = self._keys, self._allow_eviction
        begin = prepare_server(
            client, self._global_keys, keys, allow, self._keyring, waits=not burst
        )
        try:
            with lifespan.heard(self._signalled):
                if not await self._unless_stopped(begin):
                    return 0
                await warn(client, self._global_keys, self._modules, self.queues)
                return await self._run(client, burst)
        finally:
            self._stops = 0
            await client.close()

    async def _run(self, client: aio.AsyncClient, burst: bool) -> int:
        stations = [
            QueueState(
                keys, self.name, self._lease_us, self._keyring, metrics_of(keys, self.figures)
            )
            for keys in self._keys
        ]
        self._loop = loop = WorkerLoop(client, stations, self._order, burst)
        self._running = running = make_executor(
            self.name,
            self._limits,
            self._served,
            self._modules,
            self._pickled,
            self._keyring,
            self._global_keys.prefix,
            loop.wake,
        )
        event_loop = asyncio.get_running_loop()

        def ask(channel: str, id: str) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has closed
                event_loop.call_soon_threadsafe(running.request_cancel, channel, id)

        def hear(channel: str, text: str) -> None:
            if channel != everyone:
                running.request_cancel(channel, text)
            elif text == self.name:
                self._stop_requested()

        if self._stops:
            self._begin_stop()
        is_open = False
        try:
            is_open = await self._unless_stopped(running.open())
            if not is_open:
                return 0
        finally:
            if not is_open:
                await running.close()
        logs.hold()  # against what the resources have set up
        leases = Leases(client.url, self._clock, self._lease_us / 1e6, running.held_jobs, ask)
        leases.start()
        everyone = self._global_keys["workers"]
        channels = [everyone, *(keys["asked"] for keys in self._keys)]
        over = asyncio.Event()
        beating = asyncio.create_task(
            send_heartbeats(
                client,
                self._global_keys,
                self._keys,
                self.name,
                partial(self._about, running, time.time_ns() // 1000),
                self._note_beat,
                self._stop_requested,
                over,
            )
        )
        duties = [asyncio.create_task(wakeups.listen(client, channels, hear))]
        if self._max_idle is not None:
            duties.append(asyncio.create_task(idleness.watch(running, self._max_idle, loop.stop)))
        if self._has_process:
            duties.append(asyncio.create_task(metrics.keep(self.queues, running.snapshot)))
        names = ", ".join(self.queues)
        log.info("worker %s serves %s, %d at once", self.name, names, self.concurrency)
        try:
            await loop.run(running)
        except BaseException:
            self._abort()
            with contextlib.suppress(Exception):
                await loop.run(running)  # so that jobs are given back, and outcomes not lost
            raise
        finally:
            if self._abort_at is not None:
                self._abort_at.cancel()
            leases.stop()
            for duty in duties:
                duty.cancel()
            await asyncio.gather(*duties, return_exceptions=True)
            await running.close()
            over.set()
            if not loop.cut_off:
                await deregister(client, self._global_keys, self._keys, self.name, beating)
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            self.replaceable = running.is_spent or self._signalled_to
            log.info("worker %s stopped after %d jobs", self.name, running.executed)
        return running.executed

    async def _unless_stopped(self, opening: Coroutine[Any, Any, None]) -> bool:
        """Await what comes before the first job; False if it was cut short by a request to stop."""
        self._opening = task = asyncio.create_task(opening)
        if self._stops:
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            if not self._stops:
                raise
            log.info("worker %s stopped before it had begun", self.name)
            self.replaceable = self._signalled_to
            return False
        finally:
            self._opening = None
        return True

    def _note_beat(self) -> None:
        self._beaten = time.monotonic()

    def stop(self) -> None:
        """Ask it to stop, as a signal would; the second call does not wait.

        Any thread may call, also before `work`, which then ends at once.
        """
        self._stops += 1
        with contextlib.suppress(RuntimeError):  # its event loop has closed: it has stopped
            if self._event_loop is not None:
                self._event_loop.call_soon_threadsafe(self._begin_stop)

    def _stop_requested(self) -> None:
        """Someone has asked over the server; saying it twice does not make it more urgent."""
        if self._stops == 0:
            self.stop()

    def _begin_stop(self) -> None:
        """Do what has been asked: let running jobs finish, or give them back."""
        if self._opening is not None:  # nothing runs that could finish
            self._opening.cancel()
            if self._loop is not None:
                self._loop.stop()
            return
        if self._loop is None or self._running is None:  # `_run` looks whether it was asked
            return
        if self._stops > 1:
            self._abort()
        elif not self._loop.stopping:
            log.info("worker %s stops: %d jobs may finish", self.name, self._running.busy)
            self._loop.stop()
            self._abort_at = asyncio.get_running_loop().call_later(self._grace, self._abort)

    def _abort(self) -> None:
        assert self._loop is not None
        assert self._running is not None
        if self._running.busy:
            log.warning("worker %s gives %d running jobs back", self.name, self._running.busy)
        self._running.release_all()
        self._loop.abort()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Runs between any two steps of Python code, so also when a job blocks the event loop."""
        self._signalled_to = True
        self.stop()
        if self._stops > 2:
            os._exit(128 + number)  # the leases end by themselves

    def _about(
        self, running: LocalExecutor | ProcessExecutor, started_us: int, skew: float | None
    ) -> WorkerReport:
        doing = running.snapshot()
        return WorkerReport(
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            executor=self.executor,
            concurrency=self.concurrency,
            started_us=started_us,
            version=VERSION,
            busy=len(doing),
            doing=doing[:MOST_DOING],
            rss=running.rss(),
            schema=SCHEMA,
            unserved=running.unserved.names(),
            skew=skew,
            lease=self._lease_us / 1e6,
        )
