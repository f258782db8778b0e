"""All parts of `bide dev`, from its start to Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bide import logs
from bide.dev import page
from bide.dev.part import Part
from bide.dev.program import Program
from bide.dev.sources import Sources
from bide.dev.worker import SHOWN, DevPlan
from bide.embedded import Server
from bide.errors import BideError
from bide.worker.processes import kin
from bide.worker.processes.fresh import fresh_python
from bide.worker.processes.wire import pair, send

HOME: Final = ".bide"
"""Where the server keeps its data, in the directory one stands in."""

GRACE: Final = 3.0
"""Seconds that running jobs get when the worker is replaced; then they are given back."""

_AGAIN: Final = 1.0
"""Seconds after which a worker that died at work is replaced."""

_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class AlreadyRunning(BideError):
    """Another `bide dev` has this directory."""


class Dev:
    """A server, a worker, a page, and what else is wanted, until a signal."""

    def __init__(
        self,
        program: Program,
        options: dict[str, Any],
        log: logs.Settings,
        command: Sequence[str] = (),
    ) -> None:
        """Set up; nothing is started before `run`.

        Args:
            program: what the worker imports.
            options: of its `bide.Worker`.
            log: format and level of what it logs.
            command: a program to run beside it, which finds the server in $BIDE_URL.
        """
        self._program = program
        self._options = {"grace": GRACE, **options}
        self._log = log
        self._command = command
        self._here = Path.cwd()
        self._parts: set[Part] = set()
        self._stopped = asyncio.Event()
        self._url = ""

    def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP, and leave nothing behind.

        Raises:
            AlreadyRunning: another `bide dev` has this directory.
            ServerError: the server does not start.
            ServerNotFound: there is none to start.
        """
        kin.adopt_orphans()
        home = self._here / HOME
        home.mkdir(exist_ok=True)
        (home / ".gitignore").write_text("*\n")
        try:
            with _alone(home):
                asyncio.run(self._serve(home))
        finally:
            kin.kill_children()

    async def _serve(self, home: Path) -> None:
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            loop.add_signal_handler(number, self._stop)
        with Server.start(home, persist=True) as server:
            self._url = server.url
            _say(
                f"{server.flavour.capitalize()} {server.version}, embedded: not for production; "
                f"its data stays in {HOME}/"
            )
            _say(f"for other programs: export BIDE_URL={shlex.quote(server.url)}")
            duties = [
                asyncio.create_task(self._keep_worker()),
                asyncio.create_task(self._run_page()),
            ]
            if self._command:
                beside = self._run_beside(self._command[0], self._command)
                duties.append(asyncio.create_task(beside))
            try:
                await asyncio.gather(*duties)
            finally:
                for duty in duties:
                    duty.cancel()
                await asyncio.gather(*duties, return_exceptions=True)
        with contextlib.suppress(OSError):  # one that was killed leaves it
            (home / "server.sock").unlink()
        _say("everything has stopped")

    def _stop(self) -> None:
        if not self._stopped.is_set():
            _say("stops; running jobs have a moment to end, another Ctrl-C gives them back")
        self._stopped.set()
        for part in self._parts:
            part.hurry()

    async def _keep_worker(self) -> None:
        """A worker at any time; another when a source changes."""
        while not self._stopped.is_set():
            sources = Sources([self._here, self._program.root])
            async with self._worker() as (part, line):
                changed = asyncio.create_task(sources.changed())
                ended = asyncio.create_task(part.ended())
                stopped = asyncio.create_task(self._stopped.wait())
                try:
                    await asyncio.wait([changed, ended, stopped], return_when="FIRST_COMPLETED")
                    if not changed.done() and not stopped.done():
                        await self._wait_to_replace(ended.result(), line, changed, stopped)
                    if changed.done() and not stopped.done():
                        _say(
                            f"{_told(changed.result(), self._here)} changed; another worker starts"
                        )
                finally:
                    for waiting in (changed, ended, stopped):
                        waiting.cancel()

    async def _wait_to_replace(
        self, code: int, line: socket.socket, *until: asyncio.Task[Any]
    ) -> None:
        """A worker has ended: one that died is replaced; one with a mistake in it waits for you."""
        line.setblocking(False)
        has_shown = False
        with contextlib.suppress(OSError):
            has_shown = line.recv(1) == SHOWN
        if has_shown:
            _say("no worker runs; it starts again when you save a source")
        else:
            _say(f"the worker has ended ({_how(code)}); another starts")
        pause = None if has_shown else _AGAIN
        await asyncio.wait(until, timeout=pause, return_when="FIRST_COMPLETED")

    @contextlib.asynccontextmanager
    async def _worker(self) -> AsyncIterator[tuple[Part, socket.socket]]:
        path = [str(self._program.root), str(self._here)]
        plan = DevPlan(self._program.module, path, self._url, self._options, self._log)
        ours, theirs = pair()
        with ours:
            with theirs:
                part = await self._start(
                    "the worker",
                    fresh_python("bide.dev.worker:main", str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                )
            with contextlib.suppress(OSError):  # it has died, which is heard too
                send(ours, msgspec.json.encode(plan))
            try:
                yield part, ours
            finally:
                await self._end(part)

    async def _run_page(self) -> None:
        """The page, if what it needs is there."""
        if not page.is_installed():
            _say("for a page of what is due: pip install 'bide[web]'")
            return
        with page.listening() as listener:
            number = listener.fileno()
            _say(f"the page is at http://127.0.0.1:{listener.getsockname()[1]}/")
            command = fresh_python("bide.dev.page:main", str(number))
            await self._run_beside("the page", command, pass_fds=[number])

    async def _run_beside(self, name: str, command: Sequence[str], **more: Any) -> None:
        """A program beside the worker, to its end or ours."""
        try:
            part = await self._start(name, command, **more)
        except OSError as error:
            _say(f"{name} cannot be started ({error.strerror}); the worker goes on without it")
            return
        part.watch()
        stopped = asyncio.create_task(self._stopped.wait())
        ended = asyncio.create_task(part.ended())
        try:
            await asyncio.wait([ended, stopped], return_when="FIRST_COMPLETED")
            if ended.done() and not stopped.done():
                _say(f"{name} has ended ({_how(ended.result())}); the worker goes on")
        finally:
            stopped.cancel()
            ended.cancel()
            await self._end(part)

    async def _start(self, name: str, command: Sequence[str], **more: Any) -> Part:
        part = await Part.start(
            name,
            command,
            GRACE,
            environment={"BIDE_URL": self._url, "PYTHONUNBUFFERED": "1"},
            **more,
        )
        self._parts.add(part)
        return part

    async def _end(self, part: Part) -> None:
        await part.end()
        self._parts.discard(part)


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the directory; the file says who does.

    Raises:
        AlreadyRunning: somebody else does.
    """
    number = os.open(home / "dev.lock", os.O_RDWR | os.O_CREAT, 0o600)
    with open(number, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = file.read().strip()
            raise AlreadyRunning(
                f"Another `bide dev` runs in this directory (process {who or 'unknown'}); stop it "
                "with Ctrl-C in its terminal, or start this one in another directory."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _told(paths: Sequence[str], here: Path) -> str:
    """Which files, in a few words."""
    first = os.path.relpath(paths[0], here)
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"bide dev: {text}\n")
        sys.stderr.flush()
