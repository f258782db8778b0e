"""Tracebacks that begin in the application's code, not in the code of bide that called it."""

from __future__ import annotations

from types import TracebackType
from typing import Final

_OURS: Final = ("bide", "importlib")
"""Packages whose frames a traceback does not begin with."""

_BETWEEN: Final = ("asyncio", "concurrent", "contextlib", "threading", "uvloop")
"""Packages by which bide calls itself and the application. They may hold a task, too: their frames
are dropped only where others follow that are dropped, or the application's."""

_TASKS: Final = "bide.demo"
"""The package of bide that holds tasks: it counts as an application."""


def begin_in_application(error: BaseException) -> None:
    """Drop the frames of bide that the tracebacks of an error and of its causes begin with.

    A traceback that has no other frames stays as it is: it shows a defect of bide.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        trace = from_application(one.__traceback__)
        if trace is not None:  # not by assignment, which an exception may forbid
            BaseException.with_traceback(one, trace)
        chain += (one.__cause__, one.__context__)


def from_application(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the application's first frame on; None if it has no such frame."""
    left = trace
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package in _OURS and not module.startswith(_TASKS):
            left = trace.tb_next
        elif package not in _BETWEEN:
            return trace
        trace = trace.tb_next
    return left
