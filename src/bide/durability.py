"""What a producer may wait for besides the server's answer, and how it is asked and read.

    local     the server has taken the job: what every enqueue waits for
    replica   a replica has received it (WAIT), so that a failover to it loses nothing
    fsync     the server's append-only file has it, on its disk (WAITAOF)

Whether the server can do it, the script that adds asks before it writes. The commands that wait
stand behind it in the same round trip, on the same connection, because both count what that
connection has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_args

from bide.errors import CannotConfirm, Unconfirmed, UsageError

Durability = Literal["local", "replica", "fsync"]

CONFIRM_MS = 3_000
"""Milliseconds for which a confirmation is waited for; less than a reply may take to come."""

Kinds = tuple[Durability, ...]
"""What a call waits for, in this order: none, `replica`, `fsync`, or both."""

_WAITS: Final[dict[Durability, tuple[str | int, ...]]] = {
    "replica": ("WAIT", 1),
    "fsync": ("WAITAOF", 1, 0),
}
"""The commands that wait: for so many, on the server's disk and on those of replicas."""

_LACKS: Final = {
    "replica": "no replica is connected to the server; connect one",
    "appendonly": "the server keeps no append-only file; set `appendonly yes`",
    "WAITAOF": "the server has no WAITAOF; use Valkey, or Redis 7.2 or later",
    "INFO": "its user lacks the right +info, which `bide acl` prints",
}

_MISSING: Final[dict[Durability, str]] = {
    "replica": "no replica has confirmed it in time",
    "fsync": "it was not on the server's disk in time (with `appendfsync no` it never is for sure)",
}


_LOCAL: Final[frozenset[Durability]] = frozenset(("local",))


def check_durability(durability: Any) -> Durability:
    """What is to be waited for; `local` for None.

    Raises:
        UsageError: there is no such durability.
    """
    if durability is None:
        return "local"
    if durability not in get_args(Durability):
        raise UsageError(f"durability must be 'local', 'replica' or 'fsync', not {durability!r}.")
    return durability  # type: ignore[no-any-return]


def kinds_of(wanted: Iterable[Durability]) -> Kinds:
    """All that one call has to wait for."""
    asked = set(wanted)
    return () if asked <= _LOCAL else tuple(kind for kind in _WAITS if kind in asked)


def waits(kinds: Kinds) -> list[tuple[Any, ...]]:
    """The calls that wait, to be sent behind those that write."""
    return [(*_WAITS[kind], CONFIRM_MS) for kind in kinds]


def missing(kinds: Kinds, replies: Sequence[Any]) -> Exception | None:
    """What is missing, by the replies of those calls: an `Unconfirmed`, or the server's error.

    Each says how many copies there are: on replicas, or on the server's disk and on replicas'.
    """
    for kind, reply in zip(kinds, replies, strict=True):
        if isinstance(reply, Exception):
            return reply
        if (reply[0] if isinstance(reply, list) else reply) < 1:
            return Unconfirmed(f"The job was added, but {_MISSING[kind]}: it may yet be lost.")
    return None


def cannot(lack: str) -> CannotConfirm:
    """The error for what the script has found that the server cannot do."""
    right = lack.partition(":")[2]
    acl = "`bide acl --fsync`" if right == "WAITAOF" else "`bide acl`"
    why = (
        f"its user lacks the right +{right.lower()}, which {acl} prints" if right else _LACKS[lack]
    )
    return CannotConfirm(
        f"The durability asked for cannot be had: {why}, or ask for less. Nothing was added."
    )


def doubtful(error: CannotConfirm) -> Unconfirmed:
    """The same, where the call was sent before without an answer, and may have added the job."""
    return Unconfirmed(
        "The connection broke while the job was added, so it may exist, and no repeat could have "
        f"its durability confirmed: {error}"
    )
