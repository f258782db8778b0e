"""A warning about an unclosed socket says where it was opened."""

from __future__ import annotations

import gc
import socket
import sys
from typing import Any

import pytest

from tests.support.opened_sockets import OpenedSockets


def open_and_forget() -> None:
    """Leave a socket that only the garbage collector can free."""
    cycle: list[Any] = [socket.socket()]
    cycle.append(cycle)


def test_who_opened_it_stands_in_the_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: warnings.append(given.exc_value))
    monkeypatch.setattr(socket.socket, "__init__", socket.socket.__init__)
    OpenedSockets().install()
    open_and_forget()
    gc.collect()
    (warning,) = warnings
    (note,) = warning.__notes__
    assert "test_who_opened_it_stands_in_the_warning" in note.splitlines()[0]
    assert "in open_and_forget" in note


def test_other_warnings_stay_as_they_are() -> None:
    sockets = OpenedSockets()
    with socket.socket() as one:
        sockets.note(one)
        warning = ResourceWarning(f"unclosed event loop <loop fd={one.fileno() + 1}>")
        sockets.explain(warning)
    assert not hasattr(warning, "__notes__")
