"""What is asked of a job beside its due time, as the server keeps it (`lua/include/term.lua`)."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

from bide.errors import UsageError
from bide.model.durations import Duration, at_to_us, to_us
from bide.model.ids import check_name

MOST_AT_ONCE: Final = 10_000
"""Jobs of a group."""

_WORD: Final = re.compile(r"(\w)=(\S+)")
_DIGITS: Final = 16

Effect = Literal["met", "run", "cancel"]

OnParentCancel = Literal["cancel", "run"]
"""What becomes of a job when one that it waits for is cancelled."""


class Constraints(NamedTuple):
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
    """How they do: a word that `bide.model.dedup.describe_dedup` reads."""
    when: str = ""
    """Of one that waits for others: when it is due, counted from when it is freed, or a moment."""
    priority: int | None = None
    """Of one that waits for others."""
    dependence: str = ""
    """Of one that waits for others: what their ends mean to it."""
    cause: str | None = None
    """It was cancelled because this job, that it waited for, did not end as it should have."""

    @classmethod
    def read(cls, line: bytes | None) -> Constraints:
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
            words.get("w", ""),
            _number(words.get("p", "")),
            words.get("d", ""),
            words.get("c"),
        )

    @property
    def batches(self) -> bool:
        """Whether its body holds items."""
        return (self.folding or "").startswith("g")

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


def write_constraints(
    expires: Duration | datetime | None = None,
    group: str | None = None,
    group_concurrency: int | None = None,
    usual_concurrency: int | None = None,
    dedup: str = "",
    waits: bool = False,
    allow_failure: bool | None = None,
    if_failed: bool | None = None,
    on_parent_cancel: OnParentCancel | None = None,
) -> str:
    """The line that says what is asked; empty where nothing is.

    Args:
        expires: by when it must have begun.
        group: of which it is one of the jobs.
        group_concurrency: how many of these may run at once.
        usual_concurrency: the same, where that is not given.
        dedup: as `bide.model.dedup.write_dedup` says it. What waits for others has none.
        waits: whether it waits for others. Only then may the rest be given.
        allow_failure: it runs also if one of them fails.
        if_failed: it runs only if one of them fails.
        on_parent_cancel: what becomes of it if one of them is cancelled.

    Raises:
        UsageError: an option cannot be meant.
    """
    words = [_expires(expires), _group(group, group_concurrency, usual_concurrency), dedup]
    if waits:
        check_apart(dedup, waits)
        words.append(_dependence(allow_failure, if_failed, on_parent_cancel))
    elif (allow_failure, if_failed, on_parent_cancel) != (None, None, None):
        raise UsageError(
            "allow_failure=, if_failed= and on_parent_cancel= say what a job's parents mean to it; "
            "name these with depends_on=[...]."
        )
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


def has_dedup(terms: str) -> bool:
    """Whether a job with these terms may take the place of another, or another its."""
    return " f=" in terms


def check_apart(terms: str, waits: bool) -> None:
    """Refuse a job that waits for others and would fold into one that does not.

    Raises:
        UsageError: it is such a job.
    """
    if waits and has_dedup(terms):
        raise UsageError(
            "A job that waits for others cannot fold into another, nor another into it; have it "
            "enqueue the job with unique=, or leave that or depends_on= out."
        )


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
