"""The README in Chinese says what the README says: whoever changes one, changes the other."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, Final

import pytest

from bide import __version__
from tests.docs.pages import ROOT

PAGES: Final = ("README.md", "README.zh.md")
_BLOCK: Final = re.compile(
    r"^```.*?^```$|(?:^    [^\n]*\n(?:\n(?=    ))*)+", re.DOTALL | re.MULTILINE
)


def blocks(text: str) -> list[str]:
    """Code and commands, fenced and indented, and the picture's file names."""
    return _BLOCK.findall(text)


def headings(text: str) -> list[int]:
    """The levels of headings, in order."""
    return [len(marks) for marks in re.findall(r"^(#+) ", _BLOCK.sub("", text), re.MULTILINE)]


def links(text: str) -> list[str]:
    """Where links and pictures lead, but for those from one page to the other."""
    found = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    return sorted(target for pair in found for target in pair if target and target not in PAGES)


def spans(text: str) -> list[str]:
    """Code within sentences."""
    return sorted(re.findall(r"`[^`\n]+`", _BLOCK.sub("", text)))


def figures(text: str) -> list[list[str]]:
    """The numbers in each row of tables."""
    rows = re.findall(r"^\| *(.*) \|$", text, re.MULTILINE)
    return [sorted(re.findall(r"\d[\d.,]*\d|\d", row)) for row in rows]


def items(text: str) -> int:
    """How many points lists have."""
    return len(re.findall(r"^- ", text, re.MULTILINE))


@pytest.mark.parametrize("part", [blocks, headings, links, spans, figures, items])
def test_both_languages_have_the_same(part: Callable[[str], object]) -> None:
    english, chinese = (part((ROOT / page).read_text("utf-8")) for page in PAGES)
    assert english
    assert chinese == english


def test_it_is_read_in_minutes() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 1100


def test_a_package_index_gets_no_link_and_no_picture_that_leads_nowhere() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    hook = settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text("utf-8")
    for each in hook["substitutions"]:
        assert re.search(each["pattern"], text), each
        text = re.sub(each["pattern"], each["replacement"], text)
    assert not links(text)
    assert "## Guarantees" in text


COMPARED: Final = {
    # which row of the README: page, section and column; then the row of each library there
    "median": ("performance", "Lateness in ms, 200 jobs/s", "p50"),
    "99th percentile": ("performance", "Lateness in ms, 200 jobs/s", "p99"),
    "Worker killed": ("comparison", "## A worker is killed\n", "not back"),
    "Killed while": ("comparison", "## A worker is killed while jobs become due", "not back"),
    "Throughput": ("performance", "figures: Jobs that do nothing", "jobs/s"),
}


@pytest.mark.parametrize("row", COMPARED)
def test_its_comparison_says_what_the_pages_say(row: str) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    libraries, *rows = _cells(readme[readme.index("## Why bide") :])
    (shown,) = (cells[1:] for cells in rows if row in cells[0])
    page, section, column = COMPARED[row]
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    columns, *measured = _cells(text[text.index(section) :])
    values: dict[str, list[float]] = {}
    for cells in measured:
        name = re.split("[ ,]", cells[0].strip("*"))[0].lower()
        if (value := cells[columns.index(column)]) != "–":
            values.setdefault(name, []).append(_number(value))
    for library, figure in zip(libraries[1:], shown, strict=True):
        best = max(values[library.lower()])  # of several kinds of workers, the fastest
        assert _number(figure) == _number(f"{best:.3g}") or _number(figure) == best, library


LIKE: Final = {
    "BullMQ": "bide async, 100 / BullMQ, 100",
    "Dramatiq": "bide threads, 2 × 8 / Dramatiq, 2 × 8",
    "RQ": "bide fork, 2 / RQ Worker, 2",
    "Celery": "bide process, 2 / Celery prefork, 2",
}
"""The pairs of like workers that the README compares."""


@pytest.mark.parametrize("page", PAGES)
def test_it_says_of_which_run_each_figure_is(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    performance, comparison = _measured("performance"), _measured("comparison")
    environments = {
        "Lateness": performance["environments"]["lateness"][0],
        "Kills": comparison["environment"],
        "Throughput": performance["environment"],
    }
    shown = re.findall(r"\*[^*\n]+\*\W+(\w+ [\d.]+)\W+(20[\d-]+)", text)
    assert shown == [
        (one["server"].capitalize(), one["date"][:10]) for one in environments.values()
    ]
    again = {name: row.get("again, s") for name, row in _rows(comparison, "Fault: kill").items()}
    for seconds in (again["bide"], again["bullmq"]):
        assert f"{seconds:.1f} s" in text
    times = _rows(performance, "How many times as fast")
    for library, pair in LIKE.items():
        assert f"{times[pair]['times']:.2f}" in text, library
    late = _rows(performance, "Lateness in ms, 200 jobs/s at random moments, delayed by 0.5 s")
    assert f"{late['bide async, 100']['p50']:.2f} ms" in text


@pytest.mark.parametrize("page", PAGES)
def test_it_names_the_version(page: str) -> None:
    version = re.escape(__version__)
    assert re.search(rf"alpha\W+(version|版本) {version}\W", (ROOT / page).read_text("utf-8"))


def _measured(name: str) -> dict[str, Any]:
    """The figures of a page."""
    found: dict[str, Any] = json.loads((ROOT / "docs" / f"{name}.json").read_text("utf-8"))
    return found


def _rows(measured: dict[str, Any], title: str) -> dict[str, dict[str, float]]:
    """The rows of a table."""
    (rows,) = (tables[title] for tables in measured["results"].values() if title in tables)
    found: dict[str, dict[str, float]] = rows
    return found


def _cells(text: str) -> list[list[str]]:
    """The rows of the first table in a text, its first line first, without the line below it."""
    lines = [line for line in text[text.index("\n|") + 1 :].split("\n\n")[0].splitlines() if line]
    rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def test_each_leads_to_the_other_at_its_top() -> None:
    for page, other in (PAGES, PAGES[::-1]):
        top = (ROOT / page).read_text("utf-8").splitlines()[:3]
        assert f"]({other})" in top[-1]
