"""One peer under measurement: its producer, its workers, and the marks that its jobs leave.

How a worker's throughput is measured, the same for all, bide too:

1. It is started, runs some jobs, and is left alone until it and all its processes are idle.
2. All its processes are stopped (SIGSTOP), and jobs are enqueued.
3. They go on (SIGCONT). Each job marks its time in shared memory (`benchmarks.peers.common`); what
   is counted is the time from the first mark to the last. So neither the start of processes nor
   the producer is in it, nor how long a worker takes to hear of jobs.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.install import install
from benchmarks.lab import ROOT
from benchmarks.places import Place, placed
from benchmarks.processes import Processes
from benchmarks.report import Row

MOST_JOBS = 110_000
WARM_UP = 20
"""Jobs that are run before the measurement; they have the highest numbers."""

LONGEST_S = 30.0
"""Seconds in which a job must run, or a producer answer."""

SETTLED_S = 0.2
"""From when the last job ran until the server has heard of its end."""


class Marks:
    """When each job ran: eight bytes each, in a file that all processes map."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("wb") as file:
            file.truncate(8 * MOST_JOBS)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def clear(self) -> None:
        """Forget all."""
        self._map[:] = bytes(len(self._map))

    def wait(self, first: int, count: int, seconds: float = LONGEST_S) -> None:
        """Wait until some jobs have run.

        Raises:
            RuntimeError: they have not within `seconds`.
        """
        end = time.monotonic() + seconds
        with memoryview(self._map).cast("q") as marks:
            for at in range(first, first + count):
                while not marks[at]:
                    if time.monotonic() > end:
                        ran = sum(map(bool, marks[first : first + count]))
                        raise RuntimeError(f"{ran} of {count} jobs ran within {seconds:g} s")
                    time.sleep(0.01)

    def times(self, first: int, count: int) -> list[int]:
        """When some jobs ran, in nanoseconds of `time.monotonic_ns()`; 0: it did not."""
        with memoryview(self._map).cast("q") as marks:
            return marks[first : first + count].tolist()


class Peer:
    """A peer whose producer is there."""

    def __init__(self, key: str, producer: subprocess.Popen[str], environ: dict[str, str]) -> None:
        self.key = key
        self._producer = producer
        self._environ = environ
        self.about: dict[str, Any] = self._answer(LONGEST_S)
        self.workers: dict[str, dict[str, Any]] = self.about.pop("workers")

    @property
    def pid(self) -> int:
        """The producer's process."""
        return self._producer.pid

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.about["name"])

    @property
    def best(self) -> str:
        """The worker by which everything is measured but throughput."""
        return str(self.about["best"])

    @property
    def punctual(self) -> list[str]:
        """The workers whose lateness is measured."""
        return list(self.about.get("lateness", [self.best]))

    def put(
        self,
        worker: str,
        first: int,
        count: int,
        *,
        at: float | None = None,
        step: float = 0,
        bulk: bool = True,
        seconds: float = LONGEST_S,
    ) -> int:
        """Put jobs where this worker finds them, due at once or each a step after the last.

        Returns when that began, in nanoseconds of the monotonic clock.
        """
        what = {"first": first, "count": count, "at": at, "step": step, "bulk": bulk}
        return int(self._ask("put", seconds, job=self._job(worker), **what))

    def stream(
        self, worker: str, first: int, count: int, rate: float, delay: float, start: float
    ) -> list[int]:
        """Put jobs at random moments (a Poisson process) from one on; when each was due."""
        seconds = start - time.time() + count / rate + LONGEST_S
        what = {"first": first, "count": count, "rate": rate, "delay": delay, "start": start}
        due: list[int] = self._ask("stream", seconds, job=self._job(worker), **what)
        return due

    def time(self, way: str, count: int, delay: float) -> Row | None:
        """Seconds, and those of the processor, to put jobs in some way; None: it has no such."""
        told: Row | None = self._ask("time", LONGEST_S, way=way, count=count, delay=delay)
        return told

    def hold(
        self, first: int, count: int, seconds: float, delay: float = 0, step: float = 0
    ) -> None:
        """Enqueue jobs that take so long, due after a delay, each a step later than the last."""
        what = {"first": first, "count": count, "seconds": seconds, "delay": delay, "step": step}
        self._ask("hold", LONGEST_S, **what)

    def _job(self, worker: str) -> str:
        return str(self.workers[worker].get("job", "job"))

    def _ask(self, do: str, bound: float, /, **what: Any) -> Any:
        assert self._producer.stdin is not None
        try:
            print(json.dumps({"do": do, **what}), file=self._producer.stdin, flush=True)
        except BrokenPipeError:
            raise RuntimeError("its producer has ended") from None
        return self._answer(bound)

    def _answer(self, seconds: float) -> Any:
        """The next line that the producer prints; one that is silent for too long is killed."""
        assert self._producer.stdout is not None
        ready, _, _ = select.select([self._producer.stdout], [], [], seconds)
        if not ready:
            self._producer.kill()
            raise RuntimeError(f"its producer did not answer within {seconds:g} s")
        line = self._producer.stdout.readline()
        if not line:
            raise RuntimeError("its producer failed; set BIDE_BENCH_VERBOSE=1 to see why")
        return json.loads(line)

    @contextmanager
    def working(self, worker: str) -> Iterator[Processes]:
        """Start a worker; it and all it has started are killed in the end."""
        command = list(self.workers[worker]["command"])
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=_chatter(),
            stderr=_chatter(),
            cwd=ROOT,
            env=self._environ,
            start_new_session=True,
        )
        processes = Processes(process.pid)
        try:
            yield processes
        finally:
            processes.kill()
            process.wait()

    @contextmanager
    def warm(self, worker: str, marks: Marks) -> Iterator[Processes]:
        """Start a worker that runs some jobs and becomes idle."""
        with self.working(worker) as processes:
            self.put(worker, MOST_JOBS - WARM_UP, WARM_UP)
            marks.wait(MOST_JOBS - WARM_UP, WARM_UP)
            processes.wait_idle()
            yield processes


@contextmanager
def open_peer(name: str, url: str, marks: Marks, ledger: Path | None = None) -> Iterator[Peer]:
    """Install a peer if need be, and start its producer.

    Raises:
        RuntimeError: it cannot be installed, or does not start.
    """
    installed = install(name)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "BENCH_URL": url,
        "BENCH_MARKS": str(marks.path),
        "BENCH_LEDGER": str(ledger or os.devnull),
        **installed.environ,
    }
    with subprocess.Popen(
        installed.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=_chatter(),
        text=True,
        cwd=ROOT,
        env=environ,
    ) as producer:
        try:
            yield Peer(name, producer, environ)
        finally:
            producer.kill()


def measure(
    peer: Peer,
    worker: str,
    jobs: int,
    marks: Marks,
    client: Any,
    *,
    bulk: bool = True,
    place: Place = "anywhere",
) -> Row:
    """Have a worker run jobs that do nothing; what that took. The server is emptied first.

    Args:
        peer: whose worker it is.
        worker: its name.
        jobs: how many.
        marks: where they leave their times.
        client: of the server.
        bulk: enqueue many at once.
        place: where the server and the producer are while the producer enqueues.
    """
    server = int(client.info("server")["process_id"])
    client.flushall()
    marks.clear()
    with peer.warm(worker, marks) as processes:
        processes.stop()
        empty_s, no_scripts_s = server_s(client), scripts_s(client)
        with placed(place, server, peer.pid):
            peer.put(worker, 0, jobs, bulk=bulk)
        cpu_s, full_s = processes.cpu_s(), server_s(client)
        processes.go_on()
        marks.wait(0, jobs)
        cpu_s = processes.cpu_s() - cpu_s
        time.sleep(SETTLED_S)
        done_s = server_s(client)
    times = marks.times(0, jobs)
    return {
        "jobs/s": jobs / (max(times) - min(times)) * 1e9,
        "CPU µs": cpu_s * 1e6 / jobs,
        "server µs": (done_s - full_s) * 1e6 / jobs,
        "with enqueue": (done_s - empty_s) * 1e6 / jobs,
        "in scripts": (scripts_s(client) - no_scripts_s) * 1e6 / jobs,
    }


def server_s(client: Any) -> float:
    """The processor time that the server has taken so far, in seconds."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def scripts_s(client: Any) -> float:
    """The time that scripts have taken so far, with all that they called, in seconds."""
    stats = client.info("commandstats")
    called = [stats.get(f"cmdstat_{name}", {}) for name in ("eval", "evalsha")]
    return sum(float(one.get("usec", 0)) for one in called) / 1e6


def complain(name: str, error: Exception) -> None:
    """Say that something is left out."""
    print(f"without {name}: {error}", file=sys.stderr)


def _chatter() -> int | None:
    return None if os.environ.get("BIDE_BENCH_VERBOSE") else subprocess.DEVNULL
