"""Runs several workers as one unit: starts, watches, restarts and stops them together.

    supervisor ──socket──> worker, worker, …

The supervisor runs no job and has no connection to the server. Each worker is a process in a
session of its own, with a socket to the supervisor. The worker receives its configuration there,
and reports its status every second. If the socket closes, the supervisor is dead, and the worker
stops.

The supervisor stops workers as a signal does: the first request lets running jobs finish, the
second returns them to the queue. It kills a worker that does not end in time, or whose event loop
is stuck. It reaps all its children, so it may be process 1 of a container.

A worker reports over its socket why it ends. Its exit code has no meaning, because a job may exit
with any code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec.structs import astuple

from bide import logs
from bide.errors import (
    AccessDenied,
    BideError,
    ClientTooOld,
    ServerRefused,
    ServerUnavailable,
    UsageError,
)
from bide.logs import Log, count, printable
from bide.model.latency import CONTENT_TYPE, Distribution, Family, Labels, expose
from bide.protocol.commands.worker import Outcome
from bide.worker import Worker
from bide.worker.lifespan import leave_threads_behind
from bide.worker.metrics import LATENESS, RUN_TIME, ByQueue, add_all, add_names, titled
from bide.worker.processes import linux
from bide.worker.processes.ipc import Reader, send
from bide.worker.processes.linux import signal_name
from bide.worker.processes.pool import OPENING, Control
from bide.worker.relay import outbox_beside

_SEND_PATIENCE: Final = 1.0
"""Seconds to wait while systemd does not read its messages; the event loop is blocked meanwhile."""


class Notifier:
    """Sends notifications to systemd over `$NOTIFY_SOCKET`; without it, does nothing."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Remove systemd's variables from the environment, so that children do not use them."""
        self._path = environment.pop("NOTIFY_SOCKET", "")
        pid = environment.pop("WATCHDOG_PID", "")
        watchdog = environment.pop("WATCHDOG_USEC", "")
        self.every: float | None = None
        """Seconds between two watchdog notifications, half of systemd's limit; None for none."""
        if watchdog.isdigit() and int(watchdog) > 0 and pid in ("", str(os.getpid())):
            self.every = int(watchdog) / 2e6

    def say(self, *words: str) -> None:
        """Send assignments such as `READY=1`; they are dropped if systemd does not accept them."""
        if not self._path:
            return
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(_SEND_PATIENCE)
            line.sendto("\n".join(words).encode(), address)


class WorkerConfig(msgspec.Struct, frozen=True):
    """The configuration of a worker, sent over its socket, as all users can read command lines."""

    options: dict[str, Any]
    """The arguments of `bide.Worker`."""
    burst: bool
    log: logs.Settings
    counts: bool = False
    """Whether the worker reports metrics."""
    others: list[str] = []
    """The queues of the supervisor's other workers."""
    outbox: str | None = None
    """The outbox whose rows the worker sends too, as `module:name`."""


class WorkerStatus(msgspec.Struct, frozen=True, tag="status"):
    """The status of a worker. Times are of `time.monotonic()`, a clock that all processes share."""

    turned: float
    """When its event loop last ran."""
    polled: float
    """When the server last answered a claim; 0 for never. See `Worker.polled`."""
    metrics: ByQueue | None = None
    """Its metrics since it started; None if it reports none."""
    is_opening: bool = False
    """Whether its resources are not open yet. See `Worker.is_opening`."""


class WorkerGone(msgspec.Struct, frozen=True, tag="gone"):
    """Why a worker ends. A worker that ends without this message has died."""

    how: Literal["ended", "replace", "unusable"]
    """- `ended`: it has nothing left to do, or was stopped by way of the server.
    - `replace`: it has run `max_jobs` jobs or received a signal, and must be replaced.
    - `unusable`: its configuration is invalid, so another worker would end in the same way."""


WorkerEvent = WorkerStatus | WorkerGone


encode: Final = msgspec.json.Encoder().encode
decode_config: Final = msgspec.json.Decoder(WorkerConfig).decode
decode_worker_event: Final[Callable[[bytes | memoryview], WorkerEvent]] = msgspec.json.Decoder(
    WorkerEvent
).decode


Probe = Callable[[], str]
"""Returns a description of a problem, or an empty string."""

Metrics = Callable[[], Awaitable[str]]
"""Returns metrics in Prometheus' text format."""

_PATIENCE: Final = 5.0
_METRICS_TIMEOUT: Final = 4.0
"""Seconds to produce metrics: less than `_PATIENCE`, so that the client receives the error."""
_LONGEST: Final = 8192
_MOST_WAITING: Final = 100
"""Maximum number of connections without a complete request; a new one closes the oldest."""


async def serve(
    host: str, port: int, probes: dict[str, Probe], metrics: Metrics | None = None
) -> asyncio.Server:
    """Serve probes by path, and `/metrics`: answer with 200, or with 503 and the problem.

    Raises:
        OSError: the port is taken.
    """
    waiting: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting[writer] = None
        if len(waiting) > _MOST_WAITING:
            oldest = next(iter(waiting))
            del waiting[oldest]
            oldest.close()  # its reader then gets an IncompleteReadError
        try:
            async with asyncio.timeout(_PATIENCE):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    head = b""
                waiting.pop(writer, None)
                writer.write(await _respond(head, probes, metrics))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.CancelledError):  # cancelled: the process ends
            pass
        finally:
            waiting.pop(writer, None)
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_LONGEST)


async def _respond(head: bytes, probes: dict[str, Probe], metrics: Metrics | None) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    code, text, kind = 200, "ok\n", "text/plain; charset=utf-8"
    paths = [*probes, *(["/metrics"] if metrics else [])]
    if not rest:
        code, text = 400, "not HTTP\n"
    elif method not in (b"GET", b"HEAD"):
        code, text = 405, "GET or HEAD\n"
    elif metrics is not None and path == "/metrics":
        try:
            async with asyncio.timeout(_METRICS_TIMEOUT):
                text, kind = await metrics(), CONTENT_TYPE
        except TimeoutError:
            code, text = 503, f"no metrics came within {_METRICS_TIMEOUT:g} seconds\n"
        except BideError as error:
            code, text = 503, f"{error}\n"
    elif path not in probes:
        code, text = 404, f"there is {', '.join(paths)}\n"
    elif wrong := probes[path]():
        code, text = 503, f"{wrong}\n"
    body = text.encode()
    lines = [
        f"HTTP/1.1 {code} {HTTPStatus(code).phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + (b"" if method == b"HEAD" else body)


def worker_metrics(metrics: ByQueue, workers: int, deaths: int) -> str:
    """Return the text of `/metrics`, of the sums over all current and former workers."""
    queues = [({"queue": queue}, seen) for queue, seen in sorted(metrics.items())]
    tasks = [
        ({**of, "task": task}, counters)
        for of, seen in queues
        for task, counters in sorted(seen.tasks.items())
    ]
    settled = [
        ({**of, "outcome": name}, counters.settled.get(name, 0))
        for of, counters in tasks
        for name in get_args(Outcome)
    ]
    late = [(of, Distribution(LATENESS, *astuple(counters.lateness))) for of, counters in tasks]
    ran = [(of, Distribution(RUN_TIME, *astuple(counters.run_time))) for of, counters in tasks]

    def counter(name: str, help: str, samples: Sequence[tuple[Labels, float]]) -> Family:
        return Family(name, "counter", help, samples)

    def sums(name: str, help: str, field: str) -> Family:
        return counter(name, help, [(labels, getattr(seen, field)) for labels, seen in queues])

    refused = "Outcomes that were refused, because another worker had the lease."
    taken = "Outcomes that the server recorded; crash: the process of the job died."
    lateness = "From the due time to the job's first statement, by the server's clock."
    run = "For how long a job ran, with any outcome."
    return expose(
        [
            Family("bide_worker_processes", "gauge", "Running workers.", [({}, workers)]),
            counter(
                "bide_worker_deaths_total", "Workers that died, and were replaced.", [({}, deaths)]
            ),
            sums("bide_worker_claims_total", "Claims that the server answered.", "claims"),
            sums("bide_worker_claimed_jobs_total", "Jobs that were claimed.", "claimed"),
            counter("bide_worker_settled_jobs_total", taken, settled),
            sums("bide_worker_refused_settles_total", refused, "refused"),
            Family("bide_worker_lateness_seconds", "histogram", lateness, late),
            Family("bide_worker_run_seconds", "histogram", run, ran),
        ]
    )


log = Log("bide.worker.supervisor")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
"""Seconds between the death of a worker and its restart."""

LIVED: Final = 10.0
"""Seconds: a worker that has lived for longer is restarted without a pause."""

LIVE: Final = 30.0
"""A worker is live if its event loop has run within this many seconds."""

STUCK: Final = 60.0
"""Seconds after which a worker whose event loop is stuck is killed and restarted.

While the worker opens its resources, both limits are `OPENING`."""

READY: Final = 30.0
"""A worker is ready if the server has answered it within this many seconds."""

LOOK_EVERY: Final = 1.0

FROZEN: Final = 5.0
"""Seconds for which the supervisor itself did not run, after which silent workers may have been
frozen with it: a container was paused, for example."""

STOP_MARGIN: Final = 10.0
"""Seconds after the grace of the jobs until workers that have not stopped are killed."""


class WorkerProcess:
    """The place of one worker at a time."""

    def __init__(self, index: int, config: WorkerConfig) -> None:
        self.index: Final = index
        self.config: Final = config
        self.pid = 0
        self.line: Control | None = None
        self.started = 0.0
        self.status: WorkerStatus | None = None
        self.gone: WorkerGone | None = None
        self.failures = 0
        self.done = False
        """Whether it has nothing left to do, and is not restarted."""
        self.excused = 0.0
        """When the supervisor last found that it had itself been frozen."""

    def silent(self, now: float) -> float:
        """Return the seconds since its event loop last ran; 0 if it has not started.

        After a freeze of the supervisor these are the seconds since the freeze at most, because the
        worker may have been frozen too.
        """
        return now - max(self.status.turned, self.excused) if self.pid and self.status else 0.0

    def hangs(self, now: float, limit: float) -> str:
        """Return why it has been silent for too long, or an empty string.

        A resource may block the event loop while it opens. So until all are open, the worker has as
        long as a child process has for its resources, and not the `limit` in seconds.
        """
        silent = self.silent(now)
        if self.status is not None and self.status.is_opening:
            if silent > OPENING:
                return f"worker {self.pid} took more than {OPENING:g} s to open its resources"
        elif silent > limit:
            return f"worker {self.pid} has not responded for {silent:.0f} s"
        return ""

    def ill(self, now: float) -> str:
        """Return why the worker is not live, or an empty string."""
        return self.hangs(now, LIVE)

    def unready(self, now: float) -> str:
        """Return why the worker is not ready, or an empty string."""
        if self.done:
            return ""
        if not self.pid or self.status is None or not self.status.polled:
            return f"worker {self.index + 1} has not started"
        silent = now - self.status.polled
        if silent > READY:
            return f"the server has not answered worker {self.pid} for {silent:.0f} s"
        return ""


class Supervisor:
    """Keeps workers running until it is stopped."""

    def __init__(
        self,
        workers: Sequence[WorkerConfig],
        grace: float,
        health: tuple[str, int] | None = None,
    ) -> None:
        """Set up; `/livez`, `/readyz` and `/metrics` are served on interface and port `health`.

        Several workers may have the same configuration. The first of them starts alone, so that an
        invalid configuration is reported once.
        """
        queues = {name for config in workers for name in config.options.get("queues", ())}
        self._worker_processes = [
            WorkerProcess(i, msgspec.structs.replace(config, others=sorted(queues)))
            for i, config in enumerate(workers)
        ]
        self._grace = grace
        self._health = health
        self._notifier = Notifier()
        self._stops = 0
        self._said_ready = False
        self._valid: list[WorkerConfig] = []
        """The configurations with which a worker has started."""
        self._code = 0
        self._past: ByQueue = {}
        """The metrics of former workers, and the names of all tasks that were reported."""
        self._deaths = 0
        self._ran = time.monotonic()
        """When the supervisor last noted that it runs."""
        self._done = asyncio.Event()

    def run(self) -> int:
        """Supervise until all workers have ended; return the exit code."""
        linux.become_subreaper()
        options = [each.config.options for each in self._worker_processes]
        served = [name for each in options for name in each.get("queues") or each["modules"]]
        with titled(f"bide supervisor {', '.join(dict.fromkeys(served))}"):
            return asyncio.run(self._run())

    async def _run(self) -> int:
        self._loop = loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        server = None
        if self._health is not None:
            try:
                probes = {"/livez": self._what_is_ill, "/readyz": self._what_is_unready}
                server = await serve(*self._health, probes, self._metrics)
            except OSError as error:
                raise ServerRefused(
                    f"The health port cannot be opened ({error}); give another port."
                ) from None
            host, port = server.sockets[0].getsockname()[:2]
            log.info("answers /livez, /readyz and /metrics on %s:%d", host, port)
        watch = asyncio.create_task(self._watch())
        first: list[WorkerConfig] = []
        for each in self._worker_processes:
            if each.config not in first:
                first.append(each.config)
                self._start(each)
        try:
            await self._done.wait()
        finally:
            watch.cancel()
            if server is not None:
                server.close()
            self._kill()
            linux.kill_children()
        log.info("all workers have stopped")
        return self._code

    def stop(self) -> None:
        """Stop all workers, as a signal does; the second call does not wait for running jobs."""
        self._stops += 1
        if self._stops == 1:
            self._notifier.say("STOPPING=1")
            running = sum(each.pid > 0 for each in self._worker_processes)
            log.info("stopping %s", count(running, "worker"))
            self._loop.call_later(self._grace + STOP_MARGIN, self._kill)
        elif self._stops == 2:
            log.info("running jobs are returned to the queue; another signal kills the workers")
        else:
            self._kill()
        for worker_process in self._worker_processes:
            if worker_process.pid:
                with suppress(ProcessLookupError):
                    os.kill(worker_process.pid, signal.SIGTERM)
        self._look()

    def _start(self, worker_process: WorkerProcess) -> None:
        if self._stops or worker_process.pid:
            return
        worker_process.started = time.monotonic()
        worker_process.status = worker_process.gone = None
        try:
            line = Control(
                "bide.worker.supervisor:main",
                encode(worker_process.config),
                (),
                partial(self._hear, worker_process),
                lambda: None,
            )
        except OSError as error:
            log.error("no process can be started: %s", error)
            self._start_later(worker_process)
            return
        line.process.returncode = 0  # `_reap` reaps it, and not `subprocess`
        worker_process.pid, worker_process.line = line.pid, line

    def _hear(self, worker_process: WorkerProcess, message: bytes | memoryview) -> None:
        event = decode_worker_event(message)
        if isinstance(event, WorkerGone):
            worker_process.gone = event
            return
        worker_process.status = event
        if event.polled:
            self._begun(worker_process.config)

    def _begun(self, config: WorkerConfig) -> None:
        """Start the other workers of a configuration; if all are ready, notify systemd."""
        if config not in self._valid:
            self._valid.append(config)
        for each in self._worker_processes:
            if each.config == config and not each.pid and not each.done and not each.started:
                self._start(each)
        if not self._stops and not self._said_ready and not self._what_is_unready():
            self._said_ready = True
            self._notifier.say("READY=1", f"STATUS={len(self._worker_processes)} workers")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for worker_process in self._worker_processes:
                if worker_process.pid == pid:
                    self._ended(worker_process, os.waitstatus_to_exitcode(status))

    def _ended(self, worker_process: WorkerProcess, code: int) -> None:
        if worker_process.line is not None:
            worker_process.line.read()  # what it sent before
            worker_process.line.close()
        add_all(self._past, (worker_process.status and worker_process.status.metrics) or {})
        worker_process.status = None
        pid, worker_process.pid = worker_process.pid, 0
        how = worker_process.gone.how if worker_process.gone else "died"
        if self._stops or how == "ended":
            worker_process.done = True
            left = sum(not worker_process.done for worker_process in self._worker_processes)
            if left and not self._stops:
                log.info("worker %d has ended; still running: %d", pid, left)
                self._notifier.say(f"STATUS={count(left, 'worker')}")
            if not self._stops:
                self._begun(worker_process.config)
            if how in ("died", "unusable") and code != -signal.SIGTERM:  # SIGTERM before the start
                self._code = self._code or 1
        elif how == "unusable" and worker_process.config not in self._valid:
            self._code = code
            worker_process.done = True
            self.stop()
        elif how == "replace":
            self._start(worker_process)
        else:
            self._deaths += 1
            died = f"exit code {code}" if code >= 0 else signal_name(-code)
            lived = time.monotonic() - worker_process.started
            log.error("worker %d died (%s) after %.1f s; another starts", pid, died, lived)
            self._start_later(worker_process)
        self._look()

    def _start_later(self, worker_process: WorkerProcess) -> None:
        """Restart a worker: immediately if it had lived for `LIVED`, otherwise after a pause."""
        lived = time.monotonic() - worker_process.started
        worker_process.failures = 1 if lived > LIVED else worker_process.failures + 1
        pause = 0.0
        if worker_process.failures > 1:
            pause = min(FIRST_PAUSE * 2.0 ** min(worker_process.failures - 2, 16), LONGEST_PAUSE)
        self._loop.call_later(pause, self._start, worker_process)

    def _look(self) -> None:
        """End the supervisor when all workers have ended."""
        over = self._stops > 0 or all(each.done for each in self._worker_processes)
        if over and not any(worker_process.pid for worker_process in self._worker_processes):
            self._done.set()

    def _kill(self) -> None:
        for worker_process in self._worker_processes:
            if worker_process.pid:
                log.error("worker %d does not stop, and is killed", worker_process.pid)
                self._code = self._code or 1
                linux.kill_session(worker_process.pid)

    async def _watch(self) -> None:
        """Kill stuck workers, and notify systemd's watchdog while all workers are live."""
        while True:
            await asyncio.sleep(min(LOOK_EVERY, self._notifier.every or LOOK_EVERY))
            self._check(time.monotonic())

    def _check(self, now: float) -> None:
        self._note_freeze(now)
        for worker_process in self._worker_processes:
            if problem := worker_process.hangs(now, STUCK):
                log.error("%s, and is killed", problem)
                linux.kill_session(worker_process.pid)
        if self._notifier.every is not None and not self._what_is_ill():
            self._notifier.say("WATCHDOG=1")

    def _note_freeze(self, now: float) -> None:
        """If the supervisor itself has not run for a while, have workers count as silent from now.

        Otherwise it would kill them before they could report.
        """
        if now - self._ran > FROZEN:
            for worker_process in self._worker_processes:
                worker_process.excused = now
        self._ran = now

    def _what_is_ill(self) -> str:
        now = time.monotonic()
        self._note_freeze(now)
        problems = (worker_process.ill(now) for worker_process in self._worker_processes)
        return next(filter(None, problems), "")

    def _what_is_unready(self) -> str:
        if self._stops:
            return "it stops"
        now = time.monotonic()
        problems = (worker_process.unready(now) for worker_process in self._worker_processes)
        return next(filter(None, problems), "")

    async def _metrics(self) -> str:
        reported = [(each.status and each.status.metrics) or {} for each in self._worker_processes]
        for metrics in reported:  # so that a name that was reported stays when its worker ends
            add_names(self._past, metrics)
        total: ByQueue = {}
        for metrics in (self._past, *reported):
            add_all(total, metrics)
        return worker_metrics(total, sum(m.pid > 0 for m in self._worker_processes), self._deaths)


__all__ = ["Supervisor"]


EVERY: Final = 1.0
SOON: Final = 0.05
"""Seconds between two reports: `SOON` until the first claim, because other workers wait for it."""

_INVALID: Final = (UsageError, LookupError, ClientTooOld)
_UNREACHABLE: Final = (AccessDenied, ServerUnavailable)
"""Errors that every worker would meet. A worker waits for a server that is down. So an unreachable
server is an error only in a burst, or if waiting does not help."""

_WRONG: Final = 2
"""The exit code for an invalid command line."""


def main() -> None:
    """Run as a worker: the program that a supervisor starts."""
    line = socket.socket(fileno=int(sys.argv[-1]))
    line.setblocking(True)  # a module may change the default time-out
    line.set_inheritable(False)
    message = Reader(line).read()
    if message is None:
        return
    config = decode_config(message)
    logs.setup(*config.log)
    try:
        worker = Worker(**config.options)
        worker.metrics = {} if config.counts else None
        worker.has_health_port = config.counts
        worker.others = config.others
        # At once: the next report is late if a job of the first claim blocks the event loop.
        worker.on_open = lambda: _send(line, _status(worker))
        relay = outbox_beside(config.outbox, config.burst) if config.outbox else None

        async def beside() -> None:
            if relay is None:
                await report(worker, line)
            else:
                duties = [asyncio.create_task(duty) for duty in (report(worker, line), relay())]
                try:
                    await asyncio.gather(*duties)
                except asyncio.CancelledError:
                    await asyncio.wait(duties)  # `gather` does not wait until all have stopped
                    raise

        worker.run(config.burst, beside=beside)
    except BideError as error:
        sys.stderr.write(f"Error: {printable(str(error))}\n")
        if isinstance(error, _INVALID + _UNREACHABLE):
            _send(line, WorkerGone("unusable"))
        sys.exit(_WRONG if isinstance(error, _INVALID) else 1)
    _send(line, _status(worker))
    _send(line, WorkerGone("replace" if worker.replaceable else "ended"))
    leave_threads_behind()


def _send(line: socket.socket, event: WorkerEvent) -> None:
    with suppress(OSError):
        send(line, encode(event))


def _status(worker: Worker) -> WorkerStatus:
    return WorkerStatus(time.monotonic(), worker.polled, worker.measured(), worker.is_opening)


async def report(worker: Worker, line: socket.socket) -> None:
    """Report the worker's status until cancelled; if the supervisor dies, stop the worker."""
    line.setblocking(False)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(line)
        worker.stop()

    loop.add_reader(line, stop)
    try:
        while True:
            _send(line, _status(worker))
            await asyncio.sleep(EVERY if worker.polled else SOON)
    finally:
        loop.remove_reader(line)
        line.setblocking(True)
