"""Checking that what the keys of a prefix hold agrees, and repairing it, in bounded steps.

A step looks at a piece of one key, and at all that is known of each job it meets there. Nothing
else happens while a script runs, so what a step finds is so, under whatever load; and what it
repairs, it repairs in the same script.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from bide.protocol.commands import Command, command, pieces, text
from bide.protocol.keys import LAYOUT, META, Keys

STEP: Final = 80
"""Entries that a step looks at, about."""

SCAN: Final = 1_000
"""Keys of the server that a step passes."""

BEGIN: Final = "0"
"""The cursor of a first step; and what the last one returns."""

JOBS: Final = tuple(
    (part, level)
    for part in (
        *("jobs", "due", "blocked", "active", "completed", "failed", "cancelled", "trash"),
        *("run", "results", "notes", "terms", "asked", "waiters"),
    )
    for level in (range(1, len(LAYOUT[part].fan) + 1) if LAYOUT[part].fan else (0,))
)
"""The keys that name jobs, in the order in which they are looked at: name, and which of several."""

GROUPS: Final = ("order", "held", "resting", "groups", "turns")
"""What there is to look at of groups, before jobs."""

BESIDE: Final = (
    *("meta", "wakeups", "events", "keep", "park", "listeners", "claims"),
    *("unique", "folded", "keys"),
)
"""What else there is to look at in a queue, after `TYPES`."""

SCHEDULES: Final = ("schedule", "schedules", "scheduled")
"""What there is of schedules, in the order in which it is looked at."""

TYPES: Final = "types"
"""If keys of a queue have other types, these must be repaired before anything else is read."""

TYPE: Final = "type"
"""The kind of a finding that is about a key of another type than it should have."""

_NUMBER: Final = r"^%d+$"
_ONE: Final = r"^1$"
FORMS: Final = dict.fromkeys(META, _NUMBER) | {
    "paused": _ONE,
    "own": _ONE,
    "large": _ONE,
    "terms": _ONE,
    "groups": _ONE,
    "side": _ONE,
    "edges": _ONE,
    "trash": _ONE,
    "scheduled": _ONE,
    "limited": _ONE,
    "rate": r"^[1-9]%d* [1-9]%d* [1-9]%d*$",
    "group_rate": r"^[1-9]%d* [1-9]%d* [1-9]%d*$",
    "declared_rate": r"^%d+ %d+ %d+$",
    "declared_group_rate": r"^%d+ %d+ %d+$",
    "declared_retention": r"^%d+ %d+ %d+ %d+ %d+ %d+ %d+$",
    "spent": r"^%d+ %d+ %d+$",
    "concurrency": r"^[1-9]%d*$",
    "gap_us": r"^-?%d+$",
    "rewinding": r"^%(%l %d+ %S+$",
    "retention": r"^%d+ %d+ %d+ %d+ %d+ %d+$",
    "listened": r"^%d+ %d+$",
    "kind": r"^data$",
    "purged": r"^%S+ %d+$",
}
"""Field of `meta` -> the pattern, in Lua's, of what it may hold."""


class Finding(NamedTuple):
    """Something that does not agree."""

    kind: str
    id: str
    """Of the job, worker, key or field that it is about; empty where there is but one."""
    says: str
    fix: str
    """The repair; empty if only a person can decide."""


class Step(NamedTuple):
    """What one step found."""

    cursor: str
    """The position to continue from; `BEGIN` at the end."""
    findings: list[Finding]


def look_at_jobs(keys: Keys, part: str, level: int, cursor: str, repair: bool) -> Command[Step]:
    """Look at a piece of one of the keys in `JOBS`."""
    return command("fsck_jobs", keys, (part, level, cursor, STEP, int(repair)), _read)


def look_beside(keys: Keys, part: str, cursor: str, repair: bool) -> Command[Step]:
    """Look at a piece of what else a queue holds: `TYPES`, or one of `BESIDE`."""
    limit = SCAN if part == "keys" else STEP
    forms = [word for form in FORMS.items() for word in form] if part == "meta" else []
    return command("fsck_queue", keys, (part, cursor, limit, int(repair), *forms), _read)


def look_at_groups(keys: Keys, part: str, cursor: str, repair: bool) -> Command[Step]:
    """Look at a piece of one of the keys in `GROUPS`."""
    return command("fsck_groups", keys, (part, cursor, STEP, int(repair)), _read)


def look_at_edges(keys: Keys, cursor: str, repair: bool) -> Command[Step]:
    """Look at a piece of what jobs wait for."""
    return command("fsck_edges", keys, (cursor, STEP, int(repair)), _read)


def look_at_schedules(keys: Keys, part: str, cursor: str, repair: bool) -> Command[Step]:
    """Look at a piece of one of `SCHEDULES`."""
    return command("fsck_schedules", keys, (part, cursor, STEP, int(repair)), _read)


def look_at_queues(keys: Keys, cursor: str, repair: bool) -> Command[Step]:
    """Look at a piece of the list of queues; `keys` are the global ones."""
    return command("fsck_queues", keys, (cursor, STEP, int(repair)), _read)


def look_at_workers(keys: Keys, cursor: str, repair: bool) -> Command[Step]:
    """Look at a piece of what workers said of themselves; `keys` are the global ones."""
    return command("fsck_workers", keys, (cursor, STEP, int(repair)), _read)


def _read(reply: list[Any]) -> Step:
    found = [Finding(*map(text, words)) for words in pieces(reply, 3, 4)]
    return Step(reply[2].decode(), found)
