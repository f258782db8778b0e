"""The README in Chinese says what the README says: whoever changes one, changes the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pytest

from tests.docs.pages import ROOT

PAGES: Final = ("README.md", "README.zh.md")
_BLOCK: Final = re.compile(
    r"^```.*?^```$|(?:^    [^\n]*\n(?:\n(?=    ))*)+", re.DOTALL | re.MULTILINE
)


def blocks(text: str) -> list[str]:
    """Code and commands, fenced and indented, and the picture's file names."""
    return _BLOCK.findall(text)


def headings(text: str) -> list[int]:
    """The levels of headings, in order."""
    return [len(marks) for marks in re.findall(r"^(#+) ", _BLOCK.sub("", text), re.MULTILINE)]


def links(text: str) -> list[str]:
    """Where links and pictures lead, but for those from one page to the other."""
    found = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    return sorted(target for pair in found for target in pair if target and target not in PAGES)


def spans(text: str) -> list[str]:
    """Code within sentences."""
    return sorted(re.findall(r"`[^`\n]+`", _BLOCK.sub("", text)))


def figures(text: str) -> list[list[str]]:
    """The numbers in each row of tables."""
    rows = re.findall(r"^\| *(.*) \|$", text, re.MULTILINE)
    return [sorted(re.findall(r"\d[\d.,]*\d|\d", row)) for row in rows]


def items(text: str) -> int:
    """How many points lists have."""
    return len(re.findall(r"^- ", text, re.MULTILINE))


@pytest.mark.parametrize("part", [blocks, headings, links, spans, figures, items])
def test_both_languages_have_the_same(part: Callable[[str], object]) -> None:
    english, chinese = (part((ROOT / page).read_text("utf-8")) for page in PAGES)
    assert english
    assert chinese == english


def test_each_leads_to_the_other_at_its_top() -> None:
    for page, other in (PAGES, PAGES[::-1]):
        top = (ROOT / page).read_text("utf-8").splitlines()[:3]
        assert f"]({other})" in top[-1]
