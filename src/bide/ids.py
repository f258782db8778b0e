"""Job ids: made by the client, sortable by creation.

An id is 100 bits in 20 characters: 52 bits of microseconds since 1970, then 48 random bits, in an
alphabet whose letters sort as their values do. Jobs due at one instant run in id order, so what
one process enqueues first runs first; and an enqueue repeated after a broken connection carries
the same id, finds itself and changes nothing.

Twenty characters because neither server stores an id of this kind in less; the 36 of a UUID would
cost 32 to 47 bytes more per job (`docs/decisions/0001-key-layout.md`).
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from typing import Final

from bide.errors import UsageError

ID_LENGTH: Final = 20
LONGEST: Final = 128
"""The longest id, queue name or prefix that a caller may choose, in bytes."""

LONGEST_TASK: Final = 256
"""The longest name of a task, in characters."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
_DRAWN: Final = 128
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]

_lock = threading.RLock()  # a signal's handler may make an id, too
_last_us = 0
_drawn: list[int] = []
"""Random numbers for the next ids: it takes as long to ask the system for one as for many."""
_drawn_by = 0
"""The process that drew them: a child, by whomever it was forked, is to draw others."""


def _begin_child() -> None:
    """Have a lock that no thread of the parent holds."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_begin_child)


def new_id() -> str:
    """Make an id that sorts after every id made before it in this process."""
    global _last_us, _drawn, _drawn_by
    with _lock:
        us = time.time_ns() // 1000
        if us <= _last_us:
            us = _last_us + 1
        _last_us = us
        if _drawn_by != os.getpid():
            _drawn, _drawn_by = [], os.getpid()
        try:
            random = _drawn.pop() >> 16
        except IndexError:  # maybe a handler took the last
            fresh = [*array("Q", os.urandom(_DRAWN * 8))]
            random = fresh.pop() >> 16
            _drawn = fresh
    # In two halves of fifty bits, each of which is a small number to the machine.
    head, tail = us >> 2, (us & 3) << 48 | random
    p = _PAIRS
    return (
        f"{p[head >> 40]}{p[head >> 30 & 1023]}{p[head >> 20 & 1023]}{p[head >> 10 & 1023]}"
        f"{p[head & 1023]}{p[tail >> 40]}{p[tail >> 30 & 1023]}{p[tail >> 20 & 1023]}"
        f"{p[tail >> 10 & 1023]}{p[tail & 1023]}"
    )


def is_name(name: str) -> bool:
    """Whether a name that was read could have been chosen by a caller."""
    try:
        check_name(name, "name")
    except (UsageError, UnicodeEncodeError):  # of which one is not UTF-8
        return False
    return True


def check_name(name: str, what: str) -> str:
    """Return `name` if it can be part of a key: printable, without spaces or braces, not long.

    Raises:
        UsageError: it is not; the message says why.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"{what} must be a non-empty string, not {name!r}.")
    if not name.isprintable() or any(c in "{} " for c in name):
        raise UsageError(
            f"{what} {name[:LONGEST]!r} holds a brace, a space or a control character; "
            "use letters, digits and '-_.:/'."
        )
    if len(name.encode()) > LONGEST:
        raise UsageError(f"{what} is longer than {LONGEST} bytes: {name[:40]!r}...")
    return name
