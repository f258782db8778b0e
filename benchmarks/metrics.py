"""The cost of metrics by task in a worker: `python -m benchmarks.metrics`.

One worker runs jobs that do nothing, with replies that its own process makes (`alone.py`): so it is
busy all the time, and the share of the metrics is as large as it can be. It counts nothing and
counts all, as with `--health-port`, in turn. The cost is the median over the rounds: the lowest of
each of the two may be of moments in which the machine differed. The printed scatter leaves out the
lowest and the highest round.
"""

from __future__ import annotations

import statistics

from benchmarks.child import answer, child
from benchmarks.lab import open_lab

JOBS = 40_000
ROUNDS = 12
AT_ONCE = 100


def main() -> None:
    cpu: dict[str, list[dict[str, float]]] = {"": [], "counts": []}
    with open_lab(quick=True, chosen=None) as lab:
        for _ in range(ROUNDS):
            for counts, measured in cpu.items():
                with child("benchmarks.alone.work", lab.server.url, JOBS, AT_ONCE, counts) as one:
                    measured.append(answer(one, 120))
    rounds = [(off["CPU µs"], on["CPU µs"]) for off, on in zip(cpu[""], cpu["counts"], strict=True)]
    off, on = (min(measured) for measured in zip(*rounds, strict=True))
    costs = [(on / off - 1) * 100 for off, on in rounds]
    _, low, *_, high, _ = sorted(costs)
    print(f"{JOBS:,} jobs that do nothing, {ROUNDS} rounds in turn; CPU µs of a job")
    print(f"lowest: without metrics {off:.2f}, with metrics {on:.2f}")
    print(f"median of the rounds: {statistics.median(costs):+.1f} % ({low:+.1f} to {high:+.1f} %)")


if __name__ == "__main__":
    main()
