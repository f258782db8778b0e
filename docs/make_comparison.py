"""Writes `docs/comparison.md` from the figures in `docs/comparison.json`.

`python -m benchmarks faults --json docs/comparison.json` measures them; `make docs` writes the
page, and a test holds it equal to what this makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "comparison.json"
PAGE = Path(__file__).parent / "comparison.md"

TITLES = {
    "kill": "A worker is killed",
    "freeze": "A worker stands still",
    "restart": "A worker is told to end",
    "server": "The server is killed",
    "delay": "A worker is killed while jobs become due",
}

HEAD = """\
# Beside other queues, under faults

The same faults, done to bide and to other task queues: each with the settings that it has by
default, on a server of its own, side by side on the same machine. Jobs write into a ledger when
they begin and when they end; what is told here is what the ledger says.

    python -m benchmarks faults --json docs/comparison.json

{server}, {python}, {cpus} processors; {date}. A job is *not back* if it has not come to its end
within {seconds} s, which may be lost or yet to come. *Twice* are those that came to their end
twice. *Again* is how long after the fault the jobs that it met were begun again (median). A dash:
it did not happen.
"""

WORST = """\
## What to make of it

- Of a worker that is killed alone, bide's jobs wait for the end of their leases, ten seconds
  unless you say otherwise: this is its worst case, and the figure above. In
  [processes](howto/executors.md), where a child is killed and its worker lives, it is known at
  once.
- A job that stood still with its worker runs twice wherever somebody else took it over meanwhile.
  No queue can prevent that; bide refuses what the first run returns, and gives you [a
  token](howto/ids.md) to have your own database refuse it, too.
- What a server has acknowledged and not yet written to its disk is gone when it is killed, with
  any queue. [`durability="fsync"`](howto/durability.md) waits for the disk.
- Others can be set to lose less than by default: Celery with `acks_late`, RQ and SAQ with retries.
  Then more is repeated; the table says what you get if you do not know.
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
    yield "## Who\n"
    for line in notes[1:]:
        name, _, what = line.partition(": ")
        yield f"- **{name}**: {what}"
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
