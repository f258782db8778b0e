"""What faults do to jobs: bide beside its peers, each on a server of its own, at the same time.

Jobs write into a ledger when they begin and end. Each peer goes through the same scenarios, with
the settings that it has by default:

- **kill**: a worker is killed (SIGKILL) while it runs jobs, and another started at once.
- **freeze**: a worker is stopped (SIGSTOP) in its jobs for longer than most leases, beside another
  that could take over, and goes on.
- **restart**: a worker is told to end (SIGTERM) amid jobs, as a deployment does, and another
  started when it has.
- **server**: the server, which appends to a file and syncs it every second, is killed amid jobs and
  started again after two seconds.
- **delay**: jobs are due one after another; meanwhile the worker is killed, and another started.

A job is **not back** if it has not come to its end within the time that is waited for, which is
told: lost, or yet to come. It ran **twice** if it came to its end twice.

The scenarios run side by side, each begun a little later than the one before; but `delay`, which is
about milliseconds, comes last, alone.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.install import install
from benchmarks.lab import Lab
from benchmarks.peer import Marks, Peer, complain, open_peer
from benchmarks.report import Report, Row, Rows, percentiles
from benchmarks.rounds import PEERS
from bide.embedded import Server

QUICK_S, THOROUGH_S = 100.0, 420.0
"""Seconds after which a job that has not ended counts as lost."""

APART_S: Final = 15.0
"""Seconds between the beginnings of scenarios."""

FREEZE_S: Final = 75.0
AT_ONCE: Final = 60.0
"""Seconds in which a worker must begin the first job."""


class Ledger:
    """What jobs have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def read(self) -> dict[str, dict[int, list[float]]]:
        """What happened (due, begin, end) → number of the job → when, in seconds."""
        found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for line in self.path.read_text().splitlines():
            what, number, at, _ = line.split()
            found[what][int(number)].append(int(at) / 1e9)
        return found

    def count(self, what: str) -> int:
        """How many jobs that has happened to."""
        return len(self.read()[what])

    def wait(self, what: str, count: int, seconds: float) -> bool:
        """Wait until it has happened to so many jobs; whether it has."""
        until = time.monotonic() + seconds
        while self.count(what) < count:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True


class Trial:
    """One peer on a server of its own."""

    def __init__(self, peer: Peer, server: Server, ledger: Ledger, timeout: float) -> None:
        self.peer = peer
        self.server = server
        self.ledger = ledger
        self.timeout = timeout

    def kill(self) -> Row:
        """A worker is killed amid jobs."""
        with self.peer.working("faults") as first:
            self.peer.hold(0, 4, 3.0)
            held = self._begun()
            first.kill()
        killed = time.monotonic()
        with self.peer.working("faults"):
            self.ledger.wait("end", 4, self.timeout)
        return self._books(4) | self._again(held, killed)

    def freeze(self) -> Row:
        """A worker stands still amid jobs, and goes on later."""
        with self.peer.working("faults") as first:
            self.peer.hold(0, 4, 3.0)
            held = self._begun()
            first.stop()
            stopped = time.monotonic()
            with self.peer.working("faults"):
                self.ledger.wait("end", 4, FREEZE_S)
                time.sleep(max(0.0, stopped + FREEZE_S - time.monotonic()))
                first.go_on()
                self.ledger.wait("end", 4, self.timeout - FREEZE_S)
                time.sleep(5)
        return self._books(4) | self._again(held, stopped)

    def restart(self) -> Row:
        """A worker is told to end amid jobs."""
        with self.peer.working("faults") as first:
            self.peer.hold(0, 40, 0.5)
            self._begun()
            told = time.monotonic()
            first.signal(signal.SIGTERM)
            first.wait_end(30)
            ended = time.monotonic()
        with self.peer.working("faults"):
            self.ledger.wait("end", 40, self.timeout)
        return self._books(40) | {"to end, s": ended - told}

    def server_killed(self) -> Row:
        """The server is killed amid jobs."""
        with self.peer.working("faults") as first:
            self.peer.hold(0, 200, 0.05)
            self._begun()
            self.server.kill()
            time.sleep(2)
            self.server.restart()
            back = time.monotonic()
            time.sleep(10)
            died = not first.find()
            if not died:
                self.ledger.wait("end", 200, self.timeout - 10)
        if died:  # as what supervises it would
            with self.peer.working("faults"):
                self.ledger.wait("end", 200, self.timeout - 10)
        begun = [at for times in self.ledger.read()["begin"].values() for at in times if at > back]
        again = {"first after, s": min(begun) - back} if begun else {}
        return self._books(200) | again | {"worker died": float(died)}

    def delay(self) -> Row:
        """A worker is killed while jobs become due."""
        with self.peer.working("faults") as first:
            self.peer.hold(0, 400, 0.0, 3.0, 0.025)
            time.sleep(8)
            first.kill()
        with self.peer.working("faults"):
            self.ledger.wait("end", 400, self.timeout)
        seen = self.ledger.read()
        late = [
            min(seen["begin"][number]) - due[0]
            for number, due in seen["due"].items()
            if number in seen["begin"]
        ]
        lateness = percentiles(1000 * one for one in late)
        return self._books(400) | {
            "early": float(sum(one < 0 for one in late)),
            "late p50, ms": lateness["p50"],
            "late max, ms": lateness["max"],
        }

    def _begun(self) -> set[int]:
        """Wait for the first jobs to begin; the fault comes while they run."""
        if not self.ledger.wait("begin", 1, AT_ONCE):
            raise RuntimeError("it does not begin")
        time.sleep(1)
        seen = self.ledger.read()
        return set(seen["begin"]) - set(seen["end"])

    def _books(self, count: int) -> Row:
        ends = self.ledger.read()["end"]
        return {
            "jobs": count,
            "not back": float(count - len(ends)),
            "twice": float(sum(len(times) > 1 for times in ends.values())),
        }

    def _again(self, held: set[int], since: float) -> Row:
        """When the jobs that the fault met ran again."""
        begins = self.ledger.read()["begin"]
        again = [min(later) for n in held if (later := [at for at in begins[n] if at > since])]
        return {"again, s": statistics.median(again) - since} if again else {}


SCENARIOS: Final[dict[str, Callable[[Trial], Row]]] = {
    "kill": Trial.kill,
    "freeze": Trial.freeze,
    "restart": Trial.restart,
    "server": Trial.server_killed,
    "delay": Trial.delay,
}


def run(lab: Lab) -> list[Report]:
    """Every scenario, all peers at once."""
    timeout = QUICK_S if lab.quick else THOROUGH_S
    peers = [name for name in PEERS if _is_installed(name)]
    about: dict[str, str] = {}

    def attempt(scenario: str) -> Rows:
        with ThreadPoolExecutor(len(peers)) as pool:
            try_one = partial(_try, lab.server.binary, SCENARIOS[scenario], timeout, about)
            return dict(zip(peers, pool.map(try_one, peers), strict=True))

    beside, alone = [*SCENARIOS][:-1], [*SCENARIOS][-1]
    rows: dict[str, Rows] = {}
    with ThreadPoolExecutor(len(beside)) as pool:
        under_way = {}
        for scenario in beside:
            under_way[scenario] = pool.submit(attempt, scenario)
            time.sleep(APART_S)
        for scenario, made in under_way.items():
            rows[scenario] = made.result()
    rows[alone] = attempt(alone)
    told = f"not back: within {timeout:g} s"
    note = "\n".join([told, *(f"{name}: {about[name]}." for name in peers if name in about)])
    reports = [Report(f"Fault: {scenario}", rows[scenario], "peer", told) for scenario in SCENARIOS]
    return [*reports[:-1], reports[-1]._replace(note=note)]


def _is_installed(name: str) -> bool:
    try:
        install(name)
    except RuntimeError as error:
        complain(name, error)
        return False
    return True


def _try(
    binary: str,
    act: Callable[[Trial], Row],
    timeout: float,
    about: dict[str, str],
    name: str,
) -> Row:
    try:
        with _trial(binary, name, timeout) as trial:
            told = trial.peer
            settings = told.workers["faults"]["settings"]
            about[name] = (
                f"{told.about['version']}, {settings}. Acknowledges {told.about['acks']}. "
                f"Delayed jobs are in {told.about['delays']}"
            )
            return act(trial)
    except RuntimeError as error:
        complain(name, error)
        return {}


@contextmanager
def _trial(binary: str, name: str, timeout: float) -> Iterator[Trial]:
    with TemporaryDirectory() as directory:
        home = Path(directory)
        with Server.start(home / "server", binary=binary, persist=True, tcp=True) as server:
            ledger = Ledger(home / "ledger")
            with open_peer(name, server.url, Marks(home / "marks"), ledger.path) as peer:
                yield Trial(peer, server, ledger, timeout)
