"""The page that compares queues under faults is made of its figures, and these are of many."""

from __future__ import annotations

import json
import runpy
from typing import Any

from benchmarks.faults import SCENARIOS
from benchmarks.rounds import PEERS
from tests.docs.pages import ROOT

MAKE: Any = runpy.run_path(str(ROOT / "docs" / "make_comparison.py"))
TOLD: Any = json.loads(MAKE["DATA"].read_text("utf-8"))


def test_the_page_is_what_its_figures_make() -> None:
    assert MAKE["PAGE"].read_text("utf-8") == MAKE["page"](TOLD)


def test_every_fault_was_done_to_bide_and_eight_others() -> None:
    tables = TOLD["results"]["faults"]
    assert {title.removeprefix("Fault: ") for title in tables} == SCENARIOS.keys()
    for title, rows in tables.items():
        assert rows.keys() <= set(PEERS), title
        assert len(rows) >= 9, title
        assert "bide" in rows, title
        assert all(rows.values()), title
