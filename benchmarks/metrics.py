"""The cost of metrics by task in a worker: `python -m benchmarks.metrics`.

One worker runs jobs that do nothing, with replies that its own process makes (`alone.py`): so it is
busy all the time, and the share of the metrics is as large as it can be. It counts nothing and
counts all, as with `--health-port`, in turn.
"""

from __future__ import annotations

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
    off, on = (min(one["CPU µs"] for one in measured) for measured in cpu.values())
    print(f"{JOBS:,} jobs that do nothing, {ROUNDS} rounds in turn; the lowest CPU µs of a job")
    print(f"without metrics {off:.2f}, with metrics {on:.2f}: {(on / off - 1) * 100:+.1f} %")


if __name__ == "__main__":
    main()
