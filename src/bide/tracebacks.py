"""An exception as text, as `traceback.format_exception` writes it, and cheap when it recurs.

Python compiles the line of each frame to mark the part that raised, which takes longer than a small
job. When a service is down, many thousand jobs raise at the same lines. The text of a frame depends
on its code and its instruction alone, so it is made once.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType
from typing import Final

_MOST_FRAMES: Final = 1_000
"""Frames whose text is kept."""

_DEEP: Final = 60
"""Frames above which `traceback` formats the exception."""

_REPEATS: Final = 3
"""Frames of one line in a row after which `traceback` counts the others instead."""

_CAUSE: Final = (
    "\nThe above exception was the direct cause of the following exception:\n\n",
    "\nDuring handling of the above exception, another exception occurred:\n\n",
)

_WITH_HINTS: Final = (AttributeError, ImportError, NameError, SyntaxError)
"""Errors to which `traceback` adds suggestions."""

LONGEST_TEXT: Final = 8_000
"""Characters of an exception that are kept, or logged."""

_frames: Final[dict[tuple[int, int], tuple[CodeType, str]]] = {}


def shown(error: BaseException) -> str:
    """Return the end of an exception's text, also if the exception cannot be formatted."""
    try:
        text = format_error(error)
    except BaseException as broken:
        return f"<no traceback: formatting it raised {type(broken).__name__}>"
    return end_of(text)


def end_of(text: str) -> str:
    """Return the last `LONGEST_TEXT` characters, and say if there were more."""
    return text if len(text) <= LONGEST_TEXT else "...\n" + text[-LONGEST_TEXT:]


def format_error(error: BaseException) -> str:
    """An exception with its traceback, and with those that it came from."""
    parts: list[str] = []
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None:
        frames = _frames_of(one)
        if frames is None or id(one) in seen or isinstance(one, BaseExceptionGroup):
            return "".join(traceback.format_exception(error))
        seen.add(id(one))
        head = "Traceback (most recent call last):\n" if frames else ""
        parts.append(f"{head}{''.join(frames)}{_message(one)}")
        if one.__cause__ is not None:
            one = one.__cause__
            parts.append(_CAUSE[0])
        elif one.__context__ is not None and not one.__suppress_context__:
            one = one.__context__
            parts.append(_CAUSE[1])
        else:
            one = None
    return "".join(reversed(parts))


def _frames_of(error: BaseException) -> list[str] | None:
    """The text of each frame; None for a deep or recursive traceback, which is shortened."""
    frames: list[str] = []
    at = error.__traceback__
    last: tuple[CodeType, int] | None = None
    repeats = 0
    while at is not None:
        where = at.tb_frame.f_code, at.tb_lineno
        repeats = repeats + 1 if where == last else 1
        if repeats > _REPEATS or len(frames) > _DEEP:
            return None
        last = where
        frames.append(_frame(at))
        at = at.tb_next
    return frames


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
    name, module = kind.__qualname__, kind.__module__
    if module not in ("__main__", "builtins"):
        name = f"{module if isinstance(module, str) else '<unknown>'}.{name}"
    try:
        message = str(error)
    except Exception:
        return "".join(traceback.format_exception_only(error))
    return f"{name}: {message}\n" if message else f"{name}\n"
