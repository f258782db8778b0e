"""A bed's part of the server: what moves its clock, and removes all it holds."""

from __future__ import annotations

from typing import Any, Final

import redis

from bide.keys import keys_of

_BATCH: Final = 1_000


class Store:
    """The keys of one prefix."""

    def __init__(self, url: str, prefix: str) -> None:
        self._redis: Any = redis.Redis.from_url(url)
        self._prefix = prefix
        self._offset = f"{prefix}:test_offset_us"  # as `clock_shared.lua` has it

    def now_us(self) -> int:
        """What the scripts take for now."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.time()
        pipe.get(self._offset)
        (seconds, micros), offset = pipe.execute()
        return int(seconds) * 1_000_000 + int(micros) + int(offset or 0)

    def advance(self, us: int) -> None:
        """Move the clock of all queues, and have a worker of each look again."""
        self._redis.incrby(self._offset, us)
        for name in self._redis.hkeys(keys_of(None, self._prefix)["queues"]):
            wake = keys_of(name.decode(), self._prefix)["wake"]
            if not self._redis.llen(wake):
                self._redis.lpush(wake, "-")

    def wipe(self) -> None:
        """Remove every key of the prefix, and let go of the server."""
        found = self._redis.scan_iter(match=f"{self._prefix}:*", count=_BATCH)
        keys = list(found)
        for i in range(0, len(keys), _BATCH):
            self._redis.unlink(*keys[i : i + _BATCH])
        self._redis.close()
