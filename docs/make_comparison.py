"""Writes `docs/comparison.md` from the figures in `docs/comparison.json`.

`python -m benchmarks faults --json docs/comparison.json` measures them; `make docs` writes the
page, and a test holds it equal to what this makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "comparison.json"
PAGE = Path(__file__).parent / "comparison.md"

_NOTE = re.compile(r"(\w+): (.+)\. Acknowledges (.+)\. Delayed jobs are in (.+)\.")

TITLES = {
    "kill": "A worker is killed",
    "freeze": "A worker is frozen",
    "restart": "A worker is asked to stop",
    "server": "The server is killed",
    "delay": "A worker is killed while jobs become due",
}

HEAD = """\
# Comparison under faults

This page shows how bide and other task queues behave under the same faults. Each library has its
default settings, with the exceptions in [the table of libraries](#libraries), and a server of its
own. All run side by side on the same machine. Each job writes to a ledger when it starts and when
it ends. The figures below come from the ledger.

    python -m benchmarks faults --json docs/comparison.json

{server}, {python}, {cpus} processors; {date}.

| column | meaning |
|---|---|
| not back | jobs that did not finish within {seconds} s: lost, or still to come |
| twice | jobs that finished twice |
| again, s | median time from the fault to the second start of a running job, in seconds |
| to end, s | time until the worker has stopped, in seconds |
| first after, s | time from the restart of the server to the next start of a job, in seconds |
| – | it did not happen |

`jobs` are the jobs of a scenario. Not all of them ran when the fault came: a library that runs one
job at a time had one running. In the scenario of a killed worker, the fault comes one second after
the first job has started.
"""

WORST = """\
## Conclusions

- If a single worker is killed, bide's jobs wait until their leases end, up to eleven seconds by
  default. In the table they waited nine, because the leases of ten seconds were one second old.
  In [processes](howto/executors.md) the worker outlives a killed child, and knows of its death at
  once.
- If a worker is frozen, and another worker took over its job meanwhile, the job runs twice. No
  queue can prevent that. bide refuses the result of the first run, and gives the job [a
  token](howto/ids.md), with which your own database can refuse it, too.
- Dramatiq returns the jobs of a dead worker in its maintenance. A worker does maintenance [at
  random](https://dramatiq.io/reference.html#dramatiq.brokers.redis.RedisBroker), by default after
  one in 1,000 of its commands to the server. An idle worker sends few commands. In the table, no
  maintenance returned the jobs within 420 s. A setting of its broker changes the rate.
- If a server is killed, it loses acknowledged writes that are not on its disk, with any queue.
  [`durability="fsync"`](howto/durability.md) waits for the disk.
- Other libraries can be set to lose fewer jobs: Celery with `acks_late`, RQ and SAQ with retries.
  Then more jobs run again. The tables show the defaults.
- Celery prefetches 128 messages for each process here, and four by default. It fetches a delayed
  message [at once](https://docs.celeryq.dev/en/stable/userguide/calling.html#eta-and-countdown) in
  any case.
"""


def page(told: dict[str, Any]) -> str:
    """The page."""
    return "\n".join([*_lines(told), WORST])


def _lines(told: dict[str, Any]) -> Iterator[str]:
    around, reports = told["environment"], told["results"]["faults"]
    notes = list(told["notes"].values())[-1].splitlines()
    seconds = notes[0].rpartition("within ")[2].removesuffix(" s")
    yield HEAD.format(
        server=around["server"],
        python=around["python"],
        cpus=around["cpus"],
        date=around["date"][:10],
        seconds=seconds,
    )
    yield "## Libraries\n"
    yield "| library | settings | acknowledges a job | delayed jobs are in |"
    yield "|---|---|---|---|"
    for line in notes[1:]:
        yield _NOTE.sub(r"| **\1** | \2 | \3 | \4 |", line)
    yield ""
    for title, rows in reports.items():
        scenario = title.removeprefix("Fault: ")
        yield f"## {TITLES[scenario]}\n"
        yield from _table(rows)
        yield ""


def _table(rows: dict[str, dict[str, float]]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for name, row in rows.items():
        cells = " | ".join(_number(row.get(column)) for column in columns)
        yield f"| {'**bide**' if name == 'bide' else name} | {cells} |"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(DATA.read_text("utf-8"))), "utf-8")
