"""What stands in the sets of RQ's delayed jobs, and which Timers are alive.

For `bide health` and `bide doctor`, which ask with plain commands and do without RQ: so this stands
beside `bide.contrib.rq`, which cannot be imported without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import redis

DELAYED: Final = "rq:delay_queue:"
"""A sorted set for each queue: job id by due time, in seconds with fractions. A queue's class, or
the queue itself, may name another key."""

OTHER_SETS: Final = "rq:delay_queues"
"""A set: the keys that queues name instead."""

GATE: Final = "delay_gate"
"""The queue that is the origin of delayed jobs for as long as they wait for other jobs.

One serves all queues: a blocking command that takes nothing off its list waits on one list only.
"""

SETS_FIELD: Final = "delay_sets"
"""A field of a Timer's record among RQ's workers: JSON, the sets that it serves, and of each how
many due members it leaves there, but for jobs of other queues, and how many of these are of no
delayed job."""

QUEUES: Final = "rq:queues"
QUEUE: Final = "rq:queue:"
WORKER: Final = "rq:worker:"
WORKERS: Final = "rq:workers"
"""RQ's own: the set of its queues, what the key of one begins with; the same of its workers."""

GATE_WORKERS: Final = f"{WORKERS}:{GATE}"
"""RQ's set of the workers that read the gate: the Timers."""

OVERDUE: Final = 1.0
"""Seconds after which a job counts as overdue: a Timer at work needs less."""


class DelaySet(NamedTuple):
    """One set, as it stands."""

    key: str
    waiting: int
    """Members that are not overdue."""
    overdue: int
    lateness: float
    """Seconds by which the first is overdue that its Timers do not leave there; 0 if none is."""
    timers: int
    """Live Timers that serve it."""
    left: int
    """Due members that its Timers leave there."""
    strange: int
    """Those of them that neither bide nor delay-rq put there."""


def look(client: redis.Redis) -> list[DelaySet]:
    """All sets of delayed jobs that are not empty, or have a Timer.

    They are those of the queues that RQ knows, those that a queue names itself, and those that a
    Timer serves; last the list of the gate, if jobs stand there and no Timer is alive.

    Raises:
        redis.RedisError: as the client library has it; among others if this user may not ask.
    """
    ask: Any = client.pipeline(transaction=False)
    ask.smembers(QUEUES).smembers(OTHER_SETS).smembers(GATE_WORKERS).time()
    *members, (seconds, us) = _allowed(ask)
    queues, others, workers = (found if isinstance(found, set | list) else () for found in members)
    now = seconds + us / 1e6
    timers = _timers(ask, workers)
    keys = {f"{DELAYED}{_text(queue).removeprefix(QUEUE)}" for queue in queues}
    keys.update(map(_text, others), *timers)
    left = {key: _left(timers, key) for key in sorted(keys)}
    for key, (staying, _) in left.items():
        ask.zcard(key).zcount(key, "-inf", f"({now - OVERDUE:.6f}")
        ask.zrange(key, staying, staying, withscores=True)
    *replies, at_gate = ask.llen(f"{QUEUE}{GATE}").execute(raise_on_error=False)
    found = []
    for place, (key, stays) in enumerate(left.items()):
        total, overdue, first = replies[3 * place : 3 * place + 3]
        alive = sum(key in timer for timer in timers)
        if isinstance(total, int) and (total or alive):  # else it is a key of another program's
            lateness = max(0.0, now - first[0][1]) if first else 0.0
            found.append(DelaySet(key, total - overdue, overdue, lateness, alive, *stays))
    if isinstance(at_gate, int) and at_gate and not timers:  # any Timer opens it
        found.append(DelaySet(f"{QUEUE}{GATE}", 0, at_gate, 0.0, 0, 0, 0))
    return found


def _allowed(ask: Any) -> list[Any]:
    """The replies of a pipeline; an error where another program uses a key."""
    replies: list[Any] = ask.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, redis.ResponseError) and not str(reply).startswith("WRONGTYPE"):
            raise reply
    return replies


def _timers(ask: Any, workers: Iterable[bytes]) -> list[dict[str, tuple[int, int]]]:
    """The sets of each live Timer: the record of one that died has expired."""
    for worker in workers:
        ask.hget(_text(worker), SETS_FIELD)
    found = []
    for record in _allowed(ask):
        with suppress(AttributeError, TypeError, ValueError):  # none, or another program wrote it
            sets = json.loads(record).items()
            found.append({str(key): _numbers(*left) for key, left in sets})
    return found


def _numbers(staying: Any, strange: Any) -> tuple[int, int]:
    """What a Timer leaves in a set; raises ValueError if no Timer has written that."""
    if not all(type(number) is int and 0 <= number < 2**32 for number in (staying, strange)):
        raise ValueError
    return staying, strange


def _left(timers: Iterable[dict[str, tuple[int, int]]], key: str) -> tuple[int, int]:
    """What the Timers leave in a set: as much as the one that knows of the most."""
    return max((timer[key] for timer in timers if key in timer), default=(0, 0))


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
