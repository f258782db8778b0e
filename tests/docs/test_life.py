"""The life of a job as a page shows it, in a table and a picture, is the model's."""

from __future__ import annotations

import re
from itertools import product

from bide.model.job import TRANSITIONS
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "why" / "life-of-a-job.md"
PICTURE = ROOT / "docs" / "static" / "life-of-a-job.svg"


def _named(cell: str) -> set[str]:
    return {*re.findall(r"`(\w+)`", cell)}


def test_the_table_has_each_transition() -> None:
    _, _, table = PAGE.read_text("utf-8").partition("| verb | from | to |")
    rows = re.findall(r"^\| `(\w+)` \|([^|]+)\|([^|]+)\|", table, re.MULTILINE)
    shown = {verb: (_named(starts), _named(ends)) for verb, starts, ends in rows}
    assert shown == {verb: ({*starts}, {*ends}) for verb, (starts, ends) in TRANSITIONS.items()}


def test_the_picture_has_an_arrow_for_each_transition() -> None:
    drawn = re.findall(r'data-moves="([^"]+)"', PICTURE.read_text("utf-8"))
    moves = [move for arrow in drawn for move in arrow.split()]
    assert sorted(moves) == sorted(
        f"{verb}:{start}>{end}"
        for verb, (starts, ends) in TRANSITIONS.items()
        for start, end in product(starts, ends)
    )


def test_each_arrow_says_its_verbs() -> None:
    for moves, group in re.findall(r'data-moves="([^"]+)">(.*?)</g>', PICTURE.read_text("utf-8")):
        words = re.sub(r"<[^>]+>", " ", group)
        if "asked to stop" not in words:  # which stands for all that end so
            assert {move.partition(":")[0] for move in moves.split()} <= {
                *re.findall(r"\w+", words)
            }
