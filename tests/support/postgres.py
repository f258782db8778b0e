"""A PostgreSQL server of the tests' own, from Debian's package.

`missing()` says what to install if the package is missing.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg

from tests.support.database import DatabaseServer
from tests.support.opened_connections import OPENED

for _kind in (psycopg.Connection, psycopg.AsyncConnection):
    OPENED.note_each(_kind)

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


class Postgres(DatabaseServer):
    """PostgreSQL, with its first database."""

    prefix = "bide-pg-"
    crash = signal.SIGQUIT

    def __init__(self) -> None:
        programs = bin_dir()
        assert programs is not None, missing()
        self._programs = programs
        super().__init__()
        arguments = ("-D", "data", "-U", "bide", "-A", "trust", "-E", "UTF8", "-N")
        done = subprocess.run(
            [self._programs / "initdb", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
            **self.options(),
        )
        assert done.returncode == 0, done.stdout
        self.start()

    def command(self) -> list[str | Path]:
        return [self._programs / "postgres", "-D", "data", "-k", self.directory, "-h", "", "-F"]

    def answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), self._connect():
            return True
        return False

    def _connect(self) -> Any:
        return psycopg.connect(
            host=str(self.directory), user="bide", dbname="postgres", autocommit=True
        )

    def empty(self) -> None:
        """Remove all tables, and close the connections of others."""
        self.disconnect_clients()
        with self._connect() as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")

    def disconnect_clients(self) -> None:
        """Close the connections of others."""
        with self._connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    def url(self, driver: str = "psycopg", database: str = "postgres") -> str:
        """The address of a database, for SQLAlchemy."""
        return f"postgresql+{driver}://bide@/{database}?host={self.directory}"
