"""A PostgreSQL server of the tests' own: Debian's package, an unprivileged user, a private socket.

Nothing listens on a port. Where the package is missing, `missing()` says what to install.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psycopg

_PLACES = Path("/usr/lib/postgresql")


def bin_dir() -> Path | None:
    """Where `initdb` and `postgres` are: of the newest version that is installed."""
    versions = sorted(_PLACES.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def missing() -> str:
    """Why there is no PostgreSQL; empty if there is one."""
    if bin_dir() is None:
        return "PostgreSQL is not installed; on Debian and Ubuntu: sudo apt install postgresql"
    return ""


def _ends_with_parent() -> None:
    """Have Linux stop the server if this process dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


class Postgres:
    """A server with a database directory of its own; a context that stops it and removes both."""

    def __init__(self) -> None:
        programs = bin_dir()
        assert programs is not None, missing()
        self._programs = programs
        self.directory = Path(tempfile.mkdtemp(prefix="bide-pg-"))
        self._user: int | None = None
        if os.geteuid() == 0:  # PostgreSQL refuses root
            nobody = pwd.getpwnam("nobody")
            self._user = nobody.pw_uid
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
        self._run("initdb", "-D", "data", "-U", "bide", "-A", "trust", "-E", "UTF8", "-N")
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self.directory,
            user=self._user,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout

    def start(self) -> None:
        """Start the server, and return when it answers."""
        log = (self.directory / "log").open("a")
        self._server = subprocess.Popen(
            [self._programs / "postgres", "-D", "data", "-k", self.directory, "-h", "", "-F"],
            cwd=self.directory,
            user=self._user,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            preexec_fn=_ends_with_parent,
        )
        log.close()
        until = time.monotonic() + 60
        while True:
            assert self._server.poll() is None, (self.directory / "log").read_text()
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(host=str(self.directory), user="bide", dbname="postgres"),
            ):
                return
            assert time.monotonic() < until, (self.directory / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server at once, as a crash would."""
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait(60)

    def empty(self) -> None:
        """Remove all tables, and close the connections of others."""
        with psycopg.connect(
            host=str(self.directory), user="bide", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")

    def url(self, driver: str = "psycopg", database: str = "postgres") -> str:
        """The address of a database, for SQLAlchemy."""
        return f"postgresql+{driver}://bide@/{database}?host={self.directory}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
