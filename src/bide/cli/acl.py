r"""`bide acl`: the least rights on the server for those who use some queues.

Inside of a script each command is checked against its caller's rights. So a user is given the
commands that the scripts of its role call, read from their text, and no others; keys are given by
name. A viewer is kept from writing by having no command that writes: rights to keys that part
reading from writing (`%R~`) came with version 7, and calling a script asks for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args

import click

from bide.cli.options import json_option, queues_option, server_options
from bide.cli.screen import aside, echo, echo_json
from bide.connection import resolve_prefix, resolve_url
from bide.ids import check_name
from bide.keys import Keys, keys_of
from bide.script import load
from bide.servers import Kind, read_servers

Role = Literal["worker", "producer", "viewer"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

_PRODUCE: Final = (
    *("cancel", "configure", "counts", "delete", "empty", "enqueue", "fetch", "list", "listen"),
    *("pause", "promote", "queues", "register", "reschedule", "resume", "retry", "upcoming"),
    "watch",
)
_WORK: Final = ("begin", "claim", "extend", "heartbeat", "leave", "note", "pop", "refuse", "settle")

SCRIPTS: Final[dict[Role, tuple[str, ...]]] = {
    "worker": (*_PRODUCE, *_WORK),
    "producer": _PRODUCE,
    "viewer": ("counts", "fetch", "list", "queues", "upcoming", "workers"),
}
"""The scripts that each calls. A worker's jobs enqueue others; a consumer of data is a worker."""

_CALLS: Final[dict[Role, tuple[str, ...]]] = {
    "worker": ("blpop", "subscribe", "unsubscribe", "wait", "xread"),
    "producer": ("subscribe", "unsubscribe", "wait", "xread"),
    "viewer": ("info",),
}
"""What each calls besides scripts."""

_KINDS: Final[dict[Kind, tuple[str, ...]]] = {
    "one": (),
    "cluster": ("asking", "cluster|slots"),
    "sentinel": ("role",),
}
"""What each calls besides, where the URL is one of several servers."""

_FSYNC: Final = "waitaof"
"""What `durability="fsync"` calls. A server before Redis 7.2 refuses a rule that names it."""

_EACH: Final = ("evalsha", "ping", "script|load", "select")

_READ: Final = frozenset(
    [
        *("exists", "hexists", "hget", "hgetall", "hkeys", "hlen", "hmget", "hrandfield"),
        *("hstrlen", "llen", "time", "xrange", "xrevrange", "zcard", "zcount", "zmscore"),
        *("zrandmember", "zrange", "zrangebyscore", "zrevrange", "zrevrangebyscore", "zscore"),
    ]
)
"""Commands of scripts that change nothing."""

_CHANNELS: Final[dict[Role, tuple[str, ...]]] = {
    "worker": ("asked", "waiters", "workers"),
    "producer": ("asked", "waiters"),
    "viewer": (),
}
"""The keys after which the channels are named on which each speaks or listens."""

_COMMAND: Final = re.compile(r"redis\.p?call\('([A-Z]+)'")
_BARE: Final = re.compile(r"[\w:{}~&+@|*./%-]+", re.ASCII)


@click.command()
@click.argument("roles", nargs=-1, type=click.Choice(ROLES), metavar="[ROLE]...")
@queues_option("Whose keys; again for more.  [default: all queues of the prefix]")
@click.option("--user", metavar="NAME", help="Of one role's user.  [default: PREFIX-ROLE]")
@click.option("--fsync", is_flag=True, help='Also for durability="fsync" (Redis 7.2, Valkey).')
@server_options
@json_option
def acl(
    roles: tuple[Role, ...],
    queues: tuple[str, ...],
    user: str | None,
    fsync: bool,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Print the least rights on the server for each ROLE.

    ROLE is worker, producer or viewer; without one, all are printed. Asks no server: give the lines
    to redis-cli, of each node where --url is of a Cluster. They set no password, and keep one that
    is there.
    """
    prefix = check_name(resolve_prefix(prefix), "prefix")
    chosen = roles or ROLES
    if user is not None:
        check_name(user, "--user")
        if len(chosen) != 1:
            raise click.UsageError("--user names the user of one ROLE; give that one.")
    kind = read_servers(resolve_url(url)).kind
    users = {
        role: (user or f"{prefix}-{role}", rules(role, queues, prefix, kind, fsync=fsync))
        for role in chosen
    }
    if as_json:
        echo_json(
            {"users": [{"name": n, "role": role, "rules": r} for role, (n, r) in users.items()]}
        )
        return
    for name, given in users.values():
        echo(" ".join(map(quoted, ("ACL", "SETUSER", name, *given))))
    aside(
        "Give each a password: ACL SETUSER NAME '>PASSWORD'; ACL SAVE or CONFIG REWRITE keeps it."
    )


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
    if fsync and role != "viewer":
        called.add(_FSYNC)
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


def quoted(word: str) -> str:
    """A word of a command line, as redis-cli reads it."""
    if _BARE.fullmatch(word):
        return word
    escaped = "".join(
        f"\\{chr(byte)}" if byte in b'"\\' else chr(byte) if 32 < byte < 127 else f"\\x{byte:02x}"
        for byte in word.encode()
    )
    return f'"{escaped}"'
