"""Every example runs, prints what its docstring says, and is short enough to be read."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.docs.compare import differs
from tests.docs.pages import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("[!_]*.py"))


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
