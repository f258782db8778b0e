"""Which failures are of one kind: numbers, and what is quoted, may differ within it."""

from __future__ import annotations

import re
from typing import Final

from bide.logs import printable
from bide.payload.codec import ErrorInfo

_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")
_QUOTED: Final = re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"")
_LONGEST: Final = 200


def first_line(error: ErrorInfo) -> str:
    """The message, as far as one line has room for it."""
    return error.message.partition("\n")[0][:_LONGEST]


def kind_of(error: ErrorInfo | None) -> str:
    """The same text for all failures of a kind, such as `ValueError: no order #`."""
    if error is None:
        return "(no error was kept)"
    message = _NUMBER.sub("#", _QUOTED.sub("'…'", first_line(error)))
    # It goes through addresses and forms, which neither blanks at the ends nor controls survive.
    return printable(f"{error.type}: {message}" if message.strip() else error.type).strip()
