"""What the workers of a supervisor have counted, as Prometheus reads it."""

from __future__ import annotations

from typing import Final

from bide.exposition import Distribution, Family, Labels, expose
from bide.worker.figures import LATENESS, RUN_TIME, ByQueue

OUTCOMES: Final = ("complete", "retry", "fail", "snooze", "release", "cancel", "crash")


def worker_metrics(figures: ByQueue, workers: int, deaths: int) -> str:
    """The text of `/metrics`.

    Args:
        figures: the sums over all workers that there are and were.
        workers: how many run.
        deaths: how many have died.
    """
    claims, claimed, refused = [], [], []
    settled: list[tuple[Labels, float]] = []
    lateness, run_time = [], []
    for queue, seen in sorted(figures.items()):
        of = {"queue": queue}
        claims.append((of, seen.claims))
        claimed.append((of, seen.claimed))
        refused.append((of, seen.refused))
        settled += [({**of, "outcome": name}, seen.settled.get(name, 0)) for name in OUTCOMES]
        lateness.append((of, Distribution(LATENESS, seen.lateness.counts, seen.lateness.total)))
        run_time.append((of, Distribution(RUN_TIME, seen.run_time.counts, seen.run_time.total)))
    return expose(
        [
            Family("bide_worker_processes", "gauge", "Workers that run.", [({}, workers)]),
            Family(
                "bide_worker_deaths_total",
                "counter",
                "Workers that died, and were replaced.",
                [({}, deaths)],
            ),
            Family(
                "bide_worker_claims_total", "counter", "Claims that the server answered.", claims
            ),
            Family("bide_worker_claimed_jobs_total", "counter", "Jobs that were claimed.", claimed),
            Family(
                "bide_worker_settled_jobs_total",
                "counter",
                "Outcomes of jobs that the server has taken; crash: their process died.",
                settled,
            ),
            Family(
                "bide_worker_refused_settles_total",
                "counter",
                "Outcomes that came after the lease had passed to another worker.",
                refused,
            ),
            Family(
                "bide_worker_lateness_seconds",
                "histogram",
                "From due to claimed, by the server's clock.",
                lateness,
            ),
            Family(
                "bide_worker_run_seconds",
                "histogram",
                "For how long a job ran, whatever it came to.",
                run_time,
            ),
        ]
    )
