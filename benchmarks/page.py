"""Fills the tables of the pages of figures with the figures in `docs/performance.json`.

`docs/performance.md` is for users: bide beside other queues. `docs/performance-details.md` is for
maintainers: bide alone, and its targets. A table stands between a comment that names it,
`<!-- figures: TITLE -->`, and `<!-- end: figures -->`. `make docs` runs it; tests hold the pages to
be what this makes, and every table to stand on one of them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab import ROOT
from benchmarks.report import Aim, Rows, number

DATA = ROOT / "docs" / "performance.json"
PAGES = (ROOT / "docs" / "performance.md", ROOT / "docs" / "performance-details.md")
BY_LOAD = "Lateness in ms, "
"""The beginning of the titles of `ahead`, a table for each load; the page has one for all."""

TARGET = "to reach"
"""The column of a target, which is not shown: all targets are in one table, for maintainers."""

_TABLE = re.compile(
    r"(?P<begin><!-- figures: (?P<title>.*?) -->\n).*?(?P<end><!-- end: figures -->)", re.DOTALL
)


def made(page: str, told: dict[str, Any]) -> str:
    """The page with its tables made anew.

    Raises:
        KeyError: there are no figures of a table.
    """
    results = told["results"]
    tables: dict[str, Rows] = {
        title: rows for made in results.values() for title, rows in made.items()
    }
    generated: dict[str, Callable[[], str]] = {
        "the machine": lambda: _machine(told["environment"], told["quick"]),
        "the libraries": lambda: _libraries(told["peers"]),
        "the summary": lambda: _summary(tables),
        "lateness by load": lambda: _by_load(results["ahead"]),
        "targets": lambda: _aims(told["aims"]),
    }

    def fill(found: re.Match[str]) -> str:
        title = found["title"]
        part = title.removeprefix("the machine of ")
        if title in generated:
            table = generated[title]()
        elif part != title:
            table = _machine(*told["environments"][part])
        else:
            table = _figures(tables[title])
        return f"{found['begin']}\n{table}\n{found['end']}"

    return _TABLE.sub(fill, page)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def _figures(rows: Rows) -> str:
    found = dict.fromkeys(column for row in rows.values() for column in row)
    columns = [column for column in found if column != TARGET]
    return _markdown(
        ["", *columns],
        [
            [name.strip(), *(number(row[c]) if c in row else "–" for c in columns)]
            for name, row in rows.items()
        ],
    )


SUMMARY = (
    # the head, its section of the page, the tables, the column there, and which value is the best
    ("late, median, ms", "how-late-jobs-begin", (f"{BY_LOAD}200 jobs/s",), "p50", min),
    ("late, p99, ms", "how-late-jobs-begin", (f"{BY_LOAD}200 jobs/s",), "p99", min),
    ("jobs/s run", "jobs-that-do-nothing", ("Jobs that do nothing",), "jobs/s", max),
    (
        "jobs/s enqueued, one a call",
        "enqueueing",
        ("Enqueueing, one by one", "Enqueueing, one by one, awaited"),
        "jobs/s",
        max,
    ),
    ("many a call", "enqueueing", ("Enqueueing, many in one call",), "jobs/s", max),
    (
        "bytes a delayed job",
        "memory-and-processor-time-of-the-server",
        ("Memory per delayed job",),
        "bytes",
        min,
    ),
    (
        "server µs a job",
        "memory-and-processor-time-of-the-server",
        ("What a job costs the server",),
        "server µs",
        min,
    ),
)
"""The columns of the summary. A table's title may go on: with the number of jobs, for example."""

NOT_LIBRARIES = ("floor", " / ", "above the floor", "due in an hour")


def _summary(tables: dict[str, Rows]) -> str:
    """A row for each library, with the figure of its best way."""
    best: dict[str, dict[str, float]] = defaultdict(dict)
    for head, _, titles, column, choose in SUMMARY:
        for title, rows in tables.items():
            if title in titles or (len(titles) == 1 and title.startswith(titles)):
                for name, row in rows.items():
                    if column in row and not any(words in name for words in NOT_LIBRARIES):
                        library = re.split("[ ,]", name.strip())[0]
                        value = best[library].get(head, row[column])
                        best[library][head] = choose(value, row[column])
    heads = [f"[{head}](#{section})" for head, section, *_ in SUMMARY]
    return _markdown(
        ["", *heads],
        [
            [name, *(number(row[head]) if head in row else "–" for head, *_ in SUMMARY)]
            for name, row in best.items()
        ],
    )


def _by_load(tables: dict[str, Rows]) -> str:
    """All loads in one table, with a line for each way of each."""
    return _figures(
        {
            f"{title.removeprefix(BY_LOAD)}: {name}": row
            for title, rows in tables.items()
            for name, row in rows.items()
        }
    )


def _aims(aims: Sequence[dict[str, Any]]) -> str:
    rows = []
    for told in aims:
        aim = Aim(**{key: value for key, value in told.items() if key != "met"})
        met = "met" if told["met"] else "**missed**"
        rows.append([aim.what, number(aim.measured), aim.bound, met])
    return _markdown(["", "measured", "to be", ""], rows)


def _libraries(peers: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            f"{one['name']} {one['version']}",
            one["acks"],
            one["delays"],
            "yes" if one["by_id"] else "no",
        ]
        for one in peers
    ]
    head = ["library", "a job is acknowledged", "delayed jobs wait in", "found by id"]
    return _markdown(head, rows, left=4)


def _machine(about: dict[str, Any], is_quick: bool) -> str:
    quick = ", a short run" if is_quick else ""
    return (
        f"{about['server']} by {about['transport']} socket, {about['python']}, "
        f"{about['cpus']} processors, {about['platform']}, load {about['load']} before the run,\n"
        f"{about['date'][:10]}{quick}.\n"
    )


def write(data: Path = DATA) -> None:
    """Make the pages anew."""
    told = json.loads(data.read_text("utf-8"))
    for page in PAGES:
        page.write_text(made(page.read_text("utf-8"), told), "utf-8")


if __name__ == "__main__":
    write()
