"""Who claims the jobs that run in processes: the worker, for all its children, or each child.

    python -m benchmarks.feeding [--quick] [--server WHICH] [--json FILE]

*Fed* children are those of `bide worker --executor process`. Children that claim *for themselves*
are in `selfish.py`, and do the least that works. Both run the same jobs; for throughput, the
same as `executors` does and measured as that does it.

*Idle*: commands that the server gets from eight children that have nothing to do.

*Late*: two children; a job that keeps one busy for a second and twenty that do nothing fall due at
one instant. A child was free all the time: how late did the twenty begin?
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.lab import Lab, is_from_clients, open_lab
from benchmarks.peer import Marks, Peer, measure, open_peer
from benchmarks.report import Report, Row, Rows, median, percentiles, show, spread

AT_ONCE = (1, 10)
"""How many jobs a child claims for itself at once."""

JOBS = {
    "fed by the worker": 20_000,
    "for itself, 1 at once": 4_000,
    "for itself, 10 at once": 15_000,
}
QUICK_JOBS = 20
BUSY_MS = 1000


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feeding")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--server", metavar="WHICH", help="valkey, redis, or a server's path")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    console = Console(width=110)
    with (
        open_lab(options.quick, options.server) as lab,
        TemporaryDirectory() as directory,
    ):
        marks = Marks(Path(directory, "marks"))
        with open_peer("bide", lab.server.url, marks) as peer:
            reports = [_speed(lab, peer, marks), _idle(lab, peer), _late(lab, peer, marks)]
    for report in reports:
        show(console, report)
    if options.json:
        told = {report.title: report.rows for report in reports}
        options.json.write_text(json.dumps(told, indent=2) + "\n")


def _hire(lab: Lab, peer: Peer, children: int) -> list[str]:
    """Name the workers that are compared, with so many children."""
    fed, *selfish = JOBS
    work = ["bide", "worker", "benchmarks.peers.bide", "-u", lab.server.url, "-q", "bench"]
    peer.workers[fed] = {"command": [*work, "-x", "process", "-c", str(children)]}
    for name, at_once in zip(selfish, AT_ONCE, strict=True):
        order = ["-m", "benchmarks.selfish", lab.server.url, str(children), str(at_once)]
        peer.workers[name] = {"command": ["python", *order]}
    return list(JOBS)


def _speed(lab: Lab, peer: Peer, marks: Marks) -> Report:
    names = _hire(lab, peer, 2)
    rounds: dict[str, list[Row]] = {name: [] for name in names}
    for _ in range(3 if lab.quick else 7):
        for name in names:
            calls, usec = lab.scripts()
            row = measure(peer, name, JOBS[name], marks, lab.client)
            calls, usec = lab.scripts()[0] - calls, lab.scripts()[1] - usec
            row |= {"scripts": calls / JOBS[name], "script µs": usec / JOBS[name]}
            rounds[name].append(row)
    rows: Rows = {name: median(rows) | spread(rows, "jobs/s") for name, rows in rounds.items()}
    note = "medians; CPU µs: worker and children, a job; server µs: its CPU, a job"
    return Report("Jobs that do nothing, two children", rows, "who claims", note)


def _idle(lab: Lab, peer: Peer) -> Report:
    rows: Rows = {}
    seconds = 8 if lab.quick else 20
    for name in _hire(lab, peer, 8):
        lab.empty()
        with peer.working(name) as processes:
            time.sleep(1)
            processes.wait_idle()
            connections = len(lab.client.client_list()) - 2  # ours, and the producer's
            before = lab.commands()
            time.sleep(seconds)
            after = lab.commands()
        calls = {key: after[key][0] - before.get(key, (0, 0))[0] for key in after}
        rows[name] = {
            "commands/s": sum(n for key, n in calls.items() if is_from_clients(key)) / seconds,
            "with those in scripts": sum(calls.values()) / seconds,
            "connections": connections,
        }
    return Report(f"Eight idle children, over {seconds} s", rows, "who claims")


def _late(lab: Lab, peer: Peer, marks: Marks) -> Report:
    rows: Rows = {}
    for name in _hire(lab, peer, 2):
        late: list[float] = []
        lab.empty()
        with peer.warm(name, marks):
            for _ in range(5 if lab.quick else 20):
                late += _late_once(lab, marks)
        behind = sum(ms > BUSY_MS / 2 for ms in late) / len(late)
        rows[name] = percentiles(late) | {"behind it, %": 100 * behind}
    note = (
        f"{QUICK_JOBS} jobs, due with one that takes a second; ms from due to their first statement"
    )
    return Report("A free child beside a busy one", rows, "who claims", note)


def _late_once(lab: Lab, marks: Marks) -> list[float]:
    marks.clear()
    queue: Any = lab.queue()
    due = time.time() + 0.3
    due_ns = time.monotonic_ns() + round((due - time.time()) * 1e9)
    at = datetime.fromtimestamp(due, UTC)
    jobs = [queue.prepare("benchmarks.peers.bide:busy", (0,), at=at)]
    jobs += [queue.prepare("job", (n + 1,), at=at) for n in range(QUICK_JOBS)]
    queue.enqueue_many(jobs)
    queue.close()
    marks.wait(0, QUICK_JOBS + 1)
    time.sleep(max(0.0, due + 1.2 - time.time()))
    return [(at_ns - due_ns) / 1e6 for at_ns in marks.times(1, QUICK_JOBS)]


if __name__ == "__main__":
    main()
