"""`bide dev`: a server that keeps its data, and workers that restart when the source changes.

    dev ──starts──> server     keeps its data in `.bide/`, ends with dev
        ──line────> worker     restarted when a source changes; for several workers, a supervisor
        ──starts──> command    the dashboard, and the COMMAND of the command line

Each of these processes leads a session of its own, so Ctrl-C reaches only `dev`, which stops them
in order. If `dev` is killed, the pipe to each process (the line), or to its watcher, closes, and
the process ends.

The worker receives its configuration over the line, and reports there whether an error in the
source has ended it. `dev` itself binds the dashboard's address, so that the address is known and in
use before the dashboard has started.

`Sources` polls the modification time of each file. This takes at most a twentieth of one processor,
whatever the size of the tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import importlib.util
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from bide import logs
from bide.cli.options import (
    import_from_here,
    mask_of,
    option,
    queues_option,
    served_modules,
    worker_options,
)
from bide.client.config import LOG_FORMATS, settings
from bide.embedded import Server
from bide.errors import BideError, UsageError
from bide.logs import printable
from bide.model.ids import Program, program_of
from bide.worker import Worker
from bide.worker.executors import EXECUTORS
from bide.worker.lifespan import leave_threads_behind
from bide.worker.outcome import from_application
from bide.worker.processes import linux
from bide.worker.processes.ipc import Reader, send
from bide.worker.processes.linux import python_command, signal_name
from bide.worker.processes.pool import Control
from bide.worker.relay import OutboxLike, load_outbox, outbox_beside
from bide.worker.supervisor import (
    Supervisor,
    WorkerConfig,
    WorkerEvent,
    WorkerGone,
    decode_worker_event,
    encode,
    report,
)


class DevConfig(msgspec.Struct, frozen=True):
    """The configuration of the workers of `bide dev`."""

    workers: list[dict[str, Any]]
    """The arguments of the `bide.Worker` of each."""
    log: logs.Settings
    path: list[str]
    """The first directories in which modules are looked up."""
    outbox: str | None = None
    """The outbox whose rows the first worker also sends, as `module:name`."""


def run_worker() -> None:
    """Run a worker, or a supervisor of several: the program that `dev` starts.

    If an error in the source ends it, it shows the error, and reports that a restart would not
    help.
    """
    line = socket.socket(fileno=int(sys.argv[-1]))
    line.setblocking(True)
    line.set_inheritable(False)
    message = Reader(line).read()
    if message is None:
        return
    config = msgspec.json.decode(message, type=DevConfig)
    logs.setup(*config.log)
    sys.path[:0] = [place for place in config.path if place not in sys.path]
    code = 0
    try:
        for options in config.workers:
            for module in options["modules"]:
                importlib.import_module(module)
        relay = None if config.outbox is None else outbox_beside(config.outbox, burst=False)
        if len(config.workers) > 1:
            configs = [WorkerConfig(options, False, config.log) for options in config.workers]
            configs[0] = msgspec.structs.replace(configs[0], outbox=config.outbox)
            code = Supervisor(configs, GRACE).run()
        else:
            worker = Worker(**config.workers[0])

            async def beside() -> None:
                await asyncio.gather(report(worker, line), *([] if relay is None else [relay()]))

            worker.run(beside=beside)
    except BaseException as error:
        told = [f"Error: {error}"]
        if not isinstance(error, BideError):  # show the application's part of it
            trace = from_application(error.__traceback__)
            told = "".join(traceback.format_exception(type(error), error, trace)).splitlines()
        sys.stderr.writelines(f"{printable(text)}\n" for text in told)
        code = 1
    if code:
        with contextlib.suppress(OSError):
            send(line, encode(WorkerGone("unusable")))
        sys.exit(code)
    leave_threads_behind()


PORT: Final = 8484
"""The port of the dashboard, unless another program uses it."""

_NEEDS: Final = ("jinja2", "starlette", "uvicorn")


def serve_page() -> None:
    """Run the dashboard: the program that `dev` starts.

    Requests from this machine have the role of operators. The arguments are the outbox, if there is
    one, the first directories in which modules are looked up, and the number of the socket.
    """
    from bide.web import app
    from bide.web.application import serve

    outbox, path, number = sys.argv[-3:]
    sys.path[:0] = [place for place in path.splitlines() if place not in sys.path]
    shown: dict[str, OutboxLike] = {}
    if outbox:
        try:
            shown[outbox] = load_outbox(outbox)
        except Exception as error:  # any error of the application; the worker shows its traceback
            _say(
                f"the dashboard shows no rows of {outbox} ({printable(str(error))}); restart "
                "`bide dev` when that is repaired"
            )
    url, listener = os.environ["BIDE_URL"], socket.socket(fileno=int(number))
    serve(app(url=url, local_role="operator", mask=mask_of(None), outboxes=shown), listener)


_LOOK_EVERY: Final = 0.01
SPARE: Final = 3.0
"""Seconds after its grace until a process that has not ended is killed."""

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

    def __init__(self, process: subprocess.Popen[bytes], grace: float) -> None:
        self._process = process
        self._patience = grace + SPARE
        self._watcher: subprocess.Popen[bytes] | None = None
        self._hurries = 0

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        grace: float,
        *,
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        stdout: int | None = None,
    ) -> DevProcess:
        """Start a program; raise OSError if it does not exist."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            start_new_session=True,
            env={**os.environ, **environment},
            pass_fds=pass_fds,
        )
        return cls(process, grace)

    async def ended(self) -> int:
        """Wait for its end; return the exit code, or the negative number of the signal."""
        while (code := self._process.poll()) is None:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_LOOK_EVERY)
        return code

    def watch(self) -> None:
        """End it if this process is killed; for programs without a line."""
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(self._process.pid), str(ceil(self._patience))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def hurry(self) -> None:
        """Ask it to end; the second call does not wait for jobs, the third kills it."""
        self._hurries += 1
        if self._hurries > 2:
            linux.kill_session(self._process.pid)
        else:
            self._process.terminate()

    async def end(self) -> None:
        """End it, and all processes that it has started."""
        if not self._hurries:
            self.hurry()
        try:
            async with asyncio.timeout(self._patience):
                await self.ended()
        except TimeoutError:
            linux.kill_session(self._process.pid)
            await self.ended()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None


def find_program(text: str, here: Path) -> Program:
    """Return the module of `app.py`, `shop/tasks.py` or `shop.tasks`.

    A file of a package is imported as one: from the directory above the topmost `__init__.py`.
    """
    is_path = text.endswith(".py") or "/" in text
    if not is_path and all(part.isidentifier() for part in text.split(".")):
        return Program(text, str(here))
    file = here / text
    if not file.exists():
        raise UsageError(
            f"There is no file {text!r} here; give one such as app.py, or a module such as "
            "shop.tasks."
        )
    if file.is_dir() and not (file / "__init__.py").exists():
        raise UsageError(f"{text!r} is a directory; name the file in it that has your tasks.")
    if file.is_file() and file.suffix != ".py":
        raise UsageError(f"{text!r} is not a Python file; name the one that has your tasks.")
    program = program_of(str(file / "__init__.py" if file.is_dir() else file))
    for name in program.module.split("."):
        if not name.isidentifier():
            raise UsageError(
                f"{text!r} cannot be imported, because {name!r} is not a valid module name; rename "
                f"it, for instance to {name.replace('-', '_')!r}."
            )
    return program


LOOK_EVERY: Final = 0.25
"""Minimum seconds between two polls."""

_SHARE: Final = 20
"""The pause after a poll, as a multiple of the poll's duration."""

_SETTLED: Final = 0.05
"""Seconds without another change after which the worker is restarted: a checkout writes many
files."""

_NEVER: Final = frozenset({"node_modules", "__pycache__", "site-packages"})

_Stamp = tuple[int, int]


class Sources:
    """The Python files below some directories, and each directory's pyproject.toml.

    Hidden directories, virtual environments (`pyvenv.cfg`) and installed packages are left out.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        """Read the modification times for the first time."""
        wanted = list(dict.fromkeys(roots))
        self._roots = [root for root in wanted if not {*wanted} & {*root.parents}]
        self._pause = LOOK_EVERY
        self._seen = self._look()

    async def changed(self) -> list[str]:
        """Wait until files were changed, added or removed; return their paths, sorted."""
        names: set[str] = set()
        while True:
            await asyncio.sleep(_SETTLED if names else self._pause)
            more = self.changes()
            if names and not more:
                return sorted(names)
            names |= more

    def changes(self) -> set[str]:
        """Return the paths that have changed since the last poll."""
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
        except OSError:  # it was just removed, or we have no permission to read it
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
"""The server's data directory, inside the working directory."""

GRACE: Final = 3.0
"""Seconds that running jobs have when the worker is restarted; then they are released."""

_AGAIN: Final = 1.0
"""Seconds until a worker that died is restarted."""

_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Dev:
    """A server, workers, the dashboard, and a command of yours, until a signal."""

    root: Path
    """The directory from which modules are imported."""
    workers: Sequence[dict[str, Any]]
    """The arguments of the `bide.Worker` of each."""
    log: logs.Settings
    """Format and level of its logs."""
    command: Sequence[str] = ()
    """A program to run beside the workers, with the server's URL in $BIDE_URL."""
    outbox: str | None = None
    """The outbox whose rows a worker also sends, as `module:name`."""

    def __post_init__(self) -> None:
        self._here = Path.cwd()
        self._path = [str(self.root), str(self._here)]
        self._parts: set[DevProcess] = set()
        self._stopped = asyncio.Event()
        self._url = ""
        self._last_report: WorkerEvent | None = None

    def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP, and end all processes."""
        linux.become_subreaper()
        home = self._here / HOME
        if home.exists() and not home.is_dir():
            raise UsageError(
                f"{home} is a file, and `bide dev` needs a directory of this name; remove the file."
            )
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
            self._environment = {"BIDE_URL": server.url, "PYTHONUNBUFFERED": "1"}
            _say(
                f"{server.flavour.capitalize()} {server.version}, embedded: not for production; "
                f"its data stays in {HOME}/"
            )
            _say(f"for other programs: export BIDE_URL={shlex.quote(server.url)}")
            duties = [
                asyncio.create_task(self._keep_worker()),
                asyncio.create_task(self._run_page()),
            ]
            if self.command:
                beside = self._run_beside(self.command[0], self.command)
                duties.append(asyncio.create_task(beside))
            try:
                await asyncio.gather(*duties)
            finally:
                for duty in duties:
                    duty.cancel()
                await asyncio.gather(*duties, return_exceptions=True)
        with contextlib.suppress(OSError):  # a killed server leaves it behind
            (home / "server.sock").unlink()
        _say("everything has stopped")

    def _stop(self) -> None:
        if not self._stopped.is_set():
            _say(
                f"stopping; running jobs have {GRACE:g} s to finish, and another Ctrl-C returns "
                "them to the queue"
            )
        self._stopped.set()
        for part in self._parts:
            part.hurry()

    async def _keep_worker(self) -> None:
        workers = [{"url": self._url, "grace": GRACE, **options} for options in self.workers]
        config = DevConfig(workers, self.log, self._path, self.outbox)
        while not self._stopped.is_set():
            sources = Sources([self._here, self.root])
            self._last_report = None
            control = Control(
                "bide.cli.dev:run_worker",
                msgspec.json.encode(config),
                [],
                self._on_report,
                lambda: None,
                **self._environment,
            )
            part = DevProcess(control.process, GRACE)
            if len(workers) > 1:  # a supervisor does not use its line
                part.watch()
            self._parts.add(part)
            changed = asyncio.create_task(sources.changed())
            ended = asyncio.create_task(part.ended())
            stopped = asyncio.create_task(self._stopped.wait())
            try:
                await asyncio.wait([changed, ended, stopped], return_when="FIRST_COMPLETED")
                if not changed.done() and not stopped.done():
                    control.read()
                    is_mistaken = self._last_report == WorkerGone("unusable")
                    await self._wait_to_replace(ended.result(), is_mistaken, changed, stopped)
                if changed.done() and not stopped.done():
                    told = _told(changed.result(), self._here)
                    _say(f"{told} changed; the worker restarts")
            finally:
                for waiting in (changed, ended, stopped):
                    waiting.cancel()
                await self._end(part)
                control.close()

    def _on_report(self, message: bytes | memoryview) -> None:
        self._last_report = decode_worker_event(message)

    async def _wait_to_replace(
        self, code: int, is_mistaken: bool, *until: asyncio.Task[Any]
    ) -> None:
        """Handle the end of a worker: restart it, or after an error in the source wait."""
        if is_mistaken:
            _say("no worker runs until you save a source file")
        else:
            _say(f"the worker ended ({_how(code)}); it restarts")
        pause = None if is_mistaken else _AGAIN
        await asyncio.wait(until, timeout=pause, return_when="FIRST_COMPLETED")

    async def _run_page(self) -> None:
        if not all(importlib.util.find_spec(name) for name in _NEEDS):
            _say("to get the dashboard: pip install 'bide[web]'")
            return
        try:
            listener = socket.create_server(("127.0.0.1", PORT))
        except OSError:  # another program uses the port
            listener = socket.create_server(("127.0.0.1", 0))
        with listener:
            number = listener.fileno()
            _say(f"the dashboard is at http://127.0.0.1:{listener.getsockname()[1]}/")
            arguments = (self.outbox or "", "\n".join(self._path), str(number))
            command = python_command("bide.cli.dev:serve_page", *arguments)
            await self._run_beside("the dashboard", command, pass_fds=[number])

    async def _run_beside(
        self, name: str, command: Sequence[str], pass_fds: Sequence[int] = ()
    ) -> None:
        """Run a program beside the worker, until it or `dev` ends."""
        try:
            part = DevProcess.start(
                command, GRACE, environment=self._environment, pass_fds=pass_fds
            )
        except OSError as error:
            _say(f"{name} cannot be started ({error.strerror}); the worker continues without it")
            return
        self._parts.add(part)
        part.watch()
        stopped = asyncio.create_task(self._stopped.wait())
        ended = asyncio.create_task(part.ended())
        try:
            await asyncio.wait([ended, stopped], return_when="FIRST_COMPLETED")
            if ended.done() and not stopped.done():
                _say(f"{name} ended ({_how(ended.result())}); the worker continues")
        finally:
            stopped.cancel()
            ended.cancel()
            await self._end(part)

    async def _end(self, part: DevProcess) -> None:
        await part.end()
        self._parts.discard(part)


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Lock the directory, unless another `bide dev` holds the lock; the file has its process id."""
    number = os.open(home / "dev.lock", os.O_RDWR | os.O_CREAT, 0o600)
    with open(number, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = file.read().strip()
            raise BideError(
                f"Another `bide dev` runs in this directory (process {who or 'unknown'}); stop it "
                "with Ctrl-C in its terminal, or start this one in another directory."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _told(paths: Sequence[str], here: Path) -> str:
    first = os.path.relpath(paths[0], here)
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal_name(-code)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"bide dev: {text}\n")
        sys.stderr.flush()


class _BesideCommand(click.Command):
    """A command that takes another program after `--`, even without arguments before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Separate the other program from the arguments."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_BESIDE] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


_BESIDE: Final = "bide.cli.dev.beside"


@click.command(cls=_BesideCommand)
@click.argument("app", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@queues_option("Queue to serve; repeat for more.  [default: the queues of APP]")
@option("-c --concurrency", "N", "Maximum number of jobs that run at once.")
@option("-x --executor", "", "Executor, as for `bide worker`.", type=click.Choice(EXECUTORS))
@option("--outbox", "OUTBOX", "Outbox whose rows are sent and shown too: shop.db:outbox.")
@option("--log-format", "", "Log format, as for `bide worker`.", type=click.Choice(LOG_FORMATS))
@click.pass_context
def dev(
    ctx: click.Context,
    app: str | None,
    command: tuple[str, ...],
    queues: tuple[str, ...],
    concurrency: int | None,
    executor: str | None,
    outbox: str | None,
    log_format: str | None,
) -> None:
    """Run APP's jobs while you write it, on a server of its own.

    APP is a file such as app.py, or a module such as shop.tasks; by default, the modules of
    [tool.bide.worker] in pyproject.toml. The server (embedded: not for production) keeps its data
    in .bide/, until you remove that directory. The worker restarts when a source file changes. If a
    source file has a mistake, the command shows it, and runs no worker until you save the file
    again. If pyproject.toml has profiles, a worker of each runs, unless you give -q. If `bide[web]`
    is installed, the dashboard is served to this machine. Ctrl-C stops everything.

    COMMAND runs beside them, and finds the server in $BIDE_URL: your web server, for instance.
    """
    import_from_here()
    told = settings()
    mask_of(None)  # the dashboard's: raises before anything starts
    program = find_program(app, Path.cwd()) if app else None
    given = (program.module,) if program else ()
    profiles = {} if queues else told.workers
    workers = []
    for name, its in (profiles or {"": told.worker}).items():
        modules = served_modules(given, its)
        if not modules:
            raise UsageError(
                "No APP is given: name the file with your tasks, as in `bide dev app.py`, or set "
                f"modules in [tool.bide.worker{f's.{name}' if name else ''}] of pyproject.toml."
            )
        more = {"strategy": None, "concurrency": concurrency, "executor": executor}
        workers.append(worker_options(queues, its, modules=modules, name=name or None, **more))
    log = (log_format or told.log_format, logging.DEBUG)
    root = Path(program.root) if program else Path.cwd()
    Dev(root, workers, log, (*command, *ctx.meta[_BESIDE]), outbox).run()
