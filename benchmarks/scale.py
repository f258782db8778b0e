"""Whether bide costs the same however much there is: of jobs that wait, of workers, of time.

*Depth*: what a call costs with 10,000 to ten million delayed jobs in the queue (`depth`). *Tail*:
how long scripts take at worst with a million jobs due (`tail`). *Fleets*: claims and wakes per job
with 1 to 200 workers (`fleet`). *Growth*: the memory of a worker and a producer (`growth`).
"""

from __future__ import annotations

from benchmarks import depth, fleet, growth, tail
from benchmarks.lab import Lab
from benchmarks.report import Report


def run(lab: Lab) -> list[Report]:
    """One after another; on the machine at a time is only what is measured."""
    reports: list[Report] = []
    for part in (depth, tail, fleet, growth):
        lab.empty()
        reports += part.run(lab)
    return reports
