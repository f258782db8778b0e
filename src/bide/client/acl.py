"""Rights on the server: the least that each role needs, and what to say where one is missing.

Inside of a script each command is checked against its caller's rights. So a user is given the
commands that the scripts of its role call, read from their text, and no others; keys are given by
name. A viewer is kept from writing by having no command that writes: rights to keys that part
reading from writing (`%R~`) came with version 7, and calling a script asks for both. It cannot load
scripts either: those that it loads stay in the server's memory, and one may run for ever. Workers
load the scripts that viewers call.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, get_args

from bide.client.url import Kind
from bide.protocol.command import Command
from bide.protocol.keys import PREFIX, Keys, keys_of
from bide.protocol.scripts import load

Role = Literal["worker", "producer", "operator", "viewer"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

_LOOK: Final = (
    *("ahead", "between", "children", "counts", "fetch", "groups", "holders", "list", "minutes"),
    *("queues", "schedule_list", "timeline", "upcoming", "workers"),
)
_CHANGE: Final = (
    *("ahead", "cancel", "configure", "counts", "delete", "empty", "fetch", "group_configure"),
    *("groups", "limit", "list", "listen", "minutes", "pause", "promote", "queues", "register"),
    *("reschedule", "resume", "retry", "upcoming"),
    *("schedule_list", "schedule_pause", "schedule_remove", "schedule_run"),
)
_PRODUCE: Final = (*_CHANGE, "attend", "enqueue", "link", "place", "schedule_set", "watch")
_OPERATE: Final = (
    *("between", "children", "forget", "fsck_edges", "fsck_groups", "fsck_jobs", "fsck_queue"),
    *("fsck_queues", "fsck_schedules", "fsck_workers", "holders", "schedule_set", "stop"),
    *("timeline", "unregister", "upgrade", "workers"),
)
_WORK: Final = (
    *("begin", "claim", "extend", "hear", "heartbeat", "leave", "note", "pop", "post", "refuse"),
    *("schedule_refill", "settle", "workers"),
)

SCRIPTS: Final[dict[Role, tuple[str, ...]]] = {
    "worker": (*_PRODUCE, *_WORK),
    "producer": _PRODUCE,
    "operator": (*_CHANGE, *_OPERATE),
    "viewer": _LOOK,
}
"""The scripts that each calls. A worker's jobs enqueue others; a consumer of data is a worker."""

_CALLS: Final[dict[Role, tuple[str, ...]]] = {
    "worker": ("blpop", "subscribe", "unsubscribe", "wait", "xread"),
    "producer": ("subscribe", "unsubscribe", "wait", "xread"),
    "operator": ("info", "xread"),
    "viewer": ("info",),
}
"""What each calls besides scripts."""

_KINDS: Final[dict[Kind, tuple[str, ...]]] = {
    "one": (),
    "cluster": ("asking", "cluster|slots"),
    "sentinel": ("role",),
}
"""What each calls besides, where the URL is one of several servers."""

_CLUSTER_INFO: Final = "cluster|info"
"""What `bide doctor` asks each node of a Cluster."""

_FSYNC: Final = "waitaof"
"""What `durability="fsync"` calls. A server before Redis 7.2 refuses a rule that names it."""

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
"""The keys after which the channels are named on which each speaks or listens."""

_COMMAND: Final = re.compile(r"redis\.p?call\('([A-Z]+)'")


def rules(
    role: Role,
    queues: Sequence[str],
    prefix: str,
    kind: Kind = "one",
    *,
    fsync: bool = False,
) -> list[str]:
    """The rules of a user, as `ACL SETUSER` takes them after its name.

    Args:
        role: what the user is for.
        queues: the queues; none for all that the prefix has or will have.
        prefix: of all keys.
        kind: what the servers are.
        fsync: whether jobs may be enqueued with `durability="fsync"`.

    Raises:
        UsageError: a name cannot be meant.
    """
    everywhere = keys_of(None, prefix)
    touched = {key for name in SCRIPTS[role] for key in load(name).keys}
    keys = [everywhere[name] for name in everywhere.names if name in touched]
    patterns = [f"~{_escaped(key)}" for key in keys]
    channels: list[str] = []
    for root, of in _roots(queues, prefix):
        patterns += [f"~{root}", f"~{root}:*"]
        channels += [f"&{_channel(of, root, name)}" for name in _CHANNELS[role] if name in of.names]
    channels += [
        f"&{_escaped(everywhere[name])}" for name in _CHANNELS[role] if name in everywhere.names
    ]
    texts = (load(name).text for name in SCRIPTS[role])
    called = {command.lower() for text in texts for command in _COMMAND.findall(text)}
    if role == "viewer":  # what its scripts include has functions that they do not call
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
    """What the keys of each queue begin with, as a pattern; one that fits all for no queue."""
    for queue in dict.fromkeys(queues):
        keys = keys_of(queue, prefix)
        yield _escaped(keys["meta"]), keys
    if not queues:
        yield _escaped(prefix) + ":{*}", keys_of("*", prefix)


def _channel(keys: Keys, root: str, name: str) -> str:
    return root + keys[name].removeprefix(keys["meta"])


def _escaped(name: str) -> str:
    """A name as a pattern that nothing else fits."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", name)


# -- where one is missing

_LEAST: Final[tuple[Role, ...]] = ("viewer", "operator", "producer", "worker")
"""The roles in the order in which they are proposed."""

_NAMED: Final = re.compile(r"run the '(\S+)' command")
_LINE: Final = re.compile(r"@user_script: ?(\d+)")
_KEY: Final = re.compile(r"([^{}]+?):(?:\{([^{}]+)\}.*|\w+)", re.DOTALL)


def missing(said: str, command: Command[Any] | None, clock: str) -> str:
    """Which right is missing, and what prints it: the end of an error's sentence.

    Args:
        said: what the server has said. Up to Redis 7.0 it names no command that a script calls,
            but the line.
        command: what was refused; None for what is no script's call.
        clock: which clock the script was built for.
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
        lacks = f"the right +{named[1].lower()}"
    elif command is None:
        return f"{said}; `bide acl` prints what each role needs"
    else:
        line = _LINE.search(said)
        called = _called(load(command.script, clock).text, int(line[1])) if line else []
        lacks = "the right " + " or ".join(f"+{name.lower()}" for name in called) if called else ""
    if command is None:
        return f"its user lacks {lacks}; `bide acl` prints what each role needs"
    found = _KEY.fullmatch(command.keys[0])
    prefix, queue = found.groups() if found else (PREFIX, None)
    if not lacks or " key" in said:
        root = f"~{prefix}:{{{queue}}}"
        lacks = f"the rights {root} and {root}:*" if queue else f"the right ~{command.keys[0]}"
    roles = [role for role in _LEAST if command.script in SCRIPTS[role]]
    words = ["bide", "acl", *(roles if len(roles) < len(ROLES) else [])]
    words += ["-q", queue] if queue else []
    words += ["--prefix", prefix] if prefix != PREFIX else []
    return f"its user lacks {lacks}; `{shlex.join(words)}` prints the rights that this needs"


def _called(text: str, line: int) -> list[str]:
    """The commands that a line of a script calls."""
    (there,) = text.split("\n")[line - 1 : line] or [""]
    return list(dict.fromkeys(_COMMAND.findall(there)))
