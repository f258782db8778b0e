"""Jobs whose task nobody serves: making them wait for longer, and who was asked for them."""

from __future__ import annotations

import re

import redis

from bide import Queue


def age(raw: redis.Redis, queue: Queue, id: str, seconds: float) -> None:
    """Have a job that is given back wait for so much longer already."""
    key = queue.keys["run"]
    line = raw.hget(key, id)
    if isinstance(line, bytes):
        at = int(re.findall(rb" (\d+)m", line)[0])
        older = b" %dm" % (at - int(seconds * 1e6))
        raw.hset(key, id, re.sub(rb" \d+m", older, line))


def unknown_tasks(queue: Queue) -> list[str]:
    """What the workers say that they lack."""
    return [name for seen in queue.workers() for name in seen.about.unknown_tasks]
