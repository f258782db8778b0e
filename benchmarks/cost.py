"""What a job costs the server's processor, from its enqueue to its end.

A worker stands still while jobs are enqueued, and then runs them, as for throughput (`executors`);
the server's CPU time is that of its process (INFO cpu), over both. Jobs are enqueued one by one, or
many in a call by those libraries that can. The server does nothing else meanwhile.
"""

from __future__ import annotations

from functools import partial

from benchmarks.lab import Lab
from benchmarks.peer import measure
from benchmarks.report import Aim, Report
from benchmarks.rounds import company, in_turn, medians

QUICK_S, THOROUGH_S = 40, 60
BULK = ("bide", "bullmq", "rq", "streaq")
"""Those that have a call for many: see `benchmarks.enqueue`."""

MOST_US = {"one by one": 18, "many at once": 12}


def run(lab: Lab) -> list[Report]:
    """Each peer in turn, one by one and many at once."""
    here = company(lab)
    measures = {
        f"{peer.best}; enqueued {how}": partial(
            measure,
            peer,
            peer.best,
            peer.workers[peer.best]["jobs"] // (4 if lab.quick else 2),
            here.marks,
            lab.client,
            bulk=how == "many at once",
        )
        for how in MOST_US
        for peer in here.peers.values()
        if how == "one by one" or peer.key in BULK
    }
    rounds = in_turn(lab.seconds(QUICK_S, THOROUGH_S), measures)
    costs = {
        name: [
            {
                "server µs": row["with enqueue"],
                "to enqueue": row["with enqueue"] - row["server µs"],
                "to run": row["server µs"],
            }
            for row in rows
        ]
        for name, rows in rounds.items()
    }
    rows = medians(costs, "server µs")
    aims = [
        Aim(f"server µs a job, enqueued {how}", rows[name]["server µs"], at_most=most)
        for how, most in MOST_US.items()
        for name in rows
        if name.startswith("bide") and name.endswith(how)
    ]
    note = "the processor time of the server's process, a job; medians"
    return [Report("What a job costs the server", rows, "worker", note, aims)]
