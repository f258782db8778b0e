"""What is asked of a job beside its due time, as the server keeps it (`lua/include/term.lua`)."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from bide.clock import Duration, at_to_us, to_us
from bide.errors import UsageError

_WORD: Final = re.compile(r"(\w)=(\S+)")
_DIGITS: Final = 16

Effect = Literal["met", "run", "cancel"]

OnParentCancel = Literal["cancel", "run"]
"""What becomes of a job when one that it waits for is cancelled."""


class Terms(NamedTuple):
    """The terms of a job, as they were read."""

    begins_within_us: int | None = None
    """It begins within so many microseconds of its due time, or never."""
    begins_by_us: int | None = None
    """It begins by then, or never."""
    expired_us: int | None = None
    """It did not, and was cancelled then."""
    when: str = ""
    """Of one that waits for others: when it is due, counted from when it is freed, or a moment."""
    priority: int | None = None
    """Of one that waits for others."""
    dependence: str = ""
    """Of one that waits for others: what their ends mean to it."""
    cause: str | None = None
    """It was cancelled because this job, that it waited for, did not end as it should have."""

    @classmethod
    def read(cls, line: bytes | None) -> Terms:
        """Parse what is stored; what cannot be read, or nothing, asks nothing."""
        words = dict(_WORD.findall((line or b"").decode("utf-8", "surrogateescape")))
        expires = words.get("x", "")
        return cls(
            _number(expires[1:]) if expires[:1] == "+" else None,
            _number(expires[1:]) if expires[:1] == "@" else None,
            _number(words.get("e", "")),
            words.get("w", ""),
            _number(words.get("p", "")),
            words.get("d", ""),
            words.get("c"),
        )

    def effect(self, outcome: str) -> Effect:
        """What a parent's end means, as `effect` of `lua/include/depend.lua` has it.

        Args:
            outcome: `C` for completed, `F` for failed, `X` for cancelled.
        """
        if outcome == "C":
            return "met"
        is_alarm = "a" in self.dependence
        if outcome == "X":
            if "c" not in self.dependence:
                return "cancel"
            return "run" if is_alarm else "met"
        if is_alarm:
            return "run"
        return "met" if "f" in self.dependence else "cancel"

    def due_us(self, now_us: int) -> int:
        """When a job that waits for others would be due if it were freed now."""
        us = _number(self.when[1:]) or 0
        return now_us + us if self.when[:1] == "+" else max(us, now_us)

    def expires_us(self, due_us: int) -> int | None:
        """By when a job that is due then must have begun; None where that does not matter."""
        if self.begins_within_us is not None:
            return due_us + self.begins_within_us
        return self.begins_by_us


def write_terms(
    expires: Duration | datetime | None = None,
    waits: bool = False,
    allow_failure: bool | None = None,
    if_failed: bool | None = None,
    on_parent_cancel: OnParentCancel | None = None,
) -> str:
    """The line that says what is asked; empty where nothing is.

    Args:
        expires: by when it must have begun.
        waits: whether it waits for others. Only then may the others be given.
        allow_failure: it runs also if one of them fails.
        if_failed: it runs only if one of them fails.
        on_parent_cancel: what becomes of it if one of them is cancelled.

    Raises:
        UsageError: an option cannot be meant.
    """
    words = [_expiry(expires)] if expires is not None else []
    if waits:
        words.append(_dependence(allow_failure, if_failed, on_parent_cancel))
    elif (allow_failure, if_failed, on_parent_cancel) != (None, None, None):
        raise UsageError(
            "allow_failure=, if_failed= and on_parent_cancel= say what a job's parents mean to it; "
            "name these with depends_on=[...]."
        )
    return " ".join(words)


def _dependence(
    allow_failure: bool | None, if_failed: bool | None, on_parent_cancel: OnParentCancel | None
) -> str:
    if on_parent_cancel not in (None, "cancel", "run"):
        raise UsageError(f"on_parent_cancel must be 'cancel' or 'run', not {on_parent_cancel!r}.")
    for name, value in (("allow_failure", allow_failure), ("if_failed", if_failed)):
        if value not in (None, True, False):
            raise UsageError(f"{name} must be True or False, not {value!r}.")
    if allow_failure and if_failed:
        raise UsageError(
            "A job runs either also if a parent fails (allow_failure=True) or only then "
            "(if_failed=True); give one of them."
        )
    letters = [
        "f" if allow_failure else "",
        "a" if if_failed else "",
        "c" if on_parent_cancel == "run" else "",
    ]
    return "d=-" + "".join(letters)


def _expiry(expires: Duration | datetime) -> str:
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
