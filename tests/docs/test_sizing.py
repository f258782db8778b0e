"""The page of memory, throughput and connections is what its figures make."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from tests.docs.pages import ROOT

MAKE: Any = runpy.run_path(str(ROOT / "docs" / "make_sizing.py"))


def test_the_page_is_what_its_figures_make() -> None:
    written, sizing, performance = MAKE["read"]()
    assert written == MAKE["page"](written, sizing, performance), "run `make docs`"


def test_a_table_without_figures_is_an_error() -> None:
    text = "<!-- figures: memory -->\n<!-- end: figures -->\n"
    with pytest.raises(KeyError, match="Memory per job"):
        MAKE["page"](text, {"results": {}}, {"results": {}})
