"""Fills the tables of `docs/performance.md` with the figures in `docs/performance.json`.

A table stands between a comment that names it, `<!-- figures: TITLE -->`, and
`<!-- end: figures -->`. `make docs` runs it; a test holds the page to be what this makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab import ROOT
from benchmarks.report import Aim, Rows, number

DATA = ROOT / "docs" / "performance.json"
PAGE = ROOT / "docs" / "performance.md"
_TABLE = re.compile(
    r"(?P<begin><!-- figures: (?P<title>.*?) -->\n).*?(?P<end><!-- end: figures -->)", re.DOTALL
)


def made(page: str, told: dict[str, Any]) -> str:
    """The page with its tables made anew.

    Raises:
        KeyError: there are no figures of a table.
    """
    tables = {title: rows for made in told["results"].values() for title, rows in made.items()}

    def fill(found: re.Match[str]) -> str:
        title = found["title"]
        if title == "the machine":
            table = _machine(told["environment"], told["quick"])
        elif title.startswith("the machine of "):
            table = _machine(*told["environments"][title.removeprefix("the machine of ")])
        elif title == "the libraries":
            table = _libraries(told["peers"])
        elif title == "what was to be reached":
            table = _aims(told["aims"])
        else:
            table = _figures(tables[title])
        return f"{found['begin']}\n{table}\n{found['end']}"

    return _TABLE.sub(fill, page)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def _figures(rows: Rows) -> str:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    return _markdown(
        ["", *columns],
        [
            [name.strip(), *(number(row[c]) if c in row else "–" for c in columns)]
            for name, row in rows.items()
        ],
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
    """Make the page anew."""
    PAGE.write_text(made(PAGE.read_text("utf-8"), json.loads(data.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    write()
