"""Whichever process is killed, at whichever statement: orders, jobs and effects balance."""

from __future__ import annotations

import pytest

from tests.support.outboxes import PARTS, assert_balanced


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
    assert_balanced("tests.contrib.sqlalchemy.desk", actor, ends, steps, part, database, one_url)
