"""Many jobs due at one instant: when the first one starts, when the last, and in which order.

The jobs are delayed, so nothing can be prepared: the worker knows the instant and nothing else.
Each library says it in its best way: many in one call where that can delay jobs, else one by one.
Starts are taken by the jobs themselves, as their first statement. A job is out of order if one that
was enqueued after it has started before. Those take part that are through with so
many jobs within seconds.
"""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from benchmarks.lab import Lab
from benchmarks.peer import Marks, Peer
from benchmarks.report import Aim, Report, Row
from benchmarks.rounds import company, in_turn, medians

PATIENCE_S = 40.0
BEFORE_S = 0.5
"""What must be left, once all have been enqueued, until they are due."""


class Size(NamedTuple):
    """So many jobs, who is to run them, for how long all this is measured, and what is to be."""

    jobs: int
    peers: tuple[str, ...]
    quick_s: float
    thorough_s: float
    first_ms: float
    drained_ms: float


SIZES = (
    Size(10_000, ("bide", "bullmq", "dramatiq", "huey"), 25, 60, 5, 300),
    Size(100_000, ("bide", "bullmq"), 25, 70, 10, 3_000),
)


def run(lab: Lab) -> list[Report]:
    """Several bursts of each size, the peers in turn."""
    here = company(lab)
    reports: list[Report] = []
    for size in SIZES:
        measures = {
            here.peers[key].best: partial(_burst, lab, here.peers[key], here.marks, size.jobs)
            for key in size.peers
            if key in here.peers
        }
        rounds = in_turn(lab.seconds(size.quick_s, size.thorough_s), measures, most=7)
        rows = medians(rounds, "drained, ms")
        aims: list[Aim] = []
        if (ours := "bide" in here.peers and here.peers["bide"].best) and ours in rows:
            what = f"{size.jobs:,} due at one instant: "
            row = rows[ours]
            aims = [
                Aim(f"{what}first start, ms", row["first, ms"], at_most=size.first_ms),
                Aim(f"{what}drained, ms", row["drained, ms"], at_most=size.drained_ms),
                Aim(f"{what}jobs out of order", row["out of order"], at_most=0),
            ]
        note = "ms after due, by the first and the last job; lowest, highest: when drained"
        title = f"{size.jobs:,} jobs due at one instant"
        reports.append(Report(title, rows, "worker", note, aims))
    return reports


def _burst(lab: Lab, peer: Peer, marks: Marks, jobs: int) -> Row:
    """Let jobs fall due together."""
    lab.empty()
    marks.clear()
    sample = jobs // 20
    begun = time.monotonic()
    peer.put(peer.best, 0, sample, at=time.time() + 3600)  # to know how long it takes
    ahead = 1.5 * (time.monotonic() - begun) * jobs / sample + 2 * BEFORE_S
    lab.empty()
    with peer.warm(peer.best, marks) as processes:
        due = time.time() + ahead
        due_ns = time.monotonic_ns() + round(ahead * 1e9)
        peer.put(peer.best, 0, jobs, at=due, seconds=ahead + PATIENCE_S)
        if time.time() > due - BEFORE_S / 2:
            raise RuntimeError(f"{jobs:,} jobs were not enqueued within {ahead:.0f} s")
        time.sleep(max(0.0, due + 0.1 - time.time()))
        marks.wait(0, jobs, PATIENCE_S)
        processes.wait_idle()
    times = marks.times(0, jobs)
    latest, late = 0, 0
    for at in times:
        late += at < latest
        latest = max(latest, at)
    return {
        "first, ms": (min(times) - due_ns) / 1e6,
        "drained, ms": (max(times) - due_ns) / 1e6,
        "out of order": late,
        "jobs/s": jobs / (max(times) - due_ns) * 1e9,
    }
