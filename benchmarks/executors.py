"""Jobs that do nothing: every way in which bide runs them, beside its peers, on the same server.

Each worker is measured in turn, round after round, until the time is used up; those that are held
against one another are neighbours. How one is measured, and what is counted, is the same for all
and stands in `benchmarks.peer`; what each peer is and needs, in `benchmarks.peers`. A ratio is
that of two workers within a round; its median is told. The first run installs the peers in
`build/peers`.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.lab import Lab
from benchmarks.peer import Marks, Peer, measure, open_peer
from benchmarks.report import Report, Row, Rows, median, spread

PEERS = ("bide", "rq", "celery", "dramatiq", "huey")

QUICK_S, THOROUGH_S = 75, 210
"""Seconds in which as many rounds are made as fit."""


class Pair(NamedTuple):
    """A worker of bide's, the peer's that does the like, and how many times as fast it is to be."""

    ours: str
    theirs: str
    times: float = 0


PAIRS = (
    Pair("bide fork, 1", "RQ Worker, 1", 4),
    Pair("bide fork, 2", "RQ Worker, 2", 4),
    Pair("bide fork, 2", "RQ Worker, 1"),
    Pair("bide process, 2", "Celery prefork, 2", 5),
    Pair("bide threads, 1 × 8", "Dramatiq, 1 × 8", 3),
    Pair("bide threads, 2 × 8", "Dramatiq, 2 × 8", 3),
    Pair("bide threads, 2 × 8", "Dramatiq, 2 × 8, default"),
    Pair("bide threads, 1 × 8", "Huey, 8 threads"),
    Pair("bide async, 100", "RQ SimpleWorker, 1"),
)

ORDER = tuple(dict.fromkeys(name for pair in PAIRS for name in pair[:2]))


def run(lab: Lab) -> list[Report]:
    """Install, measure, compare."""
    with TemporaryDirectory() as directory, ExitStack() as stack:
        marks = Marks(Path(directory, "marks"))
        peers: list[Peer] = []
        for name in PEERS:
            try:
                peers.append(stack.enter_context(open_peer(name, lab.server.url, marks)))
            except RuntimeError as error:
                print(f"without {name}: {error}", file=sys.stderr)
        owners = {worker: peer for peer in peers for worker in peer.workers}
        rounds = _rounds(lab, {name: owners[name] for name in ORDER if name in owners}, marks)
    count = len(rounds[ORDER[0]])
    rows: Rows = {
        name: median(measured) | spread(measured, "jobs/s") for name, measured in rounds.items()
    }
    return [
        Report(f"Jobs that do nothing, {count} rounds", rows, "worker, jobs at once", _told(peers)),
        Report("How many times as fast", _ratios(rounds), "pair", "medians of each round's ratio"),
    ]


def _rounds(lab: Lab, owners: dict[str, Peer], marks: Marks) -> dict[str, list[Row]]:
    """Measure all in turn for as long as another round will probably end in time."""
    rounds: dict[str, list[Row]] = {name: [] for name in owners}
    begun = time.monotonic()
    end = begun + (QUICK_S if lab.quick else THOROUGH_S)
    longest = 0.0
    while time.monotonic() + longest < end:
        start = time.monotonic()
        for name, peer in owners.items():
            jobs = peer.workers[name]["jobs"] // (2 if lab.quick else 1)
            rounds[name].append(measure(peer, name, jobs, marks, lab.client))
        longest = max(longest, time.monotonic() - start)
    return rounds


def _ratios(rounds: dict[str, list[Row]]) -> Rows:
    rows: Rows = {}
    for ours, theirs, times in PAIRS:
        if theirs not in rounds:
            continue
        ratios: list[Row] = [
            {"times": one["jobs/s"] / other["jobs/s"]}
            for one, other in zip(rounds[ours], rounds[theirs], strict=True)
        ]
        row = median(ratios) | spread(ratios, "times")
        rows[f"{ours} / {theirs}"] = row | ({"to reach": times} if times else {})
    return rows


def _told(peers: list[Peer]) -> str:
    """What each peer promises, for a speed means little without it."""
    lines = ["CPU µs: the worker and all its processes, a job; server µs: the server's CPU, a job"]
    for peer in peers:
        about = peer.about
        lines += [
            f"{about['package']} {about['version']}: acks {about['acks']}.",
            f"  Delayed jobs wait in {about['delays']}.",
        ]
    return "\n".join(lines)
