"""Permissions on the server: the least that each role needs, and errors for missing ones.

The server checks each command inside a script against the caller's permissions. So a user gets only
the commands that the scripts of its role call, which are read from their text. Keys are given by
name. A viewer cannot write, because it has no command that writes. (Separate permissions for
reading and writing keys, `%R~`, came with version 7, and calling a script needs both.) A viewer
cannot load scripts either, because loaded scripts stay in the server's memory, and a script may run
without end. Workers load the scripts that viewers call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, get_args

from bide.client.url import Kind
from bide.protocol.commands import Command
from bide.protocol.keys import PREFIX, Keys, keys_of
from bide.protocol.scripts import load

Role = Literal["worker", "producer", "operator", "viewer"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

_LOOK: Final = (
    *("children", "count_due", "counts", "fetch", "groups", "holders", "list", "list_due"),
    *("latency_minutes", "queues", "schedule_list", "timeline", "upcoming", "workers"),
)
_CHANGE: Final = (
    *("cancel", "configure", "count_due", "counts", "delete", "events_hold", "fetch"),
    *("group_configure", "groups", "limit", "latency_minutes", "list", "pause", "purge"),
    *("queue_register", "queues", "reschedule", "resume", "retry", "upcoming"),
    *("schedule_list", "schedule_pause", "schedule_remove", "schedule_run"),
)
_PRODUCE: Final = (
    *_CHANGE,
    *("await_end", "dep_add", "dep_subscribe", "enqueue", "enqueue_full", "schedule_set"),
)
_OPERATE: Final = (
    *("children", "forget", "fsck_edges", "fsck_groups", "fsck_jobs", "fsck_queue"),
    *("fsck_queues", "fsck_schedules", "fsck_workers", "holders", "list_due", "queue_unregister"),
    *("schedule_set", "timeline", "worker_pause", "worker_stop"),
    "workers",
)
_WORK: Final = (
    *("add_notes", "claim", "declare", "dep_outbox", "dep_resolve", "extend", "heartbeat"),
    *(
        "items_reject",
        "pop",
        "schedule_refill",
        "server_time",
        "settle",
        "worker_leave",
        "worker_start",
        "workers",
    ),
)

SCRIPTS: Final[dict[Role, tuple[str, ...]]] = {
    "worker": (*_PRODUCE, *_WORK),
    "producer": _PRODUCE,
    "operator": (*_CHANGE, *_OPERATE),
    "viewer": _LOOK,
}
"""The scripts of each role. A worker's jobs enqueue others; a consumer of data is a worker."""

_CALLS: Final[dict[Role, tuple[str, ...]]] = {
    "worker": ("blpop", "subscribe", "unsubscribe", "wait", "xread"),
    "producer": ("subscribe", "unsubscribe", "wait", "xread"),
    "operator": ("info", "xread"),
    "viewer": ("info",),
}
"""The commands of each role besides scripts."""

_KINDS: Final[dict[Kind, tuple[str, ...]]] = {
    "one": (),
    "cluster": ("asking", "cluster|slots"),
    "sentinel": ("role",),
}
"""Further commands, for URLs of several servers."""

_CLUSTER_INFO: Final = "cluster|info"
"""The command that `bide doctor` sends to each node of a Cluster."""

_FSYNC: Final = "waitaof"
"""The command of `durability="fsync"`. Before Redis 7.2, a server refuses a rule that names it."""

_EACH: Final = ("evalsha", "ping", "select")
_LOAD: Final = "script|load"

_READ: Final = frozenset(
    [
        *("exists", "hexists", "hget", "hgetall", "hkeys", "hlen", "hmget", "hrandfield", "hscan"),
        *("hstrlen", "llen", "time", "xrange", "xrevrange", "zcard", "zcount", "zmscore"),
        *("zlexcount", "zrandmember", "zrange", "zrangebylex", "zrangebyscore", "zrevrange"),
        *("zrevrangebyscore", "zscore"),
    ]
)
"""Commands of scripts that change nothing."""

_CHANNELS: Final[dict[Role, tuple[str, ...]]] = {
    "worker": ("asked", "waiters", "workers"),
    "producer": ("asked", "waiters"),
    "operator": ("asked", "waiters", "workers"),
    "viewer": (),
}
"""The keys whose names are the channels that each role publishes or reads."""

_COMMAND: Final = re.compile(r"redis\.p?call\('([A-Z]+)'")


def rules(
    role: Role,
    queues: Sequence[str],
    prefix: str,
    kind: Kind = "one",
    *,
    fsync: bool = False,
) -> list[str]:
    """Return the rules of a user, as `ACL SETUSER` takes them after its name.

    Without queues, they are for all present and future queues of the prefix. With `fsync`, jobs may
    be enqueued with that durability.
    """
    everywhere = keys_of(None, prefix)
    touched = {key for name in SCRIPTS[role] for key in load(name).keys}
    keys = [everywhere[name] for name in everywhere.names if name in touched]
    patterns = [f"~{_escaped(key)}" for key in keys]
    channels: list[str] = []
    for root, queue_keys in _roots(queues, prefix):
        patterns += [f"~{root}", f"~{root}:*"]
        channels += [
            f"&{_channel(queue_keys, root, name)}"
            for name in _CHANNELS[role]
            if name in queue_keys.names
        ]
    channels += [
        f"&{_escaped(everywhere[name])}" for name in _CHANNELS[role] if name in everywhere.names
    ]
    texts = (load(name).text for name in SCRIPTS[role])
    called = {command.lower() for text in texts for command in _COMMAND.findall(text)}
    if role == "viewer":  # included parts of its scripts hold functions that they do not call
        called &= _READ
    if fsync and role in ("worker", "producer"):
        called.add(_FSYNC)
    if role == "operator" and kind == "cluster":
        called.add(_CLUSTER_INFO)
    if role != "viewer":
        called.add(_LOAD)
    commands = sorted({*called, *_CALLS[role], *_KINDS[kind], *_EACH})
    return [
        *("on", "resetkeys", "resetchannels", "-@all"),
        *patterns,
        *channels,
        *(f"+{command}" for command in commands),
    ]


def _roots(queues: Sequence[str], prefix: str) -> Iterator[tuple[str, Keys]]:
    """Yield the common start of each queue's keys, as a pattern; one for all if no queue."""
    for queue in dict.fromkeys(queues):
        keys = keys_of(queue, prefix)
        yield _escaped(keys["meta"]), keys
    if not queues:
        yield _escaped(prefix) + ":{*}", keys_of("*", prefix)


def _channel(keys: Keys, root: str, name: str) -> str:
    return root + keys[name].removeprefix(keys["meta"])


def _escaped(name: str) -> str:
    """Escape a name as a pattern that only matches itself."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", name)


# -- missing permissions

_LEAST: Final[tuple[Role, ...]] = ("viewer", "operator", "producer", "worker")
"""The roles in the order of proposals."""

_NAMED: Final = re.compile(r"run the '(\S+)' command")
_LINE: Final = re.compile(r"@user_script: ?(\d+)")
_KEY: Final = re.compile(r"([^{}]+?):(?:\{([^{}]+)\}.*|\w+)", re.DOTALL)


def missing(said: str, command: Command[Any] | None, clock: str) -> str:
    """Describe the missing permission, and the command that prints it, for the end of an error.

    Up to Redis 7.0, the server's error `said` does not name a command inside a script, but only the
    line. Without `command`, the refused call runs no script.
    """
    named = _NAMED.search(said)
    is_load = named is not None and named[1].lower() in ("script", _LOAD)
    if is_load and (command is None or command.script in SCRIPTS["viewer"]):
        return (
            "its user may not load scripts, and the server lacks a script that this call needs; "
            "start a worker of this release, which loads scripts at its start, and within 10 s of "
            "a server restart"
        )
    if named:
        lacks = f"the permission +{named[1].lower()}"
    elif command is None:
        return f"{said}; `bide acl` prints what each role needs"
    else:
        line = _LINE.search(said)
        called = _called(load(command.script, clock).text, int(line[1])) if line else []
        lacks = (
            "the permission " + " or ".join(f"+{name.lower()}" for name in called) if called else ""
        )
    if command is None:
        return f"its user lacks {lacks}; `bide acl` prints what each role needs"
    found = _KEY.fullmatch(command.keys[0])
    prefix, queue = found.groups() if found else (PREFIX, None)
    if not lacks or " key" in said:
        root = f"~{prefix}:{{{queue}}}"
        lacks = (
            f"the permissions {root} and {root}:*"
            if queue
            else f"the permission ~{command.keys[0]}"
        )
    roles = [role for role in _LEAST if command.script in SCRIPTS[role]]
    words = ["bide", "acl", *(roles if len(roles) < len(ROLES) else [])]
    words += ["-q", queue] if queue else []
    words += ["--prefix", prefix] if prefix != PREFIX else []
    import shlex  # only for this error

    return f"its user lacks {lacks}; `{shlex.join(words)}` prints the permissions that this needs"


def _called(text: str, line: int) -> list[str]:
    (there,) = text.split("\n")[line - 1 : line] or [""]
    return list(dict.fromkeys(_COMMAND.findall(there)))
