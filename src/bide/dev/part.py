"""A process that `dev` has started: it ends when told to, and takes along what it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

from bide.worker.processes import kin

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


class Part:
    """A process in a session of its own."""

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
    ) -> Part:
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
            kin.kill_session(self._process.pid)
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
            kin.kill_session(self._process.pid)
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
