"""Jobs that do nothing: every way in which bide runs them, beside its peers, on the same server.

Each worker is measured in turn, round after round, until the time is used up; those that are held
against one another are neighbours. How one is measured, and what is counted, is the same for all
and stands in `benchmarks.peer`; what each peer is and needs, in `benchmarks.peers`. A ratio is
that of two workers within a round; its median is told.
"""

from __future__ import annotations

from functools import partial

from benchmarks.lab import Lab
from benchmarks.peer import measure
from benchmarks.report import Aim, Report
from benchmarks.rounds import Pair, company, in_turn, medians, ratios

QUICK_S, THOROUGH_S = 50, 120
MOST_US = 12
"""Processor time of the server for a job that was enqueued with many others."""

ASYNC = "bide async, 100"

PAIRS = (
    Pair("bide fork, 1", "RQ Worker, 1", 4),
    Pair("bide fork, 2", "RQ Worker, 2", 4),
    Pair("bide fork, 2", "RQ Worker, 1"),
    Pair("bide process, 2", "Celery prefork, 2", 5),
    Pair("bide threads, 1 × 8", "Dramatiq, 1 × 8", 3),
    Pair("bide threads, 2 × 8", "Dramatiq, 2 × 8", 3),
    Pair("bide threads, 2 × 8", "Dramatiq, 2 × 8, default"),
    Pair("bide threads, 1 × 8", "Huey, 8 threads", 3),
    Pair(ASYNC, "RQ SimpleWorker, 1"),
    Pair(ASYNC, "BullMQ, 100", 3),
    Pair(ASYNC, "taskiq, 100", 10),
    Pair(ASYNC, "SAQ, 100", 10),
    Pair(ASYNC, "streaq, 100", 10),
    Pair(ASYNC, "arq, 100", 10),
)

ORDER = tuple(dict.fromkeys(name for pair in PAIRS for name in pair[:2]))


def run(lab: Lab) -> list[Report]:
    """Install, measure, compare."""
    here = company(lab)
    owners = {worker: peer for peer in here.peers.values() for worker in peer.workers}
    measures = {
        name: partial(
            measure,
            owners[name],
            name,
            owners[name].workers[name]["jobs"] // (2 if lab.quick else 1),
            here.marks,
            lab.client,
        )
        for name in ORDER
        if name in owners and name.startswith(lab.only)
    }
    rounds = in_turn(lab.seconds(QUICK_S, THOROUGH_S), measures)
    count = max(map(len, rounds.values()))
    note = (
        f"medians over rounds ({count}); CPU µs: the worker and all its processes, a job; "
        "server µs: the server's CPU, a job, and with what it took to enqueue it, many at once "
        f"where the library can\n{here.told()}"
    )
    measured = medians(rounds, "jobs/s")
    rows, aims = ratios(rounds, PAIRS, "jobs/s")
    if ASYNC in measured:
        cost = measured[ASYNC]["with enqueue"]
        aims.append(Aim("server µs a job, enqueued with many others", cost, at_most=MOST_US))
        aims.append(Aim("the same, in scripts", measured[ASYNC]["in scripts"], at_most=MOST_US))
    return [
        Report(
            "Jobs that do nothing",
            measured,
            "worker, jobs at once",
            note,
        ),
        Report("How many times as fast", rows, "pair", "medians of each round's ratio", aims),
    ]
