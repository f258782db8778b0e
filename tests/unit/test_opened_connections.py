"""A warning about an unclosed connection says where it was opened."""

from __future__ import annotations

import gc
import socket
import sys
import warnings
from typing import Any

import pytest

from tests.support.opened_connections import OpenedConnections


class Connection:
    """Warns as psycopg's do."""

    def __del__(self) -> None:
        warnings.warn(f"{object.__repr__(self)} was deleted.", ResourceWarning, stacklevel=2)


def open_and_forget(kind: type[Any]) -> None:
    """Leave a connection that only the garbage collector can free."""
    cycle: list[Any] = [kind()]
    cycle.append(cycle)


@pytest.mark.parametrize("kind", [socket.socket, Connection])
def test_who_opened_it_stands_in_the_warning(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: told.append(given.exc_value))
    for each in (socket.socket, Connection):
        monkeypatch.setattr(each, "__init__", each.__init__)
    opened = OpenedConnections()
    opened.install()
    opened.note_each(Connection)
    open_and_forget(kind)
    gc.collect()
    (warning,) = told
    (note,) = warning.__notes__
    assert "test_who_opened_it_stands_in_the_warning" in note.splitlines()[0]
    assert "in open_and_forget" in note


def test_other_warnings_stay_as_they_are() -> None:
    opened = OpenedConnections()
    opened.note("fd=7")
    warning = ResourceWarning("unclosed event loop <loop fd=8>")
    opened.explain(warning)
    assert not hasattr(warning, "__notes__")
