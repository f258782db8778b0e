"""The names of all keys that bide uses.

All keys of one queue share the hash tag `{queue}`, so they are in one slot of a Cluster, and a
script may use any of them. The header of a script names its keys by their names in `LAYOUT`. No
other module writes a key's name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from bide.errors import UsageError
from bide.model.ids import check_name

PREFIX: Final = "bide"
"""The default of `prefix=` and `$BIDE_PREFIX`, which separates applications on one server."""

SCHEMA: Final = 1
"""The newest schema of stored data. It increases with each change that an earlier release cannot
read. A queue that stores no schema has schema 1."""

PRIORITIES: Final = 10
"""Priorities are the integers 0 to 9; 9 runs first."""

DEFAULT_PRIORITY: Final = 5


def check_priority(priority: int | None) -> int:
    """Return the priority; 5 for None.

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
"""The due sets in the order in which a claim reads them: by priority, then suspects, jobs that a
worker without their task returned, and jobs of groups."""


class Key(NamedTuple):
    """The key, or the keys, of one name in a script's header."""

    suffix: str
    type: str
    holds: str
    fan: tuple[str, ...] = ()


LAYOUT: Final[dict[str, Key]] = {
    "meta": Key(
        "",
        "hash",
        "settings and counters of the queue, and the latest time that its clock has shown",
    ),
    "due": Key(
        ":due:<p>",
        "zset",
        "job id → due time (µs), of delayed and waiting jobs; one set per priority 9 to 0, and "
        "`alone` for jobs during which a worker died twice; `unserved` for jobs that a worker "
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
        "job id → its notes, one line each, limited: errors, crashes, log lines, "
        "progress, changes of its due time",
    ),
    "terms": Key(
        ":terms",
        "hash",
        "job id → its constraints besides the due time, if it has any",
    ),
    "expiring": Key(":expiring", "zset", "id of a job that may expire → when to check it (µs)"),
    "order": Key(
        ":order", "zset", "`<group> <due> <id>` of a job of a group; all have the score 0"
    ),
    "held": Key(":held", "zset", "`<group> <id>` of a running job of a group; the score is 0"),
    "groups": Key(
        ":groups",
        "hash",
        "group → its priority, its concurrency, whether it is paused, the place of its marker; "
        "exists while the group has jobs, is configured, or is in `resting`",
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
        "id of a call that created no job → when (µs), and its result; for repeats of the call",
    ),
    "blocked": Key(":blocked", "zset", "id of a job that waits for its parents → since when (µs)"),
    "edges": Key(
        ":edges",
        "zset",
        "dependencies of jobs, and unsent messages about them: see `lua/include/deps_edges.lua`",
    ),
    "active": Key(":active", "zset", "job id → when its lease ends (µs)"),
    "completed": Key(":completed", "zset", "job id → when it finished (µs), limited"),
    "failed": Key(":failed", "zset", "job id → when it failed for good (µs), limited"),
    "cancelled": Key(":cancelled", "zset", "job id → when it was cancelled (µs), limited"),
    "asked": Key(
        ":asked",
        "zset",
        "id of a running job that was asked to stop → when (µs); also the channel of requests",
    ),
    "waiters": Key(
        ":waiters",
        "zset",
        "id of a job that a program waits for → until when (µs); also the channel of ends",
    ),
    "minutes": Key(
        ":minutes",
        "hash",
        "minute since the epoch → counts of the lateness of jobs and of run times, for a week; "
        "each count of the present minute has a field of its own",
    ),
    "wake": Key(":wake", "list", "at most one wake-up message, for one sleeping worker"),
    "keep": Key(":keep", "zset", "timekeeper or backup → its deadline, when it will claim (µs)"),
    "park": Key(":park", "zset", "worker → until when it sleeps (µs)"),
    "claims": Key(":claims", "hash", "worker → number, time and job ids of its latest claim"),
    "schedules": Key(":schedules", "zset", "schedule → when it fires next (µs)"),
    "schedule": Key(":schedule", "hash", "schedule → its record: when it fires, and its state"),
    "scheduled": Key(":scheduled", "hash", "schedule → the body of the jobs that it creates"),
    "events": Key(
        ":events",
        "stream",
        "events of jobs, one line each, limited; exists only while there is a listener",
    ),
    "listeners": Key(
        ":listeners", "zset", "listener that holds `events` open → until when (µs); 64 at most"
    ),
    "trash": Key(
        ":trash:<p>",
        "zset",
        "jobs that `purge` has set aside, and deletes in pieces: the due sets, and blocked jobs",
        (*DUE_SETS, "blocked"),
    ),
    "aside": Key(
        ":aside:<p>",
        "any",
        "a key of a wrong type that had the name of one of these; `bide fsck --repair` has "
        "moved it here, 9 at most",
        tuple("123456789"),
    ),
}
"""Name in headers -> key of a queue. `docs/keys.md` is generated from this and from the headers."""

META: Final[dict[str, str]] = {
    "schema": "the schema that a program must know to use the queue, if it is above 1",
    "paused": "1 while nothing may be claimed",
    "clock": "the latest time that the clock has shown, written at most once a second",
    "calm_until": "no lease is reclaimed before, because the clock jumped forward",
    "calm_from": "except leases that had ended at this time, before the jump",
    "rewound_until": "the time from which the clock was set back; until then leases are shortened",
    "rewinding": "the marker of the group at which to continue, after the clock was set back or "
    "`group_rate` changed",
    "gap_us": "the last jump of the clock, or the last time without a call of a worker",
    "gap_at": "when `gap_us` was noticed",
    "lease_us": "the longest lease of any claim",
    "served_at": "when a worker last ran a job that a worker without its task had returned",
    "ahead_until": "the latest due time of the jobs that were claimed ahead",
    "exact_until": "no job is claimed ahead before, because a claimed job had to be returned",
    "drain_until": "a worker drains for a suspect; until then, no other worker starts to drain",
    "retention": "maximum count and age (µs) of the jobs of each final state, if configured",
    "result_budget": "maximum bytes of results, if configured",
    "result_bytes": "total bytes of results of 2,000 bytes or more, while there are any",
    "results_over": "1 while more large results are kept than the budget allows",
    "results_from": "completion time from which the next large results are dropped",
    "own": "1 once a job had a retention of its own",
    "listened": "until when `events` is held open, and since when (µs), while there is a listener",
    "limited": "1 while the queue may have limits: only then are the next four fields read",
    "rate": "the rate: number of jobs, period in µs, burst",
    "spent": "when the rate was last full, how many jobs have started since, when the latest did",
    "concurrency": "maximum number of jobs that run at once",
    "group_rate": "as `rate`, for each group that has no rate of its own",
    "declared_rate": "the rate that a worker's program declared last; zeros for no limit",
    "declared_concurrency": "the declared number of jobs at once; 0 for no limit",
    "declared_group_rate": "the declared rate of each group",
    "declared_retention": "the declared `retention` and `result_budget`",
    "declared_until": "until when the worker that declared them counts as alive",
    "held_until": "no job starts before, because a job has paused the queue",
    "kind": "`data` in a delay queue, which no worker serves",
    "large": "1 once a body was so large that sizes are checked before bodies are read",
    "scheduled": "1 while there are schedules",
    "terms": "1 once a job had constraints",
    "groups": "1 once a job had a group",
    "side": "1 if groups had the odd slot of the last claim, so that single jobs have the next one",
    "edges": "1 once a job had a dependency, or was one",
    "repeated": "when existing jobs were last enqueued again with a durability to confirm",
    "told": "how many events there were since `listened`: the second half of the last event's id",
    "trash": "1 while `trash` holds jobs that `purge` set aside",
    "purged": "the id of the last purge, and how many jobs it set aside",
    "completed": "number of jobs that have ever completed",
    "failed": "number of jobs that have ever failed for good",
    "cancelled": "number of jobs that were ever cancelled",
    "expired": "number of these that expired",
    "retried": "number of attempts that ended in a retry",
    "reclaimed": "number of leases that ended without an outcome",
}
"""The fields of `meta`."""

GLOBAL: Final[dict[str, Key]] = {
    "queues": Key(":queues", "hash", "queue → when it was first used (µs)"),
    "workers": Key(
        ":workers",
        "hash",
        "worker → when it was last seen (µs), and its report; worker that was asked to stop or "
        "pause → when; also the channel of these requests",
    ),
}
"""Name in headers -> key that no queue owns. No script uses such a key and a key of a queue."""


class Keys:
    """The keys of one queue, or with `queue=None` the global keys, as `EVALSHA` takes them."""

    def __init__(self, queue: str | None, prefix: str = PREFIX) -> None:
        """Create the names of the keys.

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
        """Return the key of a name that stands for one key."""
        (key,) = self.names[name]
        return key

    def of(self, header: tuple[str, ...]) -> tuple[str, ...]:
        """Return the keys of a script, in the order of its header."""
        return tuple(key for name in header for key in self.names[name])


@lru_cache(maxsize=1024)
def keys_of(queue: str | None, prefix: str = PREFIX) -> Keys:
    """Return the keys of a queue; the same object for the same names."""
    return Keys(queue, prefix)
