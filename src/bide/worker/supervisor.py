"""Several workers as one unit: started, watched, started again, and stopped together.

    supervisor ──line──> member (a worker), member, …

The supervisor runs no job and knows no server. Each member is a process of its own, in a session of
its own, on a line: it is told its plan, says every second how it is, and stops when the line ends,
because then the supervisor is dead.

It stops members as a signal does: the first lets running jobs finish, the second gives them back.
What does not end in time, it kills, and whose event loop does not turn any more. It reaps whatever
becomes its child, so it may be process 1 of a container.

What a member's end means, it says itself, over its line. Its exit code says nothing: a job may
choose any.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec

from bide import logs
from bide.errors import (
    AccessDenied,
    BideError,
    ClientTooOld,
    ServerRefused,
    ServerUnavailable,
    UsageError,
)
from bide.logs import Log, printable
from bide.model.latency import CONTENT_TYPE, Distribution, Family, Labels, expose
from bide.worker import Worker
from bide.worker.lifespan import leave_threads_behind
from bide.worker.metrics import LATENESS, RUN_TIME, ByQueue, add_all, titled
from bide.worker.processes import linux
from bide.worker.processes.ipc import Reader, pair, send
from bide.worker.processes.linux import python_command, signal_name

_SEND_PATIENCE: Final = 1.0
"""Seconds to wait while systemd has more messages than it reads: the event loop waits, too."""


class Notifier:
    """Says to `$NOTIFY_SOCKET` what is said; to nobody where there is none."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Take what concerns this process out of the environment: children are not to answer."""
        self._path = environment.pop("NOTIFY_SOCKET", "")
        pid = environment.pop("WATCHDOG_PID", "")
        watchdog = environment.pop("WATCHDOG_USEC", "")
        self.every: float | None = None
        """Seconds between two signs of life that are asked for, with time to spare; or None."""
        if watchdog.isdigit() and int(watchdog) > 0 and pid in ("", str(os.getpid())):
            self.every = int(watchdog) / 2e6

    def say(self, *words: str) -> None:
        """Send assignments such as `READY=1`; drops them where systemd does not take them."""
        if not self._path:
            return
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(_SEND_PATIENCE)
            line.sendto("\n".join(words).encode(), address)


class WorkerConfig(msgspec.Struct, frozen=True):
    """What one member does; it travels over its line, because a command line can be seen by all."""

    options: dict[str, Any]
    """The arguments of `bide.Worker`."""
    burst: bool
    log: logs.Settings
    counts: bool = False
    """Whether it is to say what it has done."""


class WorkerStatus(msgspec.Struct, frozen=True, tag="vitals"):
    """How a member is. Times are of `time.monotonic()`, which all processes share."""

    turned: float
    """When its event loop last turned."""
    polled: float
    """When it last looked for work, and was answered; 0 for never."""
    figures: ByQueue | None = None
    """What it has done since it started, where it is to say so."""


class WorkerGone(msgspec.Struct, frozen=True, tag="farewell"):
    """Why a member ends. One that ends without it has died: a job may choose any exit code."""

    how: Literal["ended", "replace", "unusable"]
    """It has nothing left to do, or was asked over the server to stop; it has run as many jobs as
    it was to, or was told to stop by somebody else, and is to be replaced; or its plan cannot be
    meant, and another would end so too."""


News = WorkerStatus | WorkerGone


encode: Final = msgspec.json.Encoder().encode
decode_plan: Final = msgspec.json.Decoder(WorkerConfig).decode
decode_news: Final[Callable[[bytes | memoryview], News]] = msgspec.json.Decoder(News).decode


Probe = Callable[[], str]
"""Says what is wrong, or nothing."""

Metrics = Callable[[], Awaitable[str]]
"""Figures, in Prometheus' text format."""

_PATIENCE: Final = 5.0
_FIGURES: Final = 4.0
"""Seconds for figures: less, so that whoever asks is told why there are none."""
_LONGEST: Final = 8192
_MOST_WAITING: Final = 100
"""Connections that have sent no whole request yet, at most; a new one closes the oldest."""
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


async def serve(
    host: str, port: int, probes: dict[str, Probe], metrics: Metrics | None = None
) -> asyncio.Server:
    """Answer `GET PATH` with 200, or with 503 and what is wrong; and `/metrics`.

    Args:
        host: the interface.
        port: 0 for any that is free.
        probes: by path.
        metrics: what `/metrics` answers; a `BideError` that it raises is what is wrong.

    Raises:
        OSError: the port is taken.
    """
    waiting: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting[writer] = None
        if len(waiting) > _MOST_WAITING:
            oldest = next(iter(waiting))
            del waiting[oldest]
            oldest.close()  # its reader sees the end
        try:
            async with asyncio.timeout(_PATIENCE):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    head = b""
                waiting.pop(writer, None)
                writer.write(await _respond(head, probes, metrics))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.CancelledError):  # the last: everything ends
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
            async with asyncio.timeout(_FIGURES):
                text, kind = await metrics(), CONTENT_TYPE
        except TimeoutError:
            code, text = 503, f"no figures came within {_FIGURES:g} seconds\n"
        except BideError as error:
            code, text = 503, f"{error}\n"
    elif path not in probes:
        code, text = 404, f"there is {', '.join(paths)}\n"
    elif wrong := probes[path]():
        code, text = 503, f"{wrong}\n"
    body = text.encode()
    lines = [
        f"HTTP/1.1 {code} {_REASONS.get(code, 'Service Unavailable')}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + (b"" if method == b"HEAD" else body)


OUTCOMES: Final = ("complete", "retry", "fail", "snooze", "release", "cancel", "crash")


def worker_metrics(figures: ByQueue, workers: int, deaths: int) -> str:
    """The text of `/metrics`.

    Args:
        figures: the sums over all workers that there are and were.
        workers: how many run.
        deaths: how many have died.
    """
    claims, claimed, refused = [], [], []
    settled: list[tuple[Labels, float]] = []
    lateness, run_time = [], []
    for queue, seen in sorted(figures.items()):
        of = {"queue": queue}
        claims.append((of, seen.claims))
        claimed.append((of, seen.claimed))
        refused.append((of, seen.refused))
        settled += [({**of, "outcome": name}, seen.settled.get(name, 0)) for name in OUTCOMES]
        lateness.append((of, Distribution(LATENESS, seen.lateness.counts, seen.lateness.total)))
        run_time.append((of, Distribution(RUN_TIME, seen.run_time.counts, seen.run_time.total)))
    return expose(
        [
            Family("bide_worker_processes", "gauge", "Workers that run.", [({}, workers)]),
            Family(
                "bide_worker_deaths_total",
                "counter",
                "Workers that died, and were replaced.",
                [({}, deaths)],
            ),
            Family(
                "bide_worker_claims_total", "counter", "Claims that the server answered.", claims
            ),
            Family("bide_worker_claimed_jobs_total", "counter", "Jobs that were claimed.", claimed),
            Family(
                "bide_worker_settled_jobs_total",
                "counter",
                "Outcomes of jobs that the server has taken; crash: their process died.",
                settled,
            ),
            Family(
                "bide_worker_refused_settles_total",
                "counter",
                "Outcomes that came after the lease had passed to another worker.",
                refused,
            ),
            Family(
                "bide_worker_lateness_seconds",
                "histogram",
                "From due to claimed, by the server's clock.",
                lateness,
            ),
            Family(
                "bide_worker_run_seconds",
                "histogram",
                "For how long a job ran, whatever it came to.",
                run_time,
            ),
        ]
    )


log = Log("bide.worker.supervisor")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
"""Seconds between the death of a member and the start of the next."""

LIVED: Final = 10.0
"""Seconds after which a member's death is no reason to wait with the next."""

LIVE: Final = 30.0
"""Seconds in which a member's event loop must have turned."""

STUCK: Final = 60.0
"""Seconds without a turn after which it is killed, and another started."""

READY: Final = 30.0
"""Seconds in which it must have looked for work, and been answered."""

LOOK_EVERY: Final = 1.0

SPARE: Final = 10.0
"""Seconds that members get beyond the grace of their jobs, before they are killed."""


class WorkerProcess:
    """The place of one worker at a time."""

    def __init__(self, index: int) -> None:
        self.index: Final = index
        self.pid = 0
        self.line: socket.socket | None = None
        self.started = 0.0
        self.vitals: WorkerStatus | None = None
        self.farewell: WorkerGone | None = None
        self.failures = 0
        self.done = False
        """It has nothing left to do, and is not started again."""

    def silent(self, now: float) -> float:
        """For how many seconds its loop has not turned; 0 for one that has not begun to."""
        return now - self.vitals.turned if self.pid and self.vitals else 0.0

    def ill(self, now: float) -> str:
        """What keeps it from being live, or nothing."""
        if (silent := self.silent(now)) > LIVE:
            return f"worker {self.pid} has said nothing for {silent:.0f} s"
        return ""

    def unready(self, now: float) -> str:
        """What keeps it from being ready, or nothing."""
        if self.done:
            return ""
        if not self.pid or self.vitals is None or not self.vitals.polled:
            return f"worker {self.index + 1} has not begun"
        silent = now - self.vitals.polled
        if silent > READY:
            return f"the server has not answered worker {self.pid} for {silent:.0f} s"
        return ""


class Supervisor:
    """Keeps members running until it is told to stop."""

    def __init__(
        self,
        plan: WorkerConfig,
        members: int,
        grace: float,
        health: tuple[str, int] | None = None,
    ) -> None:
        """Set up.

        Args:
            plan: what each member does.
            members: how many there are.
            grace: seconds that running jobs get to end.
            health: interface and port on which `/livez`, `/readyz` and `/metrics` are answered.
        """
        self._plan = plan
        self._members = [WorkerProcess(i) for i in range(members)]
        self._grace = grace
        self._health = health
        self._notifier = Notifier()
        self._stops = 0
        self._said_ready = False
        self._has_begun = False
        """Some member has, so the plan is one that can be meant."""
        self._code = 0
        self._past: ByQueue = {}
        """What workers have done that are no more."""
        self._deaths = 0
        self._done = asyncio.Event()

    def run(self) -> int:
        """Supervise until all members have ended; the exit code."""
        linux.become_subreaper()
        options = self._plan.options
        with titled(f"bide supervisor {', '.join(options.get('queues') or options['modules'])}"):
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
                raise ServerRefused(f"Nothing can listen on the health port: {error}.") from None
            host, port = server.sockets[0].getsockname()[:2]
            log.info("answers /livez, /readyz and /metrics on %s:%d", host, port)
        watch = asyncio.create_task(self._watch())
        self._start(self._members[0])
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
        """Stop all members, as a signal would; the second call does not wait for jobs."""
        self._stops += 1
        if self._stops == 1:
            self._notifier.say("STOPPING=1")
            log.info("stops %d workers", sum(member.pid > 0 for member in self._members))
            self._loop.call_later(self._grace + SPARE, self._kill)
        elif self._stops == 2:
            log.info("waits for no jobs any more; another signal kills")
        else:
            self._kill()
        for member in self._members:
            self._signal(member, signal.SIGTERM)
        self._look()

    def _start(self, member: WorkerProcess) -> None:
        if self._stops or member.pid:
            return
        member.started, member.vitals, member.farewell = time.monotonic(), None, None
        try:
            self._launch(member)
        except OSError as error:
            log.error("no process is to be had: %s", error)
            self._start_later(member)

    def _launch(self, member: WorkerProcess) -> None:
        ours, theirs = pair()
        with theirs:
            try:
                process = subprocess.Popen(
                    python_command("bide.worker.supervisor:main", str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        process.returncode = 0  # it is reaped here, and not by the library
        member.pid, member.line = process.pid, ours
        with contextlib.suppress(OSError):  # it has died, which is heard too
            send(ours, encode(self._plan))
        ours.setblocking(False)
        self._loop.add_reader(ours, self._hear, member, Reader(ours))

    def _hear(self, member: WorkerProcess, reader: Reader) -> None:
        with contextlib.suppress(OSError):
            while message := reader.read():
                news = decode_news(message)
                if isinstance(news, WorkerGone):
                    member.farewell = news
                    continue
                member.vitals = news
                if news.polled:
                    self._begun()
            self._hang_up(member)

    def _begun(self) -> None:
        """One has begun, so the others can, too; once all have, the service is ready."""
        self._has_begun = True
        for member in self._members:
            if not member.pid and not member.done and not member.started:
                self._start(member)
        if not self._stops and not self._said_ready and not self._what_is_unready():
            self._said_ready = True
            self._notifier.say("READY=1", f"STATUS={len(self._members)} workers")

    def _hang_up(self, member: WorkerProcess) -> None:
        line, member.line = member.line, None
        if line is not None:
            self._loop.remove_reader(line)
            line.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for member in self._members:
                if member.pid == pid:
                    self._ended(member, os.waitstatus_to_exitcode(status))

    def _ended(self, member: WorkerProcess, code: int) -> None:
        if member.line is not None:
            self._hear(member, Reader(member.line))
        self._hang_up(member)
        add_all(self._past, (member.vitals and member.vitals.figures) or {})
        member.vitals = None
        pid, member.pid = member.pid, 0
        how = member.farewell.how if member.farewell else "died"
        if self._stops or how == "ended":
            member.done = True
            if not self._stops:
                self._have_less(pid)
            if how in ("died", "unusable") and code != -signal.SIGTERM:  # that: before it had begun
                self._code = self._code or 1
        elif how == "unusable" and not self._has_begun:
            self._code = code
            member.done = True
            self.stop()
        elif how == "replace":
            self._start(member)
        else:
            self._deaths += 1
            died = f"exit code {code}" if code >= 0 else signal_name(-code)
            lived = time.monotonic() - member.started
            log.error("worker %d died (%s) after %.1f s; another starts", pid, died, lived)
            self._start_later(member)
        self._look()

    def _have_less(self, pid: int) -> None:
        """One has nothing left to do; the others go on."""
        left = sum(not member.done for member in self._members)
        if left:
            log.info("worker %d has ended; %d go on", pid, left)
            self._notifier.say(f"STATUS={left} workers")
        self._begun()

    def _start_later(self, member: WorkerProcess) -> None:
        """Start it again: at once where it had lived for a while, else with growing pauses."""
        lived = time.monotonic() - member.started
        member.failures = 1 if lived > LIVED else member.failures + 1
        pause = 0.0
        if member.failures > 1:
            pause = min(FIRST_PAUSE * 2.0 ** min(member.failures - 2, 16), LONGEST_PAUSE)
        self._loop.call_later(pause, self._start, member)

    def _look(self) -> None:
        """End when all have ended."""
        over = self._stops > 0 or all(member.done for member in self._members)
        if over and not any(member.pid for member in self._members):
            self._done.set()

    def _signal(self, member: WorkerProcess, number: int) -> None:
        if member.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, number)

    def _kill(self) -> None:
        for member in self._members:
            if member.pid:
                log.error("worker %d does not stop, and is killed", member.pid)
                self._code = self._code or 1
                linux.kill_session(member.pid)

    async def _watch(self) -> None:
        """Kill whom nothing else would end, and tell systemd that all is well."""
        while True:
            await asyncio.sleep(min(LOOK_EVERY, self._notifier.every or LOOK_EVERY))
            now = time.monotonic()
            for member in self._members:
                if (silent := member.silent(now)) > STUCK:
                    log.error("worker %d has said nothing for %.0f s; killed", member.pid, silent)
                    linux.kill_session(member.pid)
            if self._notifier.every is not None and not self._what_is_ill():
                self._notifier.say("WATCHDOG=1")

    def _what_is_ill(self) -> str:
        now = time.monotonic()
        return next((ill for member in self._members if (ill := member.ill(now))), "")

    def _what_is_unready(self) -> str:
        if self._stops:
            return "it stops"
        now = time.monotonic()
        return next((why for member in self._members if (why := member.unready(now))), "")

    async def _metrics(self) -> str:
        figures: ByQueue = {}
        add_all(figures, self._past)
        for member in self._members:
            add_all(figures, (member.vitals and member.vitals.figures) or {})
        return worker_metrics(figures, sum(m.pid > 0 for m in self._members), self._deaths)


__all__ = ["Supervisor"]


EVERY: Final = 1.0
SOON: Final = 0.05
"""Seconds between two reports; until it has begun, others wait for that."""

_MEANT_WRONG: Final = (UsageError, LookupError, ClientTooOld)
_NOT_LET_IN: Final = (AccessDenied, ServerUnavailable)
"""Errors that another member would meet, too. A worker waits for a server that is down: that it
cannot be reached is an error only in a burst, or where waiting does not help."""

_WRONG: Final = 2
"""The exit code of a command line that cannot be meant."""


def main() -> None:
    """Be a member: the program that a supervisor starts."""
    line = socket.socket(fileno=int(sys.argv[-1]))
    line.setblocking(True)  # whatever a module makes of the default
    line.set_inheritable(False)
    told = Reader(line).read()
    if told is None:
        return
    plan = decode_plan(told)
    logs.setup(*plan.log)
    try:
        worker = Worker(**plan.options)
        worker.figures = {} if plan.counts else None
        worker.work(plan.burst, beside=lambda: report(worker, line))
    except BideError as error:
        sys.stderr.write(f"Error: {printable(str(error))}\n")
        if isinstance(error, _MEANT_WRONG + _NOT_LET_IN):
            _say(line, WorkerGone("unusable"))
        sys.exit(_WRONG if isinstance(error, _MEANT_WRONG) else 1)
    _say(line, _vitals(worker))
    _say(line, WorkerGone("replace" if worker.replaceable else "ended"))
    leave_threads_behind()


def _say(line: socket.socket, news: News) -> None:
    with contextlib.suppress(OSError):
        send(line, encode(news))


def _vitals(worker: Worker) -> WorkerStatus:
    return WorkerStatus(time.monotonic(), worker.polled, worker.figures)


async def report(worker: Worker, line: socket.socket) -> None:
    """Say how the worker is until cancelled; if nobody listens, stop it."""
    line.setblocking(False)
    loop = asyncio.get_running_loop()
    loop.add_reader(line, _orphaned, loop, line, worker.stop)
    try:
        while True:
            _say(line, _vitals(worker))
            await asyncio.sleep(EVERY if worker.polled else SOON)
    finally:
        loop.remove_reader(line)
        line.setblocking(True)


def _orphaned(
    loop: asyncio.AbstractEventLoop, line: socket.socket, stop: Callable[[], None]
) -> None:
    loop.remove_reader(line)
    stop()
