"""The cost of metrics by task in a worker: `python -m benchmarks.metrics`.

One worker runs jobs that do nothing, with replies that its own process makes (`alone.py`): so it is
busy all the time, and the share of the metrics is as large as it can be. It counts nothing and
counts all, as with `--health-port`, in turn. The cost is the median over the rounds: the lowest of
each of the two may be of moments in which the machine differed. The printed range holds that median
in 19 of 20 repeats.
"""

from __future__ import annotations

import math
import statistics

from benchmarks.child import answer, child
from benchmarks.lab import open_lab

JOBS = 40_000
ROUNDS = 40
AT_ONCE = 100


def main() -> None:
    cpu: dict[str, list[dict[str, float]]] = {"": [], "counts": []}
    with open_lab(quick=True, chosen=None) as lab:
        for number in range(ROUNDS):
            kinds = list(cpu.items())
            for counts, measured in reversed(kinds) if number % 2 else kinds:
                with child("benchmarks.alone.work", lab.server.url, JOBS, AT_ONCE, counts) as one:
                    measured.append(answer(one, 120))
    rounds = [(off["CPU µs"], on["CPU µs"]) for off, on in zip(cpu[""], cpu["counts"], strict=True)]
    off, on = (min(measured) for measured in zip(*rounds, strict=True))
    costs = sorted((on / off - 1) * 100 for off, on in rounds)
    # Order statistics around the median of n values: n/2 -+ 0.98 * sqrt(n) (normal approximation).
    apart = round(0.98 * math.sqrt(ROUNDS))
    low, high = costs[ROUNDS // 2 - apart], costs[ROUNDS // 2 + apart - 1]
    print(f"{JOBS:,} jobs that do nothing, {ROUNDS} rounds in turn; CPU µs of a job")
    print(f"lowest: without metrics {off:.2f}, with metrics {on:.2f}")
    print(f"median of the rounds: {statistics.median(costs):+.1f} % ({low:+.1f} to {high:+.1f} %)")


if __name__ == "__main__":
    main()
