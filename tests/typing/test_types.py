"""The typed surface, as mypy and pyright see it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOOD, BAD = HERE / "good.py", HERE / "bad.py"
Complaints = set[tuple[str, int]]
"""File and line of each."""


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command, str(GOOD), str(BAD)],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def mypy() -> Complaints:
    output = run("mypy", "--strict", "--output", "json", "--warn-unused-ignores")
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {(Path(x["file"]).name, x["line"]) for x in lines if x["severity"] == "error"}


def pyright() -> Complaints:
    output = run("pyright", "--pythonpath", sys.executable, "--outputjson")
    return {
        (Path(x["file"]).name, x["range"]["start"]["line"] + 1)
        for x in json.loads(output)["generalDiagnostics"]
        if x["severity"] == "error"
    }


@pytest.mark.slow
@pytest.mark.parametrize("check", [mypy, pyright])
def test_the_checkers_accept_what_is_right_and_refuse_what_is_not(
    check: Callable[[], Complaints], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYRIGHT_PYTHON_IGNORE_WARNINGS", "1")
    lines = enumerate(BAD.read_text().splitlines(), start=1)
    refused = {(BAD.name, number) for number, line in lines if line.endswith("# refused")}
    assert check() == refused
