"""All parts of `bide dev`, from its start to Ctrl-C.

To look costs some microseconds a file, and needs nothing that is not in Python; so it is paced by
what it costs: whatever the size of the tree, it takes a twentieth of one processor at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bide import logs
from bide.cli.dev import children
from bide.cli.dev.children import SHOWN, DevPlan
from bide.embedded import Server
from bide.errors import BideError, UsageError
from bide.worker.processes import linux
from bide.worker.processes.ipc import pair, send
from bide.worker.processes.linux import python_command

SPARE: Final = 3.0
"""Seconds beyond its grace after which what does not end is killed."""

_WATCH: Final = """
trap '' HUP INT TERM
read -r _
kill -TERM "-$1" 2>/dev/null
left=$2
while [ "$left" -gt 0 ] && kill -0 "-$1" 2>/dev/null; do sleep 1; left=$((left - 1)); done
kill -KILL "-$1" 2>/dev/null
"""


class DevProcess:
    """A process that `dev` starts, in a session of its own."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, grace: float) -> None:
        self._process = process
        self.name: Final = name
        self._patience = grace + SPARE
        self._watcher: subprocess.Popen[bytes] | None = None
        self._hurries = 0

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        grace: float,
        *,
        environment: Mapping[str, str],
        **more: Any,
    ) -> DevProcess:
        """Start a program; OSError where there is none to start."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **environment},
            **more,
        )
        return cls(process, name, grace)

    def watch(self) -> None:
        """Have it end if this process is killed; for programs that have no line to us."""
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(self._process.pid), str(ceil(self._patience))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    async def ended(self) -> int:
        """Wait for its end; the exit code, or the negative number of the signal."""
        return await self._process.wait()

    def hurry(self) -> None:
        """Ask it to end; the second time without waiting for jobs, the third at once."""
        self._hurries += 1
        if self._hurries > 2:
            linux.kill_session(self._process.pid)
        elif self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def end(self) -> None:
        """Have it end, and all that it has started."""
        if not self._hurries:
            self.hurry()
        try:
            async with asyncio.timeout(self._patience):
                await self._process.wait()
        except TimeoutError:
            linux.kill_session(self._process.pid)
            await self._process.wait()
        self.bury()

    def bury(self) -> None:
        """After its end: kill what it has left behind."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None


class Program(NamedTuple):
    """The module that holds an application's tasks."""

    module: str
    root: Path
    """The directory that it is imported from."""


def find_program(text: str, here: Path) -> Program:
    """From `app.py`, `shop/tasks.py` or `shop.tasks` to the module.

    A file of a package is imported as one: from the directory above the topmost `__init__.py`.

    Args:
        text: as typed.
        here: the directory one stands in.

    Raises:
        UsageError: there is no such file, or it cannot be a module.
    """
    is_path = text.endswith(".py") or "/" in text
    if not is_path and all(part.isidentifier() for part in text.split(".")):
        return Program(text, here)
    file = here / text
    if not file.exists():
        raise UsageError(
            f"There is no file {text!r} here; give one such as app.py, or a module such as "
            "shop.tasks."
        )
    file = file.resolve()
    if file.is_dir() and not (file / "__init__.py").exists():
        raise UsageError(f"{text!r} is a directory; name the file in it that has your tasks.")
    names = [] if file.is_dir() or file.name == "__init__.py" else [file.stem]
    root = file if file.is_dir() else file.parent
    while (root / "__init__.py").exists():
        names.insert(0, root.name)
        root = root.parent
    if file.is_file() and file.suffix != ".py":
        raise UsageError(f"{text!r} is not a Python file; name the one that has your tasks.")
    for name in names:
        if not name.isidentifier():
            raise UsageError(
                f"{text!r} cannot be imported, because {name!r} is not a valid module name; rename "
                f"it, for instance to {name.replace('-', '_')!r}."
            )
    return Program(".".join(names), root)


LOOK_EVERY: Final = 0.25
"""Seconds between two looks at least."""

_SHARE: Final = 20
"""A look is followed by a pause of so many times its own length."""

_SETTLED: Final = 0.05
"""Seconds without a further change after which a change is whole: a checkout writes many files."""

_NEVER: Final = frozenset({"node_modules", "__pycache__", "site-packages"})

_Stamp = tuple[int, int]


class Sources:
    """The Python files below some directories, and each directory's pyproject.toml.

    Left out are hidden directories, environments (`pyvenv.cfg`), and what is not one's own source.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        """Look for the first time."""
        wanted = list(dict.fromkeys(roots))
        self._roots = [root for root in wanted if not {*wanted} & {*root.parents}]
        self._pause = LOOK_EVERY
        self._seen = self._look()

    async def changed(self) -> list[str]:
        """Wait until files have changed, come or gone; their paths, sorted."""
        names: set[str] = set()
        while True:
            await asyncio.sleep(_SETTLED if names else self._pause)
            more = self.changes()
            if names and not more:
                return sorted(names)
            names |= more

    def changes(self) -> set[str]:
        """What has changed since the last look."""
        before, self._seen = self._seen, self._look()
        return {path for path, _ in before.items() ^ self._seen.items()}

    def _look(self) -> dict[str, _Stamp]:
        begun = time.monotonic()
        seen = {path: stamp for root in self._roots for path, stamp in _files(str(root))}
        self._pause = max(LOOK_EVERY, _SHARE * (time.monotonic() - begun))
        return seen


def _files(root: str) -> Iterator[tuple[str, _Stamp]]:
    left = [root]
    while left:
        try:
            entries = list(os.scandir(left.pop()))
        except OSError:  # it has just gone, or is not ours to read
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in _NEVER:
                        left.append(entry.path)
                elif entry.name.endswith(".py") or entry.name == "pyproject.toml":
                    stat = entry.stat()
                    yield entry.path, (stat.st_mtime_ns, stat.st_size)
            except OSError:
                continue


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
        self._parts: set[DevProcess] = set()
        self._stopped = asyncio.Event()
        self._url = ""

    def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP, and leave nothing behind.

        Raises:
            AlreadyRunning: another `bide dev` has this directory.
            ServerError: the server does not start.
            ServerNotFound: there is none to start.
        """
        linux.become_subreaper()
        home = self._here / HOME
        home.mkdir(exist_ok=True)
        (home / ".gitignore").write_text("*\n")
        try:
            with _alone(home):
                asyncio.run(self._serve(home))
        finally:
            linux.kill_children()

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
    async def _worker(self) -> AsyncIterator[tuple[DevProcess, socket.socket]]:
        path = [str(self._program.root), str(self._here)]
        plan = DevPlan(self._program.module, path, self._url, self._options, self._log)
        ours, theirs = pair()
        with ours:
            with theirs:
                part = await self._start(
                    "the worker",
                    python_command("bide.cli.dev.children:run_worker", str(theirs.fileno())),
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
        if not children.is_installed():
            _say("for a page of what is due: pip install 'bide[web]'")
            return
        with children.listening() as listener:
            number = listener.fileno()
            _say(f"the page is at http://127.0.0.1:{listener.getsockname()[1]}/")
            command = python_command("bide.cli.dev.children:serve_page", str(number))
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

    async def _start(self, name: str, command: Sequence[str], **more: Any) -> DevProcess:
        part = await DevProcess.start(
            name,
            command,
            GRACE,
            environment={"BIDE_URL": self._url, "PYTHONUNBUFFERED": "1"},
            **more,
        )
        self._parts.add(part)
        return part

    async def _end(self, part: DevProcess) -> None:
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
