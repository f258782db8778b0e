r"""The body of a job that gathers: the bodies of its calls, one behind the other.

Each is one byte that no other body begins with, its length in digits, a newline, and the body as
its client sent it, with its signature if it has one:

    \x06 38\n{"task":"app.tasks:index","args":[42]} ...     (without the space)

So a script appends a call without looking into it, and each call is signed by itself.
"""

from __future__ import annotations

import re
from typing import Final

from bide.errors import PayloadError

MARK: Final = b"\x06"
"""`lua/include/fold.lua` has it too."""

_HEAD: Final = re.compile(rb"\x06([0-9]{1,9})\n")


def is_gathered(body: bytes) -> bool:
    """Whether a stored body holds those of several calls."""
    return body[:1] == MARK


def framed(body: bytes) -> bytes:
    """A body as one of several."""
    return MARK + b"%d\n" % len(body) + body


def calls_in(body: bytes) -> list[bytes]:
    """The bodies of the calls, in their order of arrival; at least one.

    Raises:
        PayloadError: it is not what a script has put together.
    """
    found: list[bytes] = []
    at = 0
    while at < len(body):
        head = _HEAD.match(body, at)
        end = head.end() + int(head[1]) if head else 0
        if head is None or end > len(body):
            raise PayloadError(
                "The stored body of gathered calls is cut off or spoilt; delete the job, and find "
                "out who can write to the server."
            )
        found.append(body[head.end() : end])
        at = end
    return found
