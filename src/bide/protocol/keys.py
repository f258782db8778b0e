"""Every key that bide uses, named in this one file.

All keys of one queue share the hash tag `{queue}`, so that they live in one slot of a Cluster and
a script may declare and touch any of them. A script's header names the keys it takes by the
attribute names of `QueueKeys`; nothing else in the project writes a key's name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from bide.errors import UsageError
from bide.model.ids import check_name

PREFIX: Final = "bide"
"""The default of `prefix=` and `$BIDE_PREFIX`: what separates staging from production."""

SCHEMA: Final = 1
"""How stored data is laid out: a number that grows with each change which an earlier release could
not read. A queue that does not say is stored in the first."""

PRIORITIES: Final = 10
"""Priorities are the integers 0 to 9; 9 runs first."""

DEFAULT_PRIORITY: Final = 5


def check_priority(priority: int | None) -> int:
    """The priority; 5 for None.

    Raises:
        UsageError: it is not an integer from 0 to 9.
    """
    if priority is None:
        return DEFAULT_PRIORITY
    is_whole = isinstance(priority, int) and not isinstance(priority, bool)
    if not is_whole or priority not in range(PRIORITIES):
        raise UsageError(f"priority must be an integer from 0 to 9 (9 first), not {priority!r}.")
    return int(priority)


_LEVELS: Final = tuple(str(p) for p in range(PRIORITIES - 1, -1, -1))
DUE_SETS: Final = (*_LEVELS, "alone", "unserved", "grouped")
"""The due sets in the order in which a claim looks at them: the priorities, then suspects, jobs
that a worker without their task returned, and jobs of groups."""


class Key(NamedTuple):
    """What stands behind one name in a script's header."""

    suffix: str
    type: str
    holds: str
    fan: tuple[str, ...] = ()


LAYOUT: Final[dict[str, Key]] = {
    "meta": Key("", "hash", "settings, counters and the clock's high-water mark of the queue"),
    "due": Key(
        ":due:<p>",
        "zset",
        "job id → due time (µs), delayed and waiting alike; one set per priority 9 to 0, and "
        "`alone` for jobs whose worker died twice under them; `unserved` for jobs that a worker "
        "without their task returned; `grouped` for the jobs of groups",
        DUE_SETS,
    ),
    "jobs": Key(
        ":jobs", "hash", "job id → body: task, arguments and options as the client sent it"
    ),
    "run": Key(":run", "hash", "job id → run record, from the first claim on"),
    "results": Key(":results", "hash", "job id → encoded result, where it is not None"),
    "notes": Key(
        ":notes",
        "hash",
        "job id → what happened to it, a line each, bounded: errors, crashes, log lines, "
        "progress, when it was rescheduled",
    ),
    "terms": Key(
        ":terms",
        "hash",
        "job id → what was asked of it beside its due time, where anything was",
    ),
    "expiring": Key(
        ":expiring", "zset", "id of a job that must begin by a time → when to look (µs)"
    ),
    "order": Key(
        ":order", "zset", "`<group> <due> <id>` of a job of a group; all have the score 0"
    ),
    "held": Key(":held", "zset", "`<group> <id>` of a job of a group that runs; the score is 0"),
    "groups": Key(
        ":groups",
        "hash",
        "group → its priority, how many run at once, whether it is paused, where its marker is; "
        "while it has jobs, is configured, or rests",
    ),
    "turns": Key(
        ":turns",
        "zset",
        "`<level> <when> <group>`: the marker of a group that has a next turn; the score is 0",
    ),
    "resting": Key(
        ":resting",
        "zset",
        "group without jobs that has used some of the rate of the queue's groups → when it has all "
        "of it again (µs): then its record is dropped",
    ),
    "unique": Key(
        ":unique", "hash", "kind and key → the job that holds the key, since when and until when"
    ),
    "folded": Key(
        ":folded",
        "hash",
        "id of a call that became no job of its own → when (µs), and what came of it; for repeats",
    ),
    "blocked": Key(":blocked", "zset", "id of a job that waits for others → since when (µs)"),
    "edges": Key(
        ":edges",
        "zset",
        "which job waits for which, and who has yet to be told: see `lua/include/deps_edges.lua`",
    ),
    "active": Key(":active", "zset", "job id → when its lease ends (µs)"),
    "completed": Key(":completed", "zset", "job id → when it finished (µs), bounded"),
    "failed": Key(":failed", "zset", "job id → when it failed for good (µs), bounded"),
    "cancelled": Key(":cancelled", "zset", "job id → when it was cancelled (µs), bounded"),
    "asked": Key(
        ":asked",
        "zset",
        "id of a running job that was asked to end → when (µs); also the channel that says so",
    ),
    "waiters": Key(
        ":waiters",
        "zset",
        "id of a job whose end is waited for → until when (µs); also the channel that says so",
    ),
    "minutes": Key(
        ":minutes",
        "hash",
        "minute since the epoch → how late jobs began, how long attempts ran: counts of a week; "
        "of the minute that is under way, each count by itself",
    ),
    "wake": Key(":wake", "list", "at most one wake-up message, for one sleeping worker"),
    "keep": Key(":keep", "zset", "timekeeper or backup → its deadline, when it will claim (µs)"),
    "park": Key(":park", "zset", "worker → until when it sleeps (µs)"),
    "claims": Key(":claims", "hash", "worker → number, time and job ids of its last claim"),
    "schedules": Key(":schedules", "zset", "schedule → when it fires next (µs)"),
    "schedule": Key(
        ":schedule", "hash", "schedule → its record: when it fires, and where it stands"
    ),
    "scheduled": Key(":scheduled", "hash", "schedule → the body of the jobs that it makes"),
    "events": Key(
        ":events",
        "stream",
        "what became of jobs, a line each, capped; only while someone listens, and gone after",
    ),
    "listeners": Key(":listeners", "zset", "who holds `events` open → until when (µs); 64 at most"),
    "trash": Key(
        ":trash:<p>",
        "zset",
        "what `purge` has set aside and deletes in pieces: the due sets, and what was blocked",
        (*DUE_SETS, "blocked"),
    ),
    "aside": Key(
        ":aside:<p>",
        "any",
        "a key of another type that stood in the place of one of these; `bide fsck --repair` has "
        "moved it here, 9 at most",
        tuple("123456789"),
    ),
}
"""Header name -> key of a queue. `docs/keys.md` is generated from this and from the headers."""

META: Final[dict[str, str]] = {
    "schema": "what a program must know to touch the queue, if it is more than 1",
    "writes": "the schema that is written, while a queue is rolled back to it",
    "paused": "1 while nothing may be claimed",
    "clock": "the clock's high-water mark, written at most once a second",
    "calm_until": "no lease is reclaimed before, because the clock jumped forward",
    "calm_from": "except those that had ended by then, before the jump",
    "rewound_until": "the mark from which the clock was set back; until then leases are clamped",
    "rewinding": "the marker of a group from which on to go, after the clock was set back or "
    "`group_rate` changed",
    "gap_us": "the last jump of the clock, or stretch in which no worker called",
    "gap_at": "when that was noticed",
    "lease_us": "the longest lease that any claim has asked for",
    "served_at": "when a worker last ran a job that one without its task had returned",
    "ahead_until": "when the last job is due that was claimed ahead",
    "exact_until": "no job is claimed ahead before, because one was to be returned",
    "drain_until": "one worker drains for a suspect; no other begins to before this",
    "retention": "count and age in µs of what is kept completed, failed, cancelled, if configured",
    "result_budget": "maximum bytes of results, if configured",
    "result_bytes": "total bytes of results of 2,000 bytes or more, while there are any",
    "results_over": "1 while more large results are kept than the budget allows",
    "results_from": "completion time from which the next large results are dropped",
    "own": "1 once a job was to be kept for a time of its own",
    "listened": "until when `events` is held open, and since when (µs), while someone listens",
    "limited": "1 while the queue may have limits: only then is any of the next four read",
    "rate": "of how many jobs, in how many µs, how many may begin at once",
    "spent": "when the rate was last full, how many it has let begin since, when it let the latest",
    "concurrency": "how many jobs may run at once",
    "group_rate": "likewise, of each group that has no rate of its own",
    "declared_rate": "the rate that a worker's program declared last; zeros for no limit",
    "declared_concurrency": "likewise, the number of jobs at once; 0 for no limit",
    "declared_group_rate": "likewise, the rate of each group",
    "declared_retention": "likewise, `retention` and `result_budget`",
    "declared_until": "until when the worker that declared them counts as alive",
    "held_until": "no job begins before, because one of them has said so",
    "kind": "`data` in a delay queue, which no worker serves",
    "large": "1 once a body was so large that bodies are weighed before they are read",
    "scheduled": "1 while there are schedules",
    "terms": "1 once a job had constraints",
    "groups": "1 once a job had a group",
    "side": "1 where groups had the odd slot of a claim last, and single jobs have the next",
    "edges": "1 once a job waited for others, or others for it",
    "repeated": "when jobs that existed were last enqueued again with a durability to confirm",
    "told": "how many events there were since then: the second half of the last one's id",
    "trash": "1 while `trash` holds what `purge` set aside",
    "purged": "which purge was the last, and how many jobs it set aside",
    "completed": "how many jobs ever completed",
    "failed": "how many ever failed for good",
    "cancelled": "how many were ever cancelled",
    "expired": "how many of these because they had not begun in time",
    "retried": "how many attempts ended in a retry",
    "reclaimed": "how many leases ended without an outcome",
}
"""The fields of `meta`."""

GLOBAL: Final[dict[str, Key]] = {
    "queues": Key(":queues", "hash", "queue → when it was first used (µs)"),
    "workers": Key(
        ":workers",
        "hash",
        "worker → when it was last seen (µs), and what it does; who was asked to stop, or to pause "
        "→ when; also the channel that says so",
    ),
}
"""Header name -> key that no queue owns; no script takes one of these and a queue's together."""


class Keys:
    """The keys of one queue, or with `queue=None` the global ones, ready for `EVALSHA`."""

    def __init__(self, queue: str | None, prefix: str = PREFIX) -> None:
        """Name the keys.

        Raises:
            UsageError: the name or the prefix holds braces, spaces or control characters.
        """
        self.prefix = check_name(prefix, "prefix")
        self.queue = queue
        if queue is None:
            root, layout = prefix, GLOBAL
        else:
            root, layout = f"{prefix}:{{{check_name(queue, 'queue name')}}}", LAYOUT
        self.names: Final[dict[str, tuple[str, ...]]] = {
            name: tuple(root + key.suffix.replace("<p>", p) for p in key.fan)
            or (root + key.suffix,)
            for name, key in layout.items()
        }

    def __getitem__(self, name: str) -> str:
        """The one key behind a header name that stands for one key."""
        (key,) = self.names[name]
        return key

    def of(self, header: tuple[str, ...]) -> tuple[str, ...]:
        """The keys a script takes, in the order of its header."""
        return tuple(key for name in header for key in self.names[name])


@lru_cache(maxsize=1024)
def keys_of(queue: str | None, prefix: str = PREFIX) -> Keys:
    """The keys of a queue; the same object for the same names."""
    return Keys(queue, prefix)
