"""What a job asks for beside its due time, as the server has it: `lua/include/constraints.lua`."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import unquote

from bide.errors import UsageError
from bide.model.durations import Duration, at_to_us, is_whole, to_us
from bide.model.ids import check_name

MOST_AT_ONCE: Final = 10_000
"""Jobs of a group."""

_WORD: Final = re.compile(r"(\w)=(\S+)")
_DIGITS: Final = 16

Effect = Literal["met", "run", "cancel"]

RunIf = Literal["completed", "ended", "failed"]
"""How the parents of a job must end for it to run."""

_RUN_IF: Final[dict[str, RunIf]] = {"-": "completed", "-e": "ended", "-f": "failed"}
_LETTERS: Final = {run_if: f"d={letters}" for letters, run_if in _RUN_IF.items()}


class Constraints(NamedTuple):
    """The constraints of a job."""

    begins_within_us: int | None = None
    """Microseconds after its due time, at which it expires if it has not started."""
    begins_by_us: int | None = None
    """When it expires if it has not started, in microseconds since the epoch."""
    expired_us: int | None = None
    """When it expired, in microseconds since the epoch."""
    group: str | None = None
    """Its group."""
    key: str | None = None
    """Its task and the key by which calls are deduplicated."""
    dedup: str | None = None
    """The dedup policy: a word that `bide.model.dedup.describe_dedup` reads."""
    when: str = ""
    """For a job with parents: its delay after they ended, or a moment."""
    priority: int | None = None
    """For a job with parents."""
    run_if: RunIf = "completed"
    """For a job with parents."""
    cause: str | None = None
    """The parent because of whose end it was cancelled."""

    @classmethod
    def read(cls, line: bytes | None) -> Constraints:
        """Parse the stored line; unreadable words are ignored."""
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
            _RUN_IF.get(words.get("d", ""), "completed"),
            words.get("c"),
        )

    @property
    def batches(self) -> bool:
        """Whether its body holds the items of a batch."""
        return (self.dedup or "").startswith("g")

    def effect(self, outcome: str) -> Effect:
        """Return the effect of a parent's end, `C`, `F` or `X`, like `lua/include/deps.lua`."""
        if outcome == "C" or self.run_if == "ended":
            return "met"
        return "run" if self.run_if == "failed" else "cancel"

    def due_us(self, now_us: int) -> int:
        """Return when a job with parents would be due if they ended now."""
        us = _number(self.when[1:]) or 0
        return now_us + us if self.when[:1] == "+" else max(us, now_us)

    def expires_us(self, due_us: int) -> int | None:
        """Return when a job with this due time expires; None if it does not expire."""
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
    run_if: RunIf | None = None,
) -> str:
    """Encode constraints as the stored line; empty if there are none.

    `usual_concurrency` is the default of `group_concurrency`. `dedup` comes from
    `bide.model.dedup.write_dedup`. `run_if` is only for a job that `waits` for parents.
    """
    words = [_expires(expires), _group(group, group_concurrency, usual_concurrency), dedup]
    if waits:
        check_apart(dedup, waits)
        if run_if not in (None, *get_args(RunIf)):
            raise UsageError(f"run_if must be 'completed', 'ended' or 'failed', not {run_if!r}.")
        words.append(_LETTERS[run_if or "completed"])
    elif run_if is not None:
        raise UsageError(
            f"run_if={run_if!r} has no effect on a job without parents; name them with "
            "depends_on=[...]."
        )
    return " ".join(word for word in words if word)


def check_concurrency(count: int) -> int:
    """Check the concurrency of a group: an integer from 1 to 10,000."""
    if not is_whole(count, 1, MOST_AT_ONCE):
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


def has_dedup(constraints: str) -> bool:
    """Whether a job with these constraints may be deduplicated."""
    return " f=" in constraints


def check_apart(constraints: str, waits: bool) -> None:
    """Refuse a job that has parents and a dedup policy."""
    if waits and has_dedup(constraints):
        raise UsageError(
            "A job that waits for others cannot be deduplicated; leave unique= or depends_on= "
            "out, or have it enqueue the job with unique=."
        )


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
