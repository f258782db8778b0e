"""A bed's part of the server: what moves its clock, and removes all it holds."""

from __future__ import annotations

from typing import Any, Final

import redis

from bide.keys import Keys, keys_of

_BATCH: Final = 1_000


class Store:
    """The keys of one prefix."""

    def __init__(self, url: str, prefix: str) -> None:
        self._redis: Any = redis.Redis.from_url(url)
        self._prefix = prefix
        self._clock = f"{prefix}:test_clock"  # as `clock_shared.lua` has it
        self._holds = False

    def now_us(self) -> int:
        """What the scripts take for now."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.time()
        pipe.hmget(self._clock, "offset_us", "held_us")
        (seconds, micros), (offset_us, held_us) = pipe.execute()
        real_us = int(seconds) * 1_000_000 + int(micros)
        return int(held_us) if held_us else real_us + int(offset_us or 0)

    def advance(self, us: int) -> None:
        """Move the clock of all queues, and have a worker of each look again."""
        self._redis.hincrby(self._clock, "held_us" if self._holds else "offset_us", us)
        for name in self._redis.hkeys(keys_of(None, self._prefix)["queues"]):
            wake = keys_of(name.decode(), self._prefix)["wake"]
            if not self._redis.llen(wake):
                self._redis.lpush(wake, "-")

    def hold(self) -> None:
        """Stop the clock: from here on it moves by `advance` alone."""
        self._redis.hset(self._clock, "held_us", self.now_us())
        self._holds = True

    def release(self) -> None:
        """Let the clock go on, from where it stands."""
        held_us = self.now_us()
        seconds, micros = self._redis.time()
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(self._clock, "offset_us", held_us - (seconds * 1_000_000 + micros))
        pipe.hdel(self._clock, "held_us")
        pipe.execute()
        self._holds = False

    def expires_us(self, keys: Keys) -> int:
        """When the next job of a queue may expire; 0 where none does."""
        first = self._redis.zrange(keys["expiring"], 0, 0, withscores=True)
        return int(first[0][1]) if first else 0

    def scheduled(self, keys: Keys, name: str) -> bytes:
        """The stored body of the jobs of a schedule; empty where there is none."""
        body: bytes | None = self._redis.hget(keys["scheduled"], name)
        return body or b""

    def wipe(self) -> None:
        """Remove every key of the prefix, and let go of the server."""
        found = self._redis.scan_iter(match=f"{self._prefix}:*", count=_BATCH)
        keys = list(found)
        for i in range(0, len(keys), _BATCH):
            self._redis.unlink(*keys[i : i + _BATCH])
        self._redis.close()
