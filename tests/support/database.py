"""A database server of the tests' own: an unprivileged user, a directory, a private socket.

Nothing listens on a port.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self


def _ends_with_parent() -> None:
    """Have Linux stop the server if this process dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


class DatabaseServer:
    """A server with a directory of its own; a context that stops it and removes both."""

    prefix: ClassVar[str]
    crash: ClassVar[signal.Signals]
    """Ends the server at once."""

    def __init__(self, *folders: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=self.prefix))
        self._user: int | None = None
        paths = [self.directory, *(self.directory / name for name in folders)]
        for path in paths[1:]:
            path.mkdir()
        if os.geteuid() == 0:  # database servers refuse root
            nobody = pwd.getpwnam("nobody")
            self._user = nobody.pw_uid
            for path in paths:
                os.chown(path, nobody.pw_uid, nobody.pw_gid)

    def command(self) -> Sequence[str | Path]:
        """The command that runs the server."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether the server takes connections."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Keyword arguments with which every process of the server starts."""
        return {
            "cwd": self.directory,
            "user": self._user,
            "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
            "stdin": subprocess.DEVNULL,
        }

    def start(self) -> None:
        """Start the server, and return when it answers."""
        with (self.directory / "log").open("a") as log:
            self._server = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                preexec_fn=_ends_with_parent,
                **self.options(),
            )
        until = time.monotonic() + 60
        while not self.answers():
            assert self._server.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < until, (self.directory / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server at once, as a crash would."""
        self._server.send_signal(self.crash)
        self._server.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
