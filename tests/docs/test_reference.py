"""The reference is what the docstrings make, has all public names, and can be linked to."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from typing import Final

import pytest

from tests.docs import lists
from tests.docs.pages import ROOT

FOLDER: Final = ROOT / "docs" / "reference"
MODULES: Final = ("bide", "bide.contrib.django", "bide.contrib.otel", "bide.contrib.rq")
OTHERS: Final = {
    "bide.embedded": {"Server", "ServerError", "ServerNotFound", "find_server"},
    "bide.logs": {"JobFilter", "setup"},
    "bide.queue": {"AsyncEventListener", "AsyncEvents", "EventListener", "Events"},
}
"""Modules with names that are only bide's own, and those that are public."""


@pytest.mark.skipif(find_spec("griffe") is None, reason="it needs griffe: pip install --group docs")
def test_the_pages_are_what_the_docstrings_make() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_reference.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", [*MODULES, "bide.testing", "bide.web", *OTHERS])
def test_every_public_name_has_a_heading(module: str) -> None:
    try:
        public = OTHERS.get(module) or {*lists.exported(importlib.import_module(module))}
    except ImportError as error:
        pytest.skip(str(error))
    shown = {
        name
        for page in FOLDER.glob("*.md")
        for words in re.findall(r"^<!-- generated: (.*) -->$", page.read_text("utf-8"), re.M)
        for name in words.split()
    }
    assert {f"{module}.{name}" for name in public if not name.startswith("__")} <= shown
    # what a region names, it shows: the script fails on any other name


def test_each_heading_of_a_page_has_an_anchor_of_its_own() -> None:
    for page in FOLDER.glob("*.md"):
        titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
        anchors = Counter(re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
        assert not [title for title, count in anchors.items() if count > 1], page
