"""An exception as text, as `traceback.format_exception` writes it, and cheap when it recurs.

Python compiles the line of each frame to mark the part that raised, which takes longer than a small
job. When a service is down, many thousand jobs raise at the same line. The text of a frame depends
on its code and its instruction alone, so it is made once.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType
from typing import Final

_MOST_FRAMES: Final = 1_000
"""Frames whose text is kept."""

_DEEP: Final = 50
"""Frames above which `traceback` is asked: it writes frames that repeat once."""

_WITH_HINTS: Final = (AttributeError, ImportError, NameError, SyntaxError)
"""Errors to which `traceback` adds hints, which depend on more than the message."""

_frames: Final[dict[tuple[int, int], tuple[CodeType, str]]] = {}


def format_error(error: BaseException) -> str:
    """An exception with its traceback, and with those that it came from."""
    if (
        isinstance(error, BaseExceptionGroup)
        or error.__cause__ is not None
        or (error.__context__ is not None and not error.__suppress_context__)
    ):
        return "".join(traceback.format_exception(error))
    frames = []
    at = error.__traceback__
    while at is not None:
        frames.append(_frame(at))
        at = at.tb_next
    if len(frames) > _DEEP:
        return "".join(traceback.format_exception(error))
    head = "Traceback (most recent call last):\n" if frames else ""
    return f"{head}{''.join(frames)}{_message(error)}"


def _frame(at: TracebackType) -> str:
    code = at.tb_frame.f_code
    key = id(code), at.tb_lasti
    found = _frames.get(key)
    if found is not None and found[0] is code:
        return found[1]
    text = "".join(traceback.format_tb(at, limit=1))
    if len(_frames) >= _MOST_FRAMES:
        _frames.clear()
    _frames[key] = code, text
    return text


def _message(error: BaseException) -> str:
    kind = type(error)
    if isinstance(error, _WITH_HINTS) or getattr(error, "__notes__", None):
        return "".join(traceback.format_exception_only(error))
    name = kind.__qualname__
    if kind.__module__ not in ("__main__", "builtins"):
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except Exception:
        return "".join(traceback.format_exception_only(error))
    return f"{name}: {message}\n" if message else f"{name}\n"
