"""Fixtures for tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.console import TASKS


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with a module of tasks, to stand in."""
    (tmp_path / "shop.py").write_text(TASKS)
    return tmp_path
