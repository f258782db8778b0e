"""The page of figures is what is made of the latest measurements, and shows their pictures."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import page


def test_the_tables_are_those_of_the_figures() -> None:
    written = page.PAGE.read_text("utf-8")
    told = json.loads(page.DATA.read_text("utf-8"))
    assert written == page.made(written, told), "run `make docs`"


def test_a_table_without_figures_is_an_error() -> None:
    text = "<!-- figures: nothing of the kind -->\n<!-- end: figures -->\n"
    with pytest.raises(KeyError, match="nothing of the kind"):
        page.made(text, {"results": {}})


def test_each_picture_of_figures_is_text_and_asks_nobody() -> None:
    pictures = re.findall(r"!\[[^]]+\]\((static/[\w-]+\.svg)\)", page.PAGE.read_text("utf-8"))
    assert len(pictures) >= 4
    for picture in pictures:
        drawn = (page.PAGE.parent / picture).read_text("utf-8")
        assert "<text" in drawn, f"{picture} has no words"
        assert not re.findall(r'(?:href|src)="(?!#)', drawn), picture
