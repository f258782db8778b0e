"""Which failures are of one kind: numbers, and what is quoted, may differ within it."""

from __future__ import annotations

import re
from typing import Final

from bide.logs import printable
from bide.payload.codec import ErrorInfo

_NUMBER: Final = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\d+"  # a UUID is one
)
_QUOTED: Final = re.compile(r"(?<!\w)'(?:[^']|'(?=\w))*'|\"[^\"]*\"")
"""An apostrophe within a word is no quote."""
_LONGEST: Final = 200
_READ: Final = 1_000
"""Characters of a line that are compared; what is quoted is often longer than what is shown."""


def first_line(error: ErrorInfo) -> str:
    """The message, as far as one line has room for it."""
    return _line(error)[:_LONGEST]


def _line(error: ErrorInfo) -> str:
    return error.message[:_READ].partition("\n")[0]


def kind_of(error: ErrorInfo | None) -> str:
    """The same text for all failures of a kind, such as `ValueError: no order #`."""
    if error is None:
        return "(no error was kept)"
    message = _NUMBER.sub("#", _QUOTED.sub("'…'", _line(error)))[:_LONGEST]
    # It goes through addresses and forms, which neither blanks at the ends nor controls survive.
    return printable(f"{error.type}: {message}" if message.strip() else error.type).strip()
