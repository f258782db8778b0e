"""Ids of jobs, made by the client and sortable by creation; names, also those of modules.

An id is 100 bits in 20 characters, in an alphabet whose letters sort as their values do: eleven
letters of time since 1970, in eighths of a microsecond, and nine that are random. Jobs due at one
instant run in id order, so what one process enqueues first runs first; and an enqueue repeated
after a broken connection carries the same id, finds itself and changes nothing.

Twenty characters because neither server stores an id of this kind in less; the 36 of a UUID would
cost 32 to 47 bytes more per job (`docs/decisions/0001-key-layout.md`).

A task that a program defines itself is in the module `__main__`, which no worker can import. A
worker imports the program's file as a module instead, so names that are stored name that module.
Its name is the one that `import` would need: a file of a package is imported from the directory
above the topmost `__init__.py`.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from typing import Any, Final, NamedTuple

from bide.errors import UsageError

ID_LENGTH: Final = 20
LONGEST: Final = 128
"""The longest id, queue name or prefix that a caller may choose, in bytes."""

LONGEST_TASK: Final = 256
"""The longest name of a task, in characters."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]
_UNIT_NS: Final = 125
_RANDOM_LETTERS: Final = 9
_DRAW_AHEAD: Final = 128
_IS_MADE: Final = re.compile(f"[{_ALPHABET}]*").fullmatch
_EARLIEST_US: Final = 1_735_689_600_000_000
"""The year 2025: before the first release."""
_DAY_US: Final = 86_400_000_000
"""How far the clock of another program may be ahead."""
_LETTERS: Final = (_ALPHABET * 8).encode()
"""A letter for each byte: as many bytes for each, so that all are as likely."""

_lock = threading.RLock()  # a signal's handler may make an id, too
_last = 0
"""The time in the id that was made last."""
_drawn: list[str] = []
"""The random ends of the next ids: it takes as long to ask the system for one as for many."""
_drawn_by = 0
"""The process that drew them: a forked child must draw others."""


def _begin_child() -> None:
    """Have a lock that no thread of the parent holds."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_begin_child)


def new_id() -> str:
    """Make an id that sorts after every id made before it in this process."""
    global _last, _drawn, _drawn_by
    with _lock:
        at = time.time_ns() // _UNIT_NS
        if at <= _last:
            at = _last + 1
        _last = at
        if _drawn_by != os.getpid():
            _drawn, _drawn_by = [], os.getpid()
        try:
            end = _drawn.pop()
        except IndexError:  # maybe a handler took the last
            fresh = _draw()
            end = fresh.pop()
            _drawn = fresh
    beginning = f"{_ALPHABET[at >> 50]}{_PAIRS[at >> 40 & 1023]}{_PAIRS[at >> 30 & 1023]}"
    return f"{beginning}{_PAIRS[at >> 20 & 1023]}{_PAIRS[at >> 10 & 1023]}{_PAIRS[at & 1023]}{end}"


def _draw() -> list[str]:
    text = os.urandom(_DRAW_AHEAD * _RANDOM_LETTERS).translate(_LETTERS).decode()
    return [text[i : i + _RANDOM_LETTERS] for i in range(0, len(text), _RANDOM_LETTERS)]


def made_us(id: str) -> int | None:
    """When `new_id` made an id, by the clock of the program that called it; None for other ids.

    An id of a caller's own may consist of the same letters. It is taken for one of these only if
    its time is plausible.
    """
    if len(id) != ID_LENGTH or not _IS_MADE(id):
        return None
    at = 0
    for letter in id[: ID_LENGTH - _RANDOM_LETTERS]:
        at = at << 5 | _ALPHABET.index(letter)
    us = at * _UNIT_NS // 1000
    return us if _EARLIEST_US <= us <= time.time() * 1e6 + _DAY_US else None


def short_id(id: str) -> str:
    """An id as people see it: another program may have written one of any length."""
    return id if len(id) <= LONGEST else f"{id[:LONGEST]}…"


def is_name(name: str) -> bool:
    """Whether a name that was read could have been chosen by a caller."""
    try:
        check_name(name, "name")
    except (UsageError, UnicodeEncodeError):  # of which one is not UTF-8
        return False
    return True


def check_name(name: str, what: str) -> str:
    """Return `name` if it can be part of a key: printable, without spaces or braces, not long."""
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


MAIN: Final = ("__main__", "__mp_main__")
"""The module of a program; the second is its name in processes of `multiprocessing`."""


class Program(NamedTuple):
    """A module, and where it is."""

    module: str
    """Its name; each part should be an identifier, or it cannot be imported."""
    root: str
    """The directory that it is imported from."""


def program_of(file: str) -> Program:
    """Return the module of a Python file."""
    root, name = os.path.split(os.path.realpath(file))
    stem = name.removesuffix(".py")
    names = [] if stem == "__init__" else [stem]
    while os.path.exists(os.path.join(root, "__init__.py")) and root != os.path.dirname(root):
        root, package = os.path.split(root)
        names.insert(0, package)
    return Program(".".join(names), root)


def module_of(defined: Any) -> str | None:
    """Return the module from which a worker imports a function or a class; None if there is none.

    None for a class or a function that was typed, also in a shell that has run the program's file,
    and if the file cannot be imported.
    """
    name: str | None = getattr(defined, "__module__", None)
    if name not in MAIN:
        return name
    program = sys.modules.get(name)
    file: str | None = getattr(program, "__file__", None)
    if file is None or not file.endswith(".py"):
        return None
    code = getattr(defined, "__code__", None)
    if code is not None and os.path.realpath(code.co_filename) != os.path.realpath(file):
        return None
    spec = getattr(program, "__spec__", None)
    module: str = program_of(file).module if spec is None else spec.name
    *_, last = parts = module.split(".")
    return module if last != "__main__" and all(part.isidentifier() for part in parts) else None
