"""What waiting costs: commands of idle workers, and claims per job as the fleet grows.

*Idle*: one worker of each library that has nothing to do, for some seconds, each with a server of
its own, all at the same time: what is counted does not depend on who else is there. MONITOR tells
what clients send from what scripts call. A worker has run some jobs before.

*Fleet*: 100 jobs a second to 1, 5 and 20 workers that are idle but for these, delayed by 500 ms
and due at once. The best possible is one claim for each job: more are workers that woke in vain,
less are jobs that were claimed together. Every worker numbers its claims, and the server keeps
the number: their sum is what is counted. The workers of a fleet share two event loops.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

from benchmarks.child import answer, child
from benchmarks.lab import Lab
from benchmarks.peer import Marks, complain, open_peer
from benchmarks.report import Aim, Report, Row, Rows, percentiles
from benchmarks.rounds import PEERS
from benchmarks.tasks import read_log
from bide.embedded import Server

RATE = 100
FLEETS = (1, 5, 20)
DELAY_US = 500_000
SETTLE_S = 2.0
MOST_COMMANDS = 0.5


def run(lab: Lab) -> list[Report]:
    """First without jobs, then with few of them."""
    fleets: Rows = {}
    for count in FLEETS:
        for what, delay_us in (("delayed", DELAY_US), ("immediate", 0)):
            name = f"{count} worker{'s' * (count > 1)}, {what}"
            fleets[name] = _fleet(lab, count, delay_us, seconds=4 if lab.quick else 20)
    return [
        _idle(lab, seconds=8 if lab.quick else 20),
        Report(
            f"{RATE} jobs/s to a fleet that waits",
            fleets,
            "fleet",
            "late: from due to the job's first statement, ms",
        ),
    ]


def _idle(lab: Lab, seconds: int) -> Report:
    with ThreadPoolExecutor(len(PEERS)) as pool:
        attempts = {name: pool.submit(_monitor, lab.server.binary, name, seconds) for name in PEERS}
        rows: Rows = {}
        for name, attempt in attempts.items():
            try:
                worker, row = attempt.result()
                rows[worker] = row
            except RuntimeError as error:
                complain(name, error)
    aims = [
        Aim("commands a second of an idle worker", row["clients'"], at_most=MOST_COMMANDS)
        for name, row in rows.items()
        if name.startswith("bide")
    ]
    note = (
        "a second; clients': what the worker and what belongs to it send; all: scripts' calls too"
    )
    return Report("Commands of one idle worker", rows, "worker", note, aims)


def _monitor(binary: str, name: str, seconds: int) -> tuple[str, Row]:
    """One peer on a server of its own: its best worker, and what that sends."""
    with TemporaryDirectory() as directory, Server.start(binary=binary) as server:
        marks = Marks(Path(directory, "marks"))
        with open_peer(name, server.url, marks) as peer, peer.warm(peer.best, marks):
            time.sleep(SETTLE_S)
            heard: list[bool] = []
            client: Any = redis.Redis.from_url(server.url)
            with closing(client), client.monitor() as monitor:
                end = time.monotonic() + seconds
                while (left := end - time.monotonic()) > 0:
                    if monitor.connection.can_read(left):
                        heard.append(monitor.next_command()["client_type"] != "lua")
            return peer.best, {"clients'": sum(heard) / seconds, "all": len(heard) / seconds}


def _fleet(lab: Lab, count: int, delay_us: int, seconds: int) -> Row:
    lab.empty()
    jobs = RATE * seconds
    with TemporaryDirectory() as directory, ExitStack() as stack:
        log = Path(directory, "jobs")
        for size in filter(None, (count - count // 2, count // 2)):
            stack.enter_context(child("fleet", lab.server.url, size, log=log))
        lab.wait_workers(count)
        time.sleep(SETTLE_S)
        claims = lab.claims()
        start_ns = time.time_ns() + 10**9
        with child("produce", lab.server.url, start_ns, RATE, jobs, delay_us) as producer:
            answer(producer, seconds + 30)
            lab.wait_completed(jobs, 30)
        claims = lab.claims() - claims
        late = percentiles(note.late_ms for note in read_log(log))
    return {
        "claims per job": claims / jobs,
        "late p50": late["p50"],
        "late p99": late["p99"],
        "late max": late["max"],
        "jobs": jobs,
    }
