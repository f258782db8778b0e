"""Every example runs, prints what its docstring says, and is short enough to be read."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import bide
from tests.docs.pages import ROOT
from tests.support.compare import differs

EXAMPLES = sorted((ROOT / "examples").glob("[!_]*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_prints_what_it_says(example: Path, one_url: str) -> None:
    told = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
    done = subprocess.run(
        [sys.executable, "-m", "examples", example.stem],
        cwd=ROOT,
        env=os.environ | {"BIDE_URL": one_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = "\n".join(line for line in told.splitlines() if line.startswith("    "))
    assert differs(dedent(shown), done.stdout) is None
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text("utf-8").splitlines()) <= 60


def test_the_page_shows_the_code_of_each_example() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_examples.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "examples.md").read_text("utf-8")
    others = (ROOT / "examples" / "node" / "enqueue.mjs", ROOT / "examples" / "go" / "enqueue.go")
    for example in (*EXAMPLES, *others):
        assert f"<!-- generated: {example.relative_to(ROOT)} -->" in page


def test_a_group_of_lines_outlives_the_worker_that_handles_it(
    one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as if the first run had ended with its worker, just before it was settled."""
    monkeypatch.setenv("BIDE_URL", one_url)
    monkeypatch.delitem(sys.modules, "examples.log_groups", raising=False)
    example: Any = importlib.import_module("examples.log_groups")
    worker = bide.Worker(example.queue)
    jobs = example.send([(9, 2, "END"), (9, 1, "checkout")])
    jobs[9].promote()
    worker.run(burst=True)
    assert jobs[9].wait(0) == ["1 checkout", "2 END"]
    late = example.send([(9, 3, "too late")])
    jobs[9].retry()
    worker.run(burst=True)
    jobs[9].refresh()
    assert jobs[9].result == ["1 checkout", "2 END"]
    assert (late[9].enqueue_result, late[9].id == jobs[9].id) == ("created", False)
    example.queue.close()


def test_there_is_no_example_of_an_unknown_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "order_desk" in done.stderr
