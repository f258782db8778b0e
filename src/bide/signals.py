"""Hearing the signals that ask a process to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def heard(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have a handler called on SIGINT and SIGTERM, for as long as the context lasts.

    Outside of the main thread, where Python hears no signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(number, handler) for number in STOPS]
    try:
        yield
    finally:
        for number, handler_before in zip(STOPS, before, strict=True):
            signal.signal(number, handler_before)
