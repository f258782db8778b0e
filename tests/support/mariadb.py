"""A MariaDB server of the tests' own, from Debian's package.

`missing()` says what to install if the package is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from typing import Any

import pymysql

from tests.support.database import DatabaseServer


def program() -> str | None:
    """Where `mariadbd` is."""
    return shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def missing() -> str:
    """Why there is no MariaDB; empty if there is one."""
    if program() is None:
        return (
            "MariaDB is not installed; on Debian and Ubuntu: sudo apt install mariadb-server-core"
        )
    return ""


class MariaDB(DatabaseServer):
    """MariaDB, with one database."""

    prefix = "bide-mariadb-"
    crash = signal.SIGKILL

    def __init__(self) -> None:
        assert not missing(), missing()
        super().__init__("data")
        self.start()
        self.empty()

    @property
    def _socket(self) -> str:
        return str(self.directory / "socket")

    def _connect(self, **options: Any) -> Any:
        return pymysql.connect(unix_socket=self._socket, user="bide", autocommit=True, **options)

    def command(self) -> list[str]:
        return [
            program() or "mariadbd",
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            f"--socket={self._socket}",
            f"--pid-file={self.directory / 'pid'}",
            f"--tmpdir={self.directory}",  # a server that starts empties it of temporary tables
            "--skip-networking",
            "--skip-grant-tables",  # so that no system tables are needed
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-log-file-size=10M",
            "--innodb-buffer-pool-size=32M",
            "--character-set-server=utf8mb4",
        ]

    def answers(self) -> bool:
        # Not with the driver, which leaves its socket open if it cannot connect.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(self._socket)
            return True
        return False

    def empty(self) -> None:
        """Remove all tables, and close the connections of others."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = 'bide'")
            for (number,) in cursor.fetchall():
                if number != connection.thread_id():
                    with contextlib.suppress(pymysql.Error):  # it has ended
                        cursor.execute(f"KILL {number}")
            cursor.execute("DROP DATABASE IF EXISTS bide")
            cursor.execute("CREATE DATABASE bide")

    def url(self, driver: str = "pymysql") -> str:
        """The address of the database, for SQLAlchemy."""
        return f"mariadb+{driver}://bide@/bide?unix_socket={self._socket}"
