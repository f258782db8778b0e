"""`docs/check_style.py` finds sentences that the documentation does not want."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

CHECK: Any = runpy.run_path(str(ROOT / "docs" / "check_style.py"))


def _rules(page: str) -> list[tuple[int, str]]:
    return [(found.line, found.rule) for found in CHECK["findings"](page)]


@pytest.mark.parametrize(
    ("page", "line", "rule"),
    [
        ("What is late is cancelled.", 1, "not with 'What'"),
        ("It runs.\n\n- **Why.** Where it waits\n  is known.", 3, "not with 'Where'"),
        ("It runs. One that\nwaits is late.", 1, "not with 'One that'"),
        ("A job.\nIt runs. Of ten jobs,\ntwo run.", 2, "not with 'Of'"),
        ("# Title\n\n| a | the job lapses |\n", 3, "write expire, not 'lapses'"),
        ("# A herd\n", 1, "write burst of due jobs, not 'herd'"),
        ("It is taken\nback.", 1, "write cancel, not 'taken back'"),
        (f"It runs{' again' * 29}.", 1, "this one has 31"),
        ("It waits; it runs; it ends.", 1, "at most one semicolon"),
        ("It runs.\n\n| a | the job is late.. |\n", 3, "one full stop"),
        ("```python\nx = 1\n```\n\nThe [job\ngoes on](x.md).", 5, "write continue or run"),
    ],
)
def test_a_bad_sentence_is_found(page: str, line: int, rule: str) -> None:
    [(found_at, found)] = _rules(page)
    assert found_at == line
    assert rule in found


@pytest.mark.parametrize(
    "page",
    [
        "What is a lease? A worker holds it.",
        "## What you get\n\nThe job runs: what it returns is stored.",
        "It prints `What nobody; tells; goes on`.",
        'It prints "it was told; to go on; for good".',
        "```text\nWhat goes on\n```\n",
        "1. Run it:\n\n   ```console\n   $ bide\n   What goes on\n   ```\n",
        "Run:\n\n    What goes on\n",
        "<!-- skip: nobody -->",
        "Read [why](why/wakeups.md).",
        "It takes some names ... and their files, `../README.md` too.",
        "| state; of a | job; of a queue |\n",
        f"It runs{' again' * 28}.",
    ],
)
def test_code_quotes_and_short_sentences_are_fine(page: str) -> None:
    assert not _rules(page)


@pytest.mark.parametrize("name", CHECK["NOT_YET"])
def test_a_page_that_is_clean_is_checked(name: str) -> None:
    found = [*ROOT.glob(f"{name}**/*.md")] if name.endswith("/") else [ROOT / name]
    assert any(_rules(page.read_text("utf-8")) for page in found), "remove it from NOT_YET"


def test_the_pages_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert CHECK["main"]([]) == 0, capsys.readouterr().out


def test_a_finding_names_its_line_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nWho waits is late.\n", "utf-8")
    assert CHECK["main"]([str(page)]) == 1
    assert capsys.readouterr().out.startswith(f"{os.path.relpath(page, ROOT)}:3: ")
