"""Ids of jobs, which clients create and which sort by creation; checks of names; names of modules.

An id has 100 bits in 20 characters, in an alphabet whose letters sort by value: eleven letters of
time since 1970, in eighths of a microsecond, and nine random letters. Jobs with the same due time
run in the order of their ids, so the jobs of one process run in the order of their enqueues. An
enqueue that is retried after a connection error has the same id, and takes effect only once.

Neither server stores such an id in fewer bytes than 20 characters. The 36 characters of a UUID
would cost 32 to 47 bytes more per job (`docs/decisions/0001-key-layout.md`).

A task that the main program defines is in the module `__main__`, which no worker can import. A
worker imports the file of the program as a module instead, so stored names contain that module. A
file of a package is imported from the directory above the topmost `__init__.py`.
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
"""Maximum bytes of an id, a queue name or a prefix that a caller chooses."""

LONGEST_TASK: Final = 256
"""Maximum characters of a task's name."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]
_UNIT_NS: Final = 125
_RANDOM_LETTERS: Final = 9
_DRAW_AHEAD: Final = 128
_IS_MADE: Final = re.compile(f"[{_ALPHABET}]*").fullmatch
_EARLIEST_US: Final = 1_735_689_600_000_000
"""The start of 2025, before the first release."""
_DAY_US: Final = 86_400_000_000
"""Maximum time by which the clock of another program may be ahead."""
_LETTERS: Final = (_ALPHABET * 8).encode()
"""A letter for each byte: each letter has the same number of bytes, and so the same probability."""

_lock = threading.RLock()  # a signal handler may create an id, too
_last = 0
"""The time in the latest id."""
_drawn: list[str] = []
"""The random parts of the next ids: one system call for many is as quick as for one."""
_drawn_by = 0
"""The process that drew them: a forked child must draw its own."""


def _begin_child() -> None:
    """Replace the lock, which a thread of the parent may hold."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_begin_child)


def new_id() -> str:
    """Return a new id, which sorts after all earlier ids of this process."""
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
        except IndexError:  # a signal handler may have taken the last one
            fresh = _draw()
            end = fresh.pop()
            _drawn = fresh
    beginning = f"{_ALPHABET[at >> 50]}{_PAIRS[at >> 40 & 1023]}{_PAIRS[at >> 30 & 1023]}"
    return f"{beginning}{_PAIRS[at >> 20 & 1023]}{_PAIRS[at >> 10 & 1023]}{_PAIRS[at & 1023]}{end}"


def _draw() -> list[str]:
    text = os.urandom(_DRAW_AHEAD * _RANDOM_LETTERS).translate(_LETTERS).decode()
    return [text[i : i + _RANDOM_LETTERS] for i in range(0, len(text), _RANDOM_LETTERS)]


def made_us(id: str) -> int | None:
    """Return when `new_id` created an id, by the clock of its program; None for other ids.

    An id that a caller has chosen may consist of the same letters. It counts as an id of `new_id`
    only if its time is plausible.
    """
    if len(id) != ID_LENGTH or not _IS_MADE(id):
        return None
    at = 0
    for letter in id[: ID_LENGTH - _RANDOM_LETTERS]:
        at = at << 5 | _ALPHABET.index(letter)
    us = at * _UNIT_NS // 1000
    return us if _EARLIEST_US <= us <= time.time() * 1e6 + _DAY_US else None


def short_id(id: str) -> str:
    """Shorten an id for people: another program may have written one of any length."""
    return id if len(id) <= LONGEST else f"{id[:LONGEST]}…"


def is_name(name: str) -> bool:
    """Whether a stored name is valid as a name that a caller chooses."""
    try:
        check_name(name, "name")
    except (UsageError, UnicodeEncodeError):  # a name that is not UTF-8
        return False
    return True


def check_name(name: str, what: str) -> str:
    """Return `name` if it can be part of a key: printable, short, without spaces or braces."""
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
"""The names of the main module; the second is its name in `multiprocessing` processes."""


class Program(NamedTuple):
    """A module and its directory."""

    module: str
    """The name; it can be imported only if each part is an identifier."""
    root: str
    """The directory from which it is imported."""


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
    """Return the module from which a worker can import a function or a class; otherwise None.

    The result is None for a class or a function that was typed into a shell, even if the shell has
    run the program's file, and for a file that cannot be imported.
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
