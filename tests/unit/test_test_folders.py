"""A folder of tests stands alone: what several folders use is in `tests/support`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
SHARED = {"support", "conftest"}


def imported(path: Path) -> Iterator[str]:
    """The folders of tests that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests"):
            names = [node.module] if "." in node.module else [f"tests.{n.name}" for n in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("tests.")]
        else:
            names = []
        yield from (name.split(".")[1] for name in names)


def test_no_folder_imports_what_belongs_to_another() -> None:
    found = {
        (str(path.relative_to(TESTS)), folder)
        for path in TESTS.glob("*/**/*.py")
        for folder in imported(path)
        if folder not in SHARED | {path.relative_to(TESTS).parts[0]}
    }
    assert found == set()
