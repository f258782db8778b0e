"""One peer under measurement: its environment, its producer, its workers.

How a worker is measured, the same for all, bide too:

1. It is started, runs some jobs, and is left alone until it and all its processes are idle.
2. All its processes are stopped (SIGSTOP), and jobs are enqueued.
3. They go on (SIGCONT). Each job marks its time in shared memory (`benchmarks.peers.common`); what
   is counted is the time from the first mark to the last. So neither the start of processes nor
   the producer is in it, nor how long a worker takes to hear of jobs.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.lab import ROOT
from benchmarks.report import Row

PEERS = ROOT / "benchmarks" / "peers"
ENVIRONMENTS = ROOT / "build" / "peers"
MOST_JOBS = 100_000
WARM_UP = 20
"""Jobs that are run before the measurement; they have the highest numbers."""

LONGEST_S = 30.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_METADATA = re.compile(r"^# /// script\n(.*?)^# ///$", re.MULTILINE | re.DOTALL)


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

    def wait(self, first: int, count: int, what: str) -> None:
        """Wait until some jobs have run.

        Raises:
            RuntimeError: they have not within half a minute.
        """
        end = time.monotonic() + LONGEST_S
        with memoryview(self._map).cast("q") as marks:
            for at in range(first, first + count):
                while not marks[at]:
                    if time.monotonic() > end:
                        raise RuntimeError(f"{what}: job {at - first} of {count} did not run")
                    time.sleep(0.01)

    def times(self, first: int, count: int) -> list[int]:
        """When some jobs ran, in nanoseconds of `time.monotonic_ns()`."""
        with memoryview(self._map).cast("q") as marks:
            return marks[first : first + count].tolist()

    def seconds(self, first: int, count: int) -> float:
        """From the first to the last of them."""
        times = self.times(first, count)
        return (max(times) - min(times)) / 1e9


class Peer:
    """A peer whose producer is there."""

    def __init__(self, name: str, producer: subprocess.Popen[str], environ: dict[str, str]) -> None:
        self.name = name
        self._producer = producer
        self._environ = environ
        self.about: dict[str, Any] = self._answer()
        self.workers: dict[str, dict[str, Any]] = self.about.pop("workers")

    def enqueue(self, worker: str, first: int, count: int) -> None:
        """Put jobs where this worker finds them."""
        assert self._producer.stdin is not None
        print(json.dumps([worker, first, count]), file=self._producer.stdin, flush=True)
        self._answer()

    def hold(
        self, first: int, count: int, seconds: float, delay: float = 0, step: float = 0
    ) -> None:
        """Enqueue jobs that take so long, due after a delay, each a step later than the last."""
        assert self._producer.stdin is not None
        told = json.dumps([None, first, count, seconds, delay, step])
        print(told, file=self._producer.stdin, flush=True)
        self._answer()

    def _answer(self) -> Any:
        assert self._producer.stdout is not None
        line = self._producer.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} cannot enqueue; set BIDE_BENCH_VERBOSE=1 to see why")
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
def open_peer(name: str, url: str, marks: Marks, ledger: Path | None = None) -> Iterator[Peer]:
    """Install a peer if need be, and start its producer.

    Raises:
        RuntimeError: it cannot be installed, or does not start.
    """
    if (PEERS / f"{name}.mjs").exists():
        modules = install_node(name)
        command = ["node", str(PEERS / f"{name}.mjs")]
        path = ""
    else:
        python, modules = install(name), Path()
        command = [str(python), "-m", "benchmarks.peers.common", name]
        path = f"{python.parent}{os.pathsep}"
    environ = {
        **os.environ,
        "PATH": f"{path}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "BENCH_URL": url,
        "BENCH_MARKS": str(marks.path),
        "BENCH_LEDGER": str(ledger or os.devnull),
        "BENCH_MODULES": str(modules),
    }
    with subprocess.Popen(
        command,
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


def install(name: str) -> Path:
    """The Python of the environment that a peer's file asks for; ours, if it asks for none.

    Raises:
        RuntimeError: it cannot be made.
    """
    metadata = _METADATA.search((PEERS / f"{name}.py").read_text())
    if metadata is None:
        return Path(sys.executable)
    wanted = tomllib.loads(re.sub(r"^# ?", "", metadata[1], flags=re.MULTILINE))["dependencies"]
    directory = ENVIRONMENTS / name
    python, stamp = directory / "bin" / "python", directory / "made"
    made = hashlib.sha256(repr((sys.version, str(directory), wanted)).encode()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == made):
        print(f"installing {', '.join(wanted)} in {directory.relative_to(ROOT)}", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "install"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", "--without-pip", str(directory)],
            [*pip, "--disable-pip-version-check", *wanted],
        ):
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{name} cannot be installed: {done.stderr.strip()}")
        stamp.write_text(made)
    return python


def install_node(name: str) -> Path:
    """Where the packages are that a peer's file in JavaScript asks for in its first line.

    Raises:
        RuntimeError: they cannot be installed.
    """
    with (PEERS / f"{name}.mjs").open() as file:
        wanted = file.readline().removeprefix("// npm:").split()
    directory = ENVIRONMENTS / name
    stamp = directory / "made"
    if not (stamp.exists() and stamp.read_text() == repr(wanted)):
        print(f"installing {', '.join(wanted)} in {directory.relative_to(ROOT)}", file=sys.stderr)
        directory.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--silent", "--no-audit", "--prefix", str(directory), *wanted]
        try:
            done = subprocess.run(npm, stderr=subprocess.PIPE, text=True, check=False)
        except FileNotFoundError:
            raise RuntimeError(f"{name} cannot be installed: there is no npm") from None
        if done.returncode:
            raise RuntimeError(f"{name} cannot be installed: {done.stderr.strip()}")
        stamp.write_text(repr(wanted))
    return directory


class Processes:
    """A process and all that have come of it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def find(self) -> list[int]:
        """The ids of those that live."""
        return [pid for pid, _ in self._stats()]

    def stop(self) -> None:
        """Have all of them stand still; those, too, that they make meanwhile."""
        stopped: set[int] = set()
        while found := set(self.find()) - stopped:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= found

    def go_on(self) -> None:
        """Have all of them go on."""
        for pid in self.find():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Signal the one that was started."""
        os.kill(self._pid, number)

    def wait_end(self, seconds: float) -> None:
        """Wait until all have ended, at most so long."""
        end = time.monotonic() + seconds
        while any(map(_is_alive, self.find())) and time.monotonic() < end:
            time.sleep(0.05)

    def kill(self) -> None:
        """End all of them; none gets to make another, and no connection of theirs is left."""
        self.stop()
        pids = self.find()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(_is_alive(pid) for pid in pids):
            time.sleep(0.005)

    def cpu_s(self) -> float:
        """The processor time of all of them, and of those among them that have ended."""
        return sum(sum(map(int, stat[11:15])) for _, stat in self._stats()) * _TICK_S

    def wait_idle(self) -> None:
        """Wait until they have done next to nothing for a third of a second.

        Raises:
            RuntimeError: there is no end to it.
        """
        end, before = time.monotonic() + LONGEST_S, -1.0
        while True:
            now, busy = self.cpu_s(), any(stat[0] in "RD" for _, stat in self._stats())
            if not busy and now - before <= 3 * _TICK_S:
                return
            if time.monotonic() > end:
                raise RuntimeError("a worker that has no jobs does not become idle")
            before = now
            time.sleep(0.33)

    def _stats(self) -> list[tuple[int, list[str]]]:
        """Each process and what is said of it."""
        stats: dict[int, list[str]] = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal():
                with suppress(OSError):
                    stats[int(entry.name)] = _stat(int(entry.name))
        ours = [self._pid] if self._pid in stats else []
        for pid in ours:
            ours += [child for child, stat in stats.items() if int(stat[1]) == pid]
        return [(pid, stats[pid]) for pid in ours]


def _stat(pid: int) -> list[str]:
    """What /proc/PID/stat says, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _is_alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def measure(peer: Peer, worker: str, jobs: int, marks: Marks, client: Any) -> Row:
    """Have a worker run jobs that do nothing; what that took. The server is emptied first."""
    client.flushall()
    marks.clear()
    with peer.working(worker) as processes:
        peer.enqueue(worker, MOST_JOBS - WARM_UP, WARM_UP)
        marks.wait(MOST_JOBS - WARM_UP, WARM_UP, worker)
        processes.wait_idle()
        processes.stop()
        peer.enqueue(worker, 0, jobs)
        cpu_s, server_s = processes.cpu_s(), _server_s(client)
        processes.go_on()
        marks.wait(0, jobs, worker)
        cpu_s, server_s = processes.cpu_s() - cpu_s, _server_s(client) - server_s
    return {
        "jobs/s": jobs / marks.seconds(0, jobs),
        "CPU µs": cpu_s * 1e6 / jobs,
        "server µs": server_s * 1e6 / jobs,
    }


def _server_s(client: Any) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _chatter() -> int | None:
    return None if os.environ.get("BIDE_BENCH_VERBOSE") else subprocess.DEVNULL
