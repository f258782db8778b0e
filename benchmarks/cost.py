"""What a job that is enqueued alone costs the server's processor, from its enqueue to its end.

A worker stands still while jobs are enqueued one by one, and then runs them, as for throughput.
Server and producer are on one processor then: so the server has no idle moment, from which to be
woken would cost it more than many a call, and which a server that has much to do does not know. The
server's CPU time is that of its process (INFO cpu), over both. `in scripts` is the time that its
scripts took (INFO commandstats): without reading calls from a socket and writing replies, and of
libraries that send other commands too, without those. What a job costs that is enqueued with many
others stands beside the throughput (`executors`).
"""

from __future__ import annotations

from functools import partial

from benchmarks.lab import Lab
from benchmarks.peer import measure
from benchmarks.report import Aim, Report
from benchmarks.rounds import company, in_turn, medians

QUICK_S, THOROUGH_S = 30, 45
MOST_US = 18


def run(lab: Lab) -> list[Report]:
    """Each peer in turn."""
    here = company(lab)
    measures = {
        peer.best: partial(
            measure,
            peer,
            peer.best,
            peer.workers[peer.best]["jobs"] // (4 if lab.quick else 2),
            here.marks,
            lab.client,
            bulk=False,
            place="together",
        )
        for peer in here.peers.values()
    }
    rounds = in_turn(lab.seconds(QUICK_S, THOROUGH_S), measures)
    costs = {
        name: [
            {
                "server µs": row["with enqueue"],
                "to enqueue": row["with enqueue"] - row["server µs"],
                "to run": row["server µs"],
                "in scripts": row["in scripts"],
            }
            for row in rows
        ]
        for name, rows in rounds.items()
    }
    rows = medians(costs, "server µs")
    ours = next(row for name, row in rows.items() if name.startswith("bide"))
    aims = [
        Aim("server µs a job, enqueued one by one", ours["server µs"], at_most=MOST_US),
        Aim("the same, in scripts", ours["in scripts"], at_most=MOST_US),
    ]
    note = "processor time of the server's process, a job, and how much its scripts took; medians"
    return [Report("What a job costs the server, enqueued one by one", rows, "worker", note, aims)]
