"""What stands on the server, in the types that the tests want."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import redis

from bide.protocol.keys import Keys


def members(client: redis.Redis, key: str, start: int = 0, stop: int = -1) -> list[str]:
    """The members by score."""
    found: Any = client.zrange(key, start, stop)
    return [member.decode() for member in found]


def scores(client: redis.Redis, key: str) -> dict[str, int]:
    """Member -> score, by score."""
    found: Any = client.zrange(key, 0, -1, withscores=True)
    return {member.decode(): int(score) for member, score in found}


def size(client: redis.Redis, key: str) -> int:
    found: Any = client.zcard(key)
    return int(found)


def end_leases(client: redis.Redis, keys: Keys, ids: Iterable[str] | None = None) -> None:
    """Have leases end now, all or those of some jobs; whoever claims next takes these."""
    held = members(client, keys["active"]) if ids is None else ids
    client.zadd(keys["active"], dict.fromkeys(held, 1), xx=True)


def calls(client: redis.Redis) -> int:
    """How many scripts the server has run."""
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])
