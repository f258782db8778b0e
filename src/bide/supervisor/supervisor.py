"""The supervisor: members that die are started again, and all of them stop together.

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
import time
from typing import Final

from bide.errors import ServerRefused
from bide.logs import Log
from bide.supervisor.metrics import worker_metrics
from bide.supervisor.notify import Notifier
from bide.supervisor.plan import Farewell, Plan, Vitals, decode_news, encode
from bide.supervisor.probes import serve
from bide.worker.figures import ByQueue, add_all
from bide.worker.processes import kin
from bide.worker.processes.evidence import signal_name
from bide.worker.processes.fresh import fresh_python
from bide.worker.processes.wire import Reader, pair, send
from bide.worker.title import titled

log = Log("bide.supervisor")

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


class Member:
    """The place of one worker at a time."""

    def __init__(self, index: int) -> None:
        self.index: Final = index
        self.pid = 0
        self.line: socket.socket | None = None
        self.started = 0.0
        self.vitals: Vitals | None = None
        self.farewell: Farewell | None = None
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
        plan: Plan,
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
        self._members = [Member(i) for i in range(members)]
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
        kin.adopt_orphans()
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
            kin.kill_children()
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

    def _start(self, member: Member) -> None:
        if self._stops or member.pid:
            return
        member.started, member.vitals, member.farewell = time.monotonic(), None, None
        try:
            self._launch(member)
        except OSError as error:
            log.error("no process is to be had: %s", error)
            self._start_later(member)

    def _launch(self, member: Member) -> None:
        ours, theirs = pair()
        with theirs:
            try:
                process = subprocess.Popen(
                    fresh_python("bide.supervisor.member:main", str(theirs.fileno())),
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

    def _hear(self, member: Member, reader: Reader) -> None:
        with contextlib.suppress(OSError):
            while message := reader.read():
                news = decode_news(message)
                if isinstance(news, Farewell):
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

    def _hang_up(self, member: Member) -> None:
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

    def _ended(self, member: Member, code: int) -> None:
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

    def _start_later(self, member: Member) -> None:
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

    def _signal(self, member: Member, number: int) -> None:
        if member.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, number)

    def _kill(self) -> None:
        for member in self._members:
            if member.pid:
                log.error("worker %d does not stop, and is killed", member.pid)
                self._code = self._code or 1
                kin.kill_session(member.pid)

    async def _watch(self) -> None:
        """Kill whom nothing else would end, and tell systemd that all is well."""
        while True:
            await asyncio.sleep(min(LOOK_EVERY, self._notifier.every or LOOK_EVERY))
            now = time.monotonic()
            for member in self._members:
                if (silent := member.silent(now)) > STUCK:
                    log.error("worker %d has said nothing for %.0f s; killed", member.pid, silent)
                    kin.kill_session(member.pid)
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
