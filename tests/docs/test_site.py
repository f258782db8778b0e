"""The site builds without a warning, needs nothing from elsewhere, and says what is so."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

DOCS = ROOT / "docs"


@pytest.mark.slow
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
    reason="what builds the site is not installed: pip install --group docs",
)
def test_the_site_builds_without_a_warning_and_asks_nobody_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(DOCS), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,  # only what hangs takes so long
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.glob("**/*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)="([^"]*)"', _text(page)
        )
        assert not [url for url in loaded if "//" in url], page


# -- links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_a_heading_lead_to_one(page: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)]+)\)", _text(page)):
        target = (page.parent / link).resolve() if link else page
        assert anchor in _anchors(target), f"{link}#{anchor}"


@pytest.mark.parametrize("page", PAGES[2:], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_stay_within_the_site(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", _prose(page)):
        target = (page.parent / link).resolve()
        assert target.is_relative_to(DOCS), f"{link} leads out of docs/, where the site has no page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_what_is_there(page: Path) -> None:
    for target in _targets(page):
        assert target.exists(), target


def test_every_page_is_reached_from_the_index() -> None:
    """By links that readers see, also those who read it as files: not by the tree of the site."""
    reached, ahead = set[Path](), [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += [target for target in _targets(page) if target.suffix == ".md"]
    assert {*DOCS.glob("**/*.md")} <= reached


def _targets(page: Path) -> list[Path]:
    """The files and folders that a page links to."""
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", _prose(page))
    return [(page.parent / link).resolve() for link in links]


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", _text(page), flags=re.S), re.M)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in plain}


@cache
def _text(page: Path) -> str:
    return page.read_text("utf-8")


def _prose(page: Path) -> str:
    return re.sub(r"```.*?```|`[^`]*`", "", _text(page), flags=re.S)


# -- promises and their tests


ROWS = re.findall(
    r"^\| \[(.*?)\]\(guarantees\.md#.*?\) \| (.*) \|$", _text(DOCS / "tests.md"), re.M
)
PROMISES = {title: re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", tests) for title, tests in ROWS}
HELD = [test for tests in PROMISES.values() for test in tests]


@cache
def _tests(file: str) -> dict[str, list[ast.expr]]:
    """The tests of a module with their decorators, also those that a class inherits."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    sources = {
        name.name: f"{(node.module or '').replace('.', '/')}.py"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node.decorator_list
        elif isinstance(node, ast.ClassDef):
            for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
                if sources.get(base, "").startswith("tests/"):
                    inherited = _tests(sources[base])
                    found |= {
                        name.replace(base, node.name, 1): marks
                        for name, marks in inherited.items()
                        if name.startswith(f"{base}::")
                    }
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[f"{node.name}::{each.name}"] = each.decorator_list
    return found


@pytest.mark.parametrize(("file", "name"), HELD, ids=[name for _, name in HELD])
def test_a_promise_is_held_by_a_test_that_exists(file: str, name: str) -> None:
    assert name in _tests(file)


def test_every_promise_names_a_test_and_every_other_says_what_to_do_instead() -> None:
    promised, other = _text(DOCS / "guarantees.md").split("## Not guaranteed")
    assert list(PROMISES) == [part.splitlines()[0] for part in promised.split("\n### ")[1:]]
    assert all(PROMISES.values())
    for part in other.split("\n### ")[1:-1]:  # the last one is of servers that cannot be used
        assert "*Instead*" in part, part.splitlines()[0]


def _is_quick(file: str, name: str) -> bool:
    """Whether `make test` runs a test."""
    marks: list[ast.AST] = [*_tests(file).get(name, ())]
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node):
            marks.append(node)
    return not any("mark.slow" in ast.unparse(mark) for mark in marks)


def test_make_test_holds_every_promise() -> None:
    for title, tests in PROMISES.items():
        assert any(_is_quick(*test) for test in tests), title


# -- completeness


def test_an_index_has_every_page_beside_it() -> None:
    for index in DOCS.glob("*/index.md"):
        for page in index.parent.glob("*.md"):
            assert page == index or f"({page.name})" in _text(index), page


def test_the_shown_settings_can_be_read() -> None:
    for page in PAGES:
        for block in re.findall(r"```toml\n(.*?)```", _text(page), re.S):
            tomllib.loads(block)
