"""A MariaDB server of the tests' own: Debian's package, an unprivileged user, a private socket.

Nothing listens on a port. Where the package is missing, `missing()` says what to install.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import pymysql

from tests.support.postgres import _ends_with_parent


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


class MariaDB:
    """A server with a database directory of its own; a context that stops it and removes both."""

    def __init__(self) -> None:
        assert not missing(), missing()
        self.directory = Path(tempfile.mkdtemp(prefix="bide-mariadb-"))
        (self.directory / "data").mkdir()
        self._user: int | None = None
        if os.geteuid() == 0:  # MariaDB refuses root
            nobody = pwd.getpwnam("nobody")
            self._user = nobody.pw_uid
            for path in (self.directory, self.directory / "data"):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        self.start()
        self.empty()

    @property
    def _socket(self) -> str:
        return str(self.directory / "socket")

    def _connect(self, **options: Any) -> Any:
        return pymysql.connect(unix_socket=self._socket, user="bide", autocommit=True, **options)

    def start(self) -> None:
        """Start the server, and return when it answers."""
        options = (
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            f"--socket={self._socket}",
            f"--pid-file={self.directory / 'pid'}",
            "--skip-networking",
            "--skip-grant-tables",  # so that no system tables are needed
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-log-file-size=10M",
            "--innodb-buffer-pool-size=32M",
            "--character-set-server=utf8mb4",
        )
        log = (self.directory / "log").open("a")
        self._server = subprocess.Popen(
            [program() or "mariadbd", *options],
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
            # Not with the driver, which leaves its socket open if it cannot connect.
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self._socket)
                return
            assert time.monotonic() < until, (self.directory / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server at once, as a crash would."""
        self._server.send_signal(signal.SIGKILL)
        self._server.wait(60)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
