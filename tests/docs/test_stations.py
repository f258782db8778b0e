"""The stations of a cancel are what the code has: each line names a file and a function in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import ROOT

PAGE: Final = ROOT / "docs" / "why" / "cancelling.md"
STATION: Final = re.compile(r"^ +(\d+)  (\S+\.(?:py|lua)) +(.+)$", re.MULTILINE)
STATIONS: Final = [(path, what) for _, path, what in STATION.findall(PAGE.read_text("utf-8"))]


def functions(path: Path) -> set[str]:
    """The functions of a module, and the methods of its classes."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        found |= {getattr(node, "name", "")}
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{getattr(each, 'name', '')}" for each in node.body}
    return found


@pytest.mark.parametrize(("path", "what"), STATIONS)
def test_each_station_is_a_function_of_its_file(path: str, what: str) -> None:
    file = ROOT / "src" / "bide" / path
    assert file.exists()
    assert file.suffix == ".lua" or what in functions(file)


def test_there_are_twelve_in_either_kind_of_executor() -> None:
    numbers = [int(number) for number, *_ in STATION.findall(PAGE.read_text("utf-8"))]
    assert numbers == [*range(1, 13), *range(9, 13)]
