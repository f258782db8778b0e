"""The pages of figures are what is made of the latest measurements, and show their pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import page

PERFORMANCE = page.PAGES[0]


@pytest.mark.parametrize("written", page.PAGES, ids=lambda path: path.name)
def test_the_tables_are_those_of_the_figures(written: Path) -> None:
    text = written.read_text("utf-8")
    told = json.loads(page.DATA.read_text("utf-8"))
    assert text == page.made(text, told), "run `make docs`"


def test_each_table_of_figures_stands_on_one_of_the_pages() -> None:
    told = json.loads(page.DATA.read_text("utf-8"))
    tables = {title for part, made in told["results"].items() if part != "ahead" for title in made}
    shown = re.findall(
        r"<!-- figures: (.*) -->", "".join(path.read_text("utf-8") for path in page.PAGES)
    )
    assert len(shown) == len(set(shown))
    assert {title for title in shown if title in tables} == tables
    assert {"the summary", "the libraries", "lateness by load", "targets"} <= set(shown)


def test_a_table_without_figures_is_an_error() -> None:
    text = "<!-- figures: nothing of the kind -->\n<!-- end: figures -->\n"
    with pytest.raises(KeyError, match="nothing of the kind"):
        page.made(text, {"results": {}})


def test_each_picture_of_figures_is_text_and_asks_nobody() -> None:
    pictures = re.findall(r"!\[[^]]+\]\((static/[\w-]+\.svg)\)", PERFORMANCE.read_text("utf-8"))
    assert len(pictures) >= 4
    for picture in pictures:
        drawn = (PERFORMANCE.parent / picture).read_text("utf-8")
        assert "<text" in drawn, f"{picture} has no words"
        assert not re.findall(r'(?:href|src)="(?!#)', drawn), picture
