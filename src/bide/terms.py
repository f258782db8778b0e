"""What is asked of a job beside its due time, as the server keeps it (`lua/include/term.lua`)."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from bide.clock import Duration, at_to_us, to_us
from bide.errors import UsageError
from bide.ids import check_name

MOST_AT_ONCE: Final = 10_000
"""Jobs of a group."""

_WORD: Final = re.compile(r"(\w)=(\S+)")
_DIGITS: Final = 16


class Terms(NamedTuple):
    """The terms of a job, as they were read."""

    begins_within_us: int | None = None
    """It begins within so many microseconds of its due time, or never."""
    begins_by_us: int | None = None
    """It begins by then, or never."""
    expired_us: int | None = None
    """It did not, and was cancelled then."""
    group: str | None = None
    """Of which it is one of the jobs."""
    key: str | None = None
    """Its task, and the key under which calls fold into it."""
    folding: str | None = None
    """How they do: a word that `bide.folding.describe_folding` reads."""

    @classmethod
    def read(cls, line: bytes | None) -> Terms:
        """Parse what is stored; what cannot be read, or nothing, asks nothing."""
        words = dict(_WORD.findall((line or b"").decode("utf-8", "surrogateescape")))
        expires = words.get("x", "")
        return cls(
            _number(expires[1:]) if expires[:1] == "+" else None,
            _number(expires[1:]) if expires[:1] == "@" else None,
            _number(words.get("e", "")),
            words.get("g"),
            unquote(words["k"]) if "k" in words else None,
            words.get("f"),
        )

    @property
    def gathers(self) -> bool:
        """Whether its body holds items."""
        return (self.folding or "").startswith("g")

    def expires_us(self, due_us: int) -> int | None:
        """By when a job that is due then must have begun; None where that does not matter."""
        if self.begins_within_us is not None:
            return due_us + self.begins_within_us
        return self.begins_by_us


def write_terms(
    expires: Duration | datetime | None = None,
    group: str | None = None,
    group_concurrency: int | None = None,
    usual_concurrency: int | None = None,
    folding: str = "",
) -> str:
    """The line that says what is asked; empty where nothing is.

    `usual_concurrency` is what holds for jobs of a group where `group_concurrency` is not given;
    `folding` is as `bide.folding.write_folding` says it.

    Raises:
        UsageError: an option cannot be meant.
    """
    words = [_expires(expires), _group(group, group_concurrency, usual_concurrency), folding]
    return " ".join(word for word in words if word)


def check_concurrency(count: int) -> int:
    """How many jobs of a group may run at once.

    Raises:
        UsageError: that cannot be meant.
    """
    is_whole = isinstance(count, int) and not isinstance(count, bool)
    if not is_whole or not 1 <= count <= MOST_AT_ONCE:
        raise UsageError(
            f"A group's jobs run 1 to {MOST_AT_ONCE} at once, not {count!r}; give an integer."
        )
    return count


def _group(group: str | None, concurrency: int | None, usual: int | None) -> str:
    if group is None:
        if concurrency is not None:
            raise UsageError(
                f"group_concurrency={concurrency!r} is said of a group; name it with group=..., or "
                "limit the workers instead."
            )
        return ""
    word = f"g={check_name(group, 'group')}"
    concurrency = usual if concurrency is None else concurrency
    return word if concurrency is None else f"{word} n={check_concurrency(concurrency)}"


def folds(terms: str) -> bool:
    """Whether a job with these terms may take the place of another, or another its."""
    return " f=" in terms


def unfolded(terms: str) -> str:
    """The same without what `folds` asks for."""
    return re.sub(r"(^| )k=\S+ f=\S+", "", terms).strip()


def _expires(expires: Duration | datetime | None) -> str:
    if expires is None:
        return ""
    if isinstance(expires, datetime):
        return f"x=@{at_to_us(expires, 'expires')}"
    within_us = to_us(expires, "expires")
    if within_us <= 0:
        raise UsageError(
            f"expires={expires!r} would cancel the job before it is due; give a duration, counted "
            "from the due time, or an aware datetime."
        )
    return f"x=+{within_us}"


def _number(text: Any) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None
