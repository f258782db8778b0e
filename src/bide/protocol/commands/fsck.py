"""Checks that the keys of a prefix are consistent, and repairs them, in limited steps.

A step reads a part of one key, and all data of each job in that part. Scripts are atomic, so the
findings of a step are exact under any load. A step also makes its repairs in the same script.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from bide.protocol.commands import Command, command, pieces, text
from bide.protocol.keys import LAYOUT, META, Keys

STEP: Final = 80
"""Approximate number of entries per step."""

SCAN: Final = 1_000
"""Number of the server's keys that a step scans."""

BEGIN: Final = "0"
"""The cursor for the first step, and the cursor that the last step returns."""

JOBS: Final = tuple(
    (part, level)
    for part in (
        *("jobs", "due", "blocked", "active", "completed", "failed", "cancelled", "trash"),
        *("run", "results", "notes", "terms", "asked", "waiters"),
    )
    for level in (range(1, len(LAYOUT[part].fan) + 1) if LAYOUT[part].fan else (0,))
)
"""The keys that contain job ids, in the order in which they are checked: name and index."""

GROUPS: Final = ("order", "held", "resting", "groups", "turns")
"""The keys of groups, which are checked before jobs."""

BESIDE: Final = (
    *("meta", "wakeups", "events", "keep", "park", "listeners", "claims"),
    *("unique", "folded", "keys"),
)
"""The other keys of a queue, which are checked after `TYPES`."""

SCHEDULES: Final = ("schedule", "schedules", "scheduled")
"""The keys of schedules, in the order in which they are checked."""

TYPES: Final = "types"
"""The check of types: keys of a wrong type must be repaired before anything else is read."""

TYPE: Final = "type"
"""The kind of a finding about a key of a wrong type."""

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
"""Field of `meta` -> the Lua pattern of its valid values."""


class Finding(NamedTuple):
    """An inconsistency."""

    kind: str
    id: str
    """The job, worker, key or field; empty if there is only one."""
    says: str
    fix: str
    """The repair; empty if only a person can decide."""


class Step(NamedTuple):
    """The findings of one step."""

    cursor: str
    """The position to continue from; `BEGIN` at the end."""
    findings: list[Finding]


def look_at_jobs(keys: Keys, part: str, level: int, cursor: str, repair: bool) -> Command[Step]:
    """Check a part of one of the keys in `JOBS`."""
    return command("fsck_jobs", keys, (part, level, cursor, STEP, int(repair)), _read)


def look_beside(keys: Keys, part: str, cursor: str, repair: bool) -> Command[Step]:
    """Check a part of `TYPES`, or of one of the keys in `BESIDE`."""
    limit = SCAN if part == "keys" else STEP
    forms = [word for form in FORMS.items() for word in form] if part == "meta" else []
    return command("fsck_queue", keys, (part, cursor, limit, int(repair), *forms), _read)


def look_at_groups(keys: Keys, part: str, cursor: str, repair: bool) -> Command[Step]:
    """Check a part of one of the keys in `GROUPS`."""
    return command("fsck_groups", keys, (part, cursor, STEP, int(repair)), _read)


def look_at_edges(keys: Keys, cursor: str, repair: bool) -> Command[Step]:
    """Check a part of the dependencies of jobs."""
    return command("fsck_edges", keys, (cursor, STEP, int(repair)), _read)


def look_at_schedules(keys: Keys, part: str, cursor: str, repair: bool) -> Command[Step]:
    """Check a part of one of the keys in `SCHEDULES`."""
    return command("fsck_schedules", keys, (part, cursor, STEP, int(repair)), _read)


def look_at_queues(keys: Keys, cursor: str, repair: bool) -> Command[Step]:
    """Check a part of the list of queues; `keys` are the global keys."""
    return command("fsck_queues", keys, (cursor, STEP, int(repair)), _read)


def look_at_workers(keys: Keys, cursor: str, repair: bool) -> Command[Step]:
    """Check a part of the workers' reports; `keys` are the global keys."""
    return command("fsck_workers", keys, (cursor, STEP, int(repair)), _read)


def _read(reply: list[Any]) -> Step:
    found = [Finding(*map(text, words)) for words in pieces(reply, 3, 4)]
    return Step(reply[2].decode(), found)
