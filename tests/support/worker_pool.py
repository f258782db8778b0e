"""Workers as they are started in production, `python -m bide worker`: processes to be ill-treated.

A pool ends all of its workers with the test, and then holds that none of them broke down: no
traceback, no warning.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from tests.support import ledger_jobs as jobs
from tests.support.cpu_waits import SERVER, Witness
from tests.support.eventually import PATIENCE, eventually
from tests.support.ledger import Ledger, Line

ROOT = Path(__file__).parents[2]
SKEW = Path(__file__).parent / "skew"
JOBS = "tests.support.ledger_jobs"


_OF_JOBS = re.compile(r"^.* attempt \d+ failed: .*\n(?: .*\n?)*", re.MULTILINE)
"""What a log says of jobs that failed, with their tracebacks."""


class WorkerProcess:
    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def says(self, text: str, within: float = PATIENCE) -> None:
        """Wait until the log has this text."""
        eventually(lambda: text in self.log or self._dead_without(text), within)

    def _dead_without(self, text: str) -> bool:
        assert not self.ended or text in self.log, f"{self.name} ended; its log:\n{self.log}"
        return False

    def freeze(self) -> None:
        """SIGSTOP; returns once all of the process stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns once the process is no more."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def terminate(self) -> None:
        """Ask to stop, as an operator would; does not wait."""
        self.process.terminate()

    def wait(self, within: float = PATIENCE) -> int:
        """Wait for the end; the exit code."""
        return self.process.wait(within)


class WorkerPool:
    """Starts workers, gates their jobs, and reads the ledger that these write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ledger = Ledger(directory / "ledger")
        self.workers: list[WorkerProcess] = []
        self.settings: dict[str, str] = {}
        """More variables of the workers' environment."""
        self.beside: list[Callable[[], Iterable[int]]] = []
        """The processes that workers wait for: servers, and what lies between."""
        self.witness = Witness(self._watched)

    def _watched(self) -> dict[int, str]:
        beside = {pid: f"{SERVER} {pid}" for pids in self.beside for pid in pids()}
        return beside | {w.pid: w.name for w in [*self.workers] if not w.ended}

    def late_us(self, run: Line) -> int:
        """How late a run began, less what its worker and server waited for a processor."""
        return run.token - run.due_us - self.witness.waited_us(run.due_us, run.token)

    def env(self, skew: float | None = None, release: Path | None = None) -> dict[str, str]:
        """The environment of a process of the test's.

        Args:
            skew: by how many seconds its clock errs.
            release: where another release of bide lies, for it to run.
        """
        env = dict(os.environ)
        env |= {jobs.LEDGER: str(self.ledger.path), jobs.GATES: str(self._directory)}
        env |= {"PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1", **self.settings}
        if skew is not None:
            paths = [str(SKEW), *filter(None, [env.get("PYTHONPATH")])]
            env |= {"PYTHONPATH": os.pathsep.join(paths), "BIDE_TEST_SKEW": str(skew)}
        if release is not None:
            env |= {"PYTHONPATH": str(release)}
        return env

    def worker(
        self,
        url: str,
        *options: str,
        skew: float | None = None,
        release: Path | None = None,
        program: str = "bide",
    ) -> WorkerProcess:
        """Start a worker with these options of the command line; it serves `jobs`.

        Args:
            url: the server.
            options: what else stands on the command line.
            skew: by how many seconds its clock errs.
            release: where another release of bide lies, for it to run.
            program: the module to run, one that takes bide's command line.
        """
        name = f"w{len(self.workers) + 1}"
        command = [sys.executable, "-m", program, "worker", JOBS, "-u", url, "--name", name]
        worker = WorkerProcess(
            name, [*command, *options], self.env(skew, release), self._directory / f"{name}.log"
        )
        self.workers.append(worker)
        return worker

    def workers_at_work(self, count: int, url: str, *options: str) -> list[WorkerProcess]:
        """Start several workers, and wait until each has begun to serve."""
        workers = [self.worker(url, *options) for _ in range(count)]
        for worker in workers:
            worker.says(" serves ")
        return workers

    def open_gate(self, name: str) -> None:
        (self._directory / name).touch()

    def by_name(self, name: str) -> WorkerProcess:
        """The worker whose name, or unique name on the server, this is."""
        return next(worker for worker in self.workers if worker.name == name.partition(".")[0])

    def __enter__(self) -> Self:
        self.witness.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.witness.__exit__(*exc)
        for worker in self.workers:
            if not worker.ended:
                worker.kill()
            print(f"--- {worker.name} ({worker.process.returncode})\n{worker.log[-4000:]}")
        for worker in self.workers:
            assert "Traceback" not in _OF_JOBS.sub("", worker.log), f"{worker.name} broke down"
            assert "Warning" not in worker.log, f"{worker.name} was warned"
