"""Fills the tables of `docs/howto/sizing.md` with figures that benchmarks have printed.

Memory, forks and connections are those of `docs/sizing.json` (`python -m benchmarks sizing --json
docs/sizing.json`), throughput that of `docs/performance.json`. `make docs` writes the page, and a
test holds it equal to what this makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGE = DOCS / "howto" / "sizing.md"
_TABLE = re.compile(
    r"(?P<begin><!-- figures: (?P<title>.*?) -->\n).*?(?P<end><!-- end: figures -->)", re.DOTALL
)

COUNTS = {"1 million": 1_000_000, "10 million": 10_000_000}
ROOM = 2
"""A fork copies what is written while the child lives: at worst, all of it."""

BUSY = 0.5
"""The share of a processor that the server is planned to use."""

QUIET = "no calls meanwhile"
"""The row of the rewrites that is shown. The other one needs a machine without other work: in the
run of the page, its producer and worker did 109 jobs a second, which keeps no server busy."""

WORKERS = {
    "coroutines, 1 worker, 100 at once": "bide async, 100",
    "plain functions, 1 worker, 8 threads": "bide threads, 1 × 8",
    "plain functions, 2 workers, 8 threads each": "bide threads, 2 × 8",
    "processes, 1 worker, 2 children": "bide process, 2",
    "a process for each job, 1 worker, 2 children": "bide fork, 2",
}


def page(written: str, sizing: dict[str, Any], performance: dict[str, Any]) -> str:
    """The page with its tables made anew.

    Raises:
        KeyError: there are no figures of a table.
    """
    tables: dict[str, Callable[[], str]] = {
        "the machine": lambda: _machine(sizing),
        "memory": lambda: _memory(_rows(sizing, "Memory per job")),
        "fork": lambda: _fork(_rows(sizing, "Rewrite of the append-only file")),
        "connections": lambda: _connections(_rows(sizing, "Connections")),
        "workers": lambda: _workers(_rows(performance, "Jobs that do nothing")),
        "server": lambda: _server(performance),
        "depth": lambda: _depth(_rows(performance, "Cost by the number of delayed jobs")),
    }
    return _TABLE.sub(
        lambda found: f"{found['begin']}\n{tables[found['title']]()}\n{found['end']}", written
    )


def _rows(told: dict[str, Any], title: str) -> dict[str, dict[str, float]]:
    """The rows of the first table whose title begins so."""
    for tables in told["results"].values():
        for name, rows in tables.items():
            if name.startswith(title):
                return dict(rows)
    raise KeyError(title)


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def _machine(sizing: dict[str, Any]) -> str:
    about = sizing["environment"]
    return (
        f"{about['cpus']} processors, {about['platform']}, load {about['load']:.0f} at the start, "
        f"{about['date'][:10]}.\n"
    )


def _memory(figures: dict[str, dict[str, float]]) -> str:
    rows = []
    for name, row in figures.items():
        each = row["delayed"]
        body = int(name.split()[-2].replace(",", ""))
        cells = [name, f"{each:,.0f}", f"{each - body:,.0f}", f"{row['completed']:,.0f}"]
        cells += [_gb(each * count) for count in COUNTS.values()]
        cells += [_gb(ROOM * each * count) for count in COUNTS.values()]
        rows.append(cells)
    head = ["", "delayed, bytes", "without the body", "completed, bytes"]
    head += [f"{name} delayed" for name in COUNTS]
    return _table([*head, *(f"{name}, with room" for name in COUNTS)], rows)


def _gb(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count < 1e10 else f"{count / 1e9:,.0f} GB"


def _fork(figures: dict[str, dict[str, float]]) -> str:
    row = figures[QUIET]
    return _table(
        ["", "data, MB", "fork, ms", "copied, MB", "copied, %"],
        [
            [
                QUIET,
                f"{row['used MB']:,.0f}",
                f"{row['fork ms']:,.0f}",
                f"{row['copied MB']:,.1f}",
                f"{row['copied %']:.1f}",
            ]
        ],
    )


def _connections(figures: dict[str, dict[str, float]]) -> str:
    rows = [[f"{name}", f"{row['connections']:.0f}"] for name, row in figures.items()]
    return _table(["program", "connections"], rows)


def _workers(figures: dict[str, dict[str, float]]) -> str:
    rows = [
        [name, f"{figures[theirs]['jobs/s']:,.0f}", f"{figures[theirs]['CPU µs']:,.0f}"]
        for name, theirs in WORKERS.items()
    ]
    return _table(["jobs that do nothing", "jobs/s", "CPU of a job, µs"], rows)


def _server(performance: dict[str, Any]) -> str:
    many = _rows(performance, "Jobs that do nothing")["bide async, 100"]["with enqueue"]
    alone = _rows(performance, "What a job costs the server")["bide async, 100"]["server µs"]
    rows = [
        [name, f"{cost:.1f}", f"{BUSY * 1e6 / cost:,.0f}"]
        for name, cost in {
            "many in one call of `enqueue_many`": many,
            "one by one": alone,
        }.items()
    ]
    return _table(["jobs are enqueued", "server µs a job", "jobs/s at half a processor"], rows)


def _depth(figures: dict[str, dict[str, float]]) -> str:
    rows = []
    for verb in ("enqueue anywhere, one", "claim, one", "settle, one"):
        cells = [
            f"{figures[f'{verb}: {size}']['server µs']:.0f}" for size in ("10 k", "1 M", "10 M")
        ]
        rows.append([verb.replace(" anywhere", "").replace(", one", ""), *cells])
    return _table(
        ["server µs of one call, with", "10,000 delayed", "1 million", "10 million"], rows
    )


def read() -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The page as it is written, and the figures."""
    figures = (json.loads((DOCS / f"{name}.json").read_text("utf-8")) for name in FIGURES)
    sizing, performance = figures
    return PAGE.read_text("utf-8"), sizing, performance


FIGURES = ("sizing", "performance")

if __name__ == "__main__":
    PAGE.write_text(page(*read()), "utf-8")
