"""Where a page lists all of a kind, it has all of them; what reads as all, is all."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Final

import pytest

import bide
from bide.model.job import EVENTS
from tests.docs import lists
from tests.docs.pages import PAGES, ROOT, Step, code_of, steps

NAMES: Final = [str(page.relative_to(ROOT)) for page in PAGES]


def _text(page: str) -> str:
    return (ROOT / "docs" / page).read_text("utf-8")


def _rows(page: str, title: str) -> list[list[str]]:
    """The rows of the table whose first column has this title, cell by cell."""
    _, _, table = _text(page).partition(f"\n| {title} |")
    rows = re.match(r".*\n\|[-|: ]+\|\n((?:\|.*\n)+)", table)
    assert rows, f"{page} has no table of each {title}"
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[1].splitlines()]


def test_events_are_listed_with_what_emits_them() -> None:
    found = {row[0].strip("`"): row[1] for row in _rows("howto/events.md", "kind")}
    assert found == {kind: ", ".join(verbs) or "–" for kind, (verbs, _) in EVENTS.items()}


def test_the_fields_of_an_event_are_listed() -> None:
    spans = [span for row in _rows("howto/events.md", "field") for span in _spans(row[0])]
    assert sorted(spans) == sorted(lists.attributes(bide.Event))


def test_the_states_are_listed() -> None:
    words = _text("index.md").partition("## Job states")[2].partition("\n## ")[0]
    assert {*re.findall(r"\*\*(\w+)\*\*", words)} >= lists.STATES
    named = {span for row in _rows("coming-from/index.md", "here") for span in _spans(row[0])}
    assert named >= lists.STATES


def test_the_reasons_why_a_job_has_not_run_are_listed() -> None:
    assert {row[0].strip("`") for row in _rows("howto/limits.md", "kind")} == lists.REASONS


def test_the_options_of_a_schedule_are_listed() -> None:
    told = _text("howto/schedules.md")
    options = re.search(r"options of a job: (.*?)\.", told, re.DOTALL)
    verbs = re.search(r"`queue.schedules` also has (.*?);", told, re.DOTALL)
    assert options
    assert {*_spans(options[1])} == {*bide.ScheduleOptions.__annotations__}
    assert verbs
    assert {*_spans(verbs[1]), "upsert"} == lists.attributes(bide.Schedules)


def test_the_variables_are_listed() -> None:
    variables = {row[0].strip("`") for row in _rows("howto/settings.md", "variable")} - {""}
    assert variables == lists.VARIABLES


def test_the_fields_of_a_body_are_listed() -> None:
    _, _, told = _text("reference/wire.md").partition("## The body")
    rows = re.findall(r"^\| (`[^|]+) \|", told.partition("\n## ")[0], re.MULTILINE)
    assert {span for row in rows for span in _spans(row)} == {*bide.Body.__struct_fields__}


def test_every_public_error_has_its_cause_and_its_repair() -> None:
    rows = [row for row in _rows("troubleshooting.md", "error | cause") if all(row)]
    rows += _rows("troubleshooting.md", "error | effect")
    public = (name for name in bide.__all__ if isinstance(getattr(bide, name), type))
    errors = {name for name in public if issubclass(getattr(bide, name), BaseException)}
    assert {row[0].strip("`") for row in rows} == errors


def test_the_extras_of_pip_and_what_they_bring_are_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    rows = {row[0].strip("`"): row[1] for row in _rows("installation.md", "extra")}
    assert rows.keys() == extras.keys()
    for extra, brings in rows.items():
        names = (re.match(r"bide\[(\w+)\]|[\w-]+", wanted) for wanted in extras[extra])
        assert all((name[1] or name[0]) in brings for name in names if name), extra
    needed = {row[0] for row in _rows("installation.md", "package")}
    assert needed == {re.split(r"\W", wanted)[0] for wanted in project["dependencies"]}


def _spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


# -- code that reads as if it took all


@pytest.mark.parametrize("page", NAMES)
def test_code_that_lists_jobs_says_how_many(page: str) -> None:
    """`jobs` and `items` return a page, of fifty unless it is told otherwise."""
    for span in _spans((ROOT / page).read_text("utf-8")):
        assert not re.fullmatch(r"queue\.jobs\(\"\w+\"\)", span), span
    for call in _calls(page, hidden=False):
        named = ast.unparse(call.func).rpartition(".")[2]
        if named == "jobs" or (named == "items" and call.args):
            assert "count" in {keyword.arg for keyword in call.keywords}, ast.unparse(call)


@pytest.mark.parametrize("page", NAMES)
def test_no_hidden_step_makes_a_job_due(page: str) -> None:
    """What is shown after it would not follow from what is shown before it."""
    hidden = [each for each in _calls(page, hidden=True) if _moves(each)]
    outputs = [step.line for step in _steps(page) if getattr(step, "output", None)]
    assert not [call for call in hidden if any(line > call.lineno for line in outputs)]


def _moves(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2].startswith(("promote", "reschedule"))


def _steps(page: str) -> list[Step]:
    return steps((ROOT / page).read_text("utf-8"))


def _calls(page: str, hidden: bool) -> Iterator[ast.Call]:
    """The calls in the code of a page that readers see, or do not see; each with its line."""
    lines = (ROOT / page).read_text("utf-8").splitlines()
    for step in _steps(page):
        if lines[step.line - 1].lstrip().startswith("<!--") is hidden:
            for node in ast.walk(ast.parse("\n" * step.line + code_of(step))):
                if isinstance(node, ast.Call):
                    yield node
