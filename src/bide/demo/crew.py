"""The workers: processes of their own, started through the command line as anyone would.

They run in sessions of their own, so that Ctrl-C in a terminal reaches the demo alone, which then
ends them. Should the demo be killed, they see the end of their standard input and follow it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from bide.demo import tasks
from bide.demo.journal import Killed, now_us
from bide.errors import BideError

QUEUE: Final = "orders"
LEASE: Final = 2.0
"""Seconds for which a job is held; short, so that the killed worker's jobs are due again soon."""

START_TIMEOUT: Final = 120.0
STOP_TIMEOUT: Final = 5.0


class CrewError(BideError):
    """The workers did not start, or one ended by itself; the message ends with its last words."""


class Crew:
    """Some worker processes."""

    def __init__(self, url: str, count: int, journal: Path, logs: Path) -> None:
        """Start them; `ready` waits until they serve.

        Args:
            url: the server.
            count: how many.
            journal: where their jobs write.
            logs: the directory for what they say.
        """
        self._url = url
        self._env = {k: v for k, v in os.environ.items() if k not in ("BIDE_URL", "BIDE_PREFIX")}
        self._env[tasks.JOURNAL] = str(journal.absolute())
        self._logs: dict[int, Path] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._killed: set[int] = set()
        try:
            for number in range(1, count + 1):
                self._start(logs / f"worker-{number}.log")
        except BaseException:
            self.kill_all()
            raise

    @property
    def pids(self) -> list[int]:
        """Their process ids, also of those that have been killed."""
        return list(self._processes)

    def ready(self) -> None:
        """Wait until all of them are seen by `bide info`.

        Raises:
            CrewError: they do not come.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while not set(self.pids) <= self._seen():
            self.check()
            if time.monotonic() > deadline:
                raise CrewError(
                    f"The workers were not ready within {START_TIMEOUT:g} s; this machine is "
                    "very busy: try again."
                )

    def check(self) -> None:
        """See that all those run that should.

        Raises:
            CrewError: one has ended by itself.
        """
        for pid, process in self._processes.items():
            if pid not in self._killed and process.poll() is not None:
                said = self._logs[pid].read_text(errors="replace").splitlines()[-8:]
                raise CrewError(
                    "\n    ".join(
                        [f"Worker {pid} ended by itself (code {process.returncode}):", *said]
                    )
                )

    def kill(self, pid: int) -> Killed:
        """Kill one (SIGKILL) and wait for its end."""
        self._killed.add(pid)
        at_us = now_us()
        self._processes[pid].kill()
        self._processes[pid].wait()
        return Killed(pid, at_us, now_us())

    def stop(self) -> None:
        """Ask all to stop, and wait until they have."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill_all(self) -> None:
        """End all at once."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def _start(self, log: Path) -> None:
        options = ["-u", self._url, "-q", QUEUE, "--lease", f"{LEASE:g}s"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "bide", "worker", "bide.demo.tasks", *options],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=self._env,
                start_new_session=True,
            )
        self._processes[process.pid] = process
        self._logs[process.pid] = log

    def _seen(self) -> set[int]:
        info = [sys.executable, "-m", "bide", "info", "--json", "-u", self._url]
        told = subprocess.run(info, capture_output=True, text=True, env=self._env)
        if told.returncode != 0:
            raise CrewError(f"`bide info` failed: {told.stderr.strip()}")
        return {worker["pid"] for worker in json.loads(told.stdout)["workers"]}
