"""Whichever process is killed, at whichever statement: orders, jobs and effects balance."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contrib.sqlalchemy.desk import BALANCED, PARTS

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actor", "ends", "steps"),
    [
        ("producer", ("nothing", "placed", "paid"), 24),
        ("relay", ("paid",), 14),
        ("worker", ("paid",), 8),
    ],
)
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_a_process_is_killed_at_each_of_its_steps(
    actor: str, ends: tuple[str, ...], steps: int, part: int, database: str, one_url: str
) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.contrib.sqlalchemy.desk",
            actor,
            database,
            one_url,
            f"{part}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) * PARTS > steps, (
        "each statement, each commit and each round trip has two steps"
    )
    allowed = [BALANCED[name] for name in ends]
    assert [kept for kept in found if kept not in allowed] == []
    seen = [name for name in ends if BALANCED[name] in found]
    assert seen == [*ends], "the kills reached each of the ends"
