"""Reads the sets of RQ's delayed jobs, and the live Timers.

It is for `bide health` and `bide doctor`, which do not need RQ. So it is not in `bide.contrib.rq`,
which cannot be imported without RQ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import redis

PREFIX: Final = os.environ.get("RQ_KEY_PREFIX", "rq")
"""The first part of all keys. RQ 3 reads the same variable."""

DELAYED: Final = f"{PREFIX}:delay_queue:"
"""The sorted set of each queue: job ids by due time, in seconds with fractions. The class of a
queue, or the queue itself, may name another key."""

OTHER_SETS: Final = f"{PREFIX}:delay_queues"
"""The set of the keys that queues name instead."""

GATE: Final = "delay_gate"
"""The origin of delayed jobs while they wait for other jobs. All queues share it, because a
blocking command that removes nothing can wait on one list only.
"""

SETS_FIELD: Final = "delay_sets"
"""A field of a Timer's record among RQ's workers. It is JSON: the sets that the Timer serves, and
for each the number of due members that it leaves (without jobs of other queues), and how many of
these belong to no delayed job."""

QUEUES: Final = f"{PREFIX}:queues"
QUEUE: Final = f"{PREFIX}:queue:"
WORKER: Final = f"{PREFIX}:worker:"
WORKERS: Final = f"{PREFIX}:workers"
"""RQ's own keys: the set of its queues, the start of a queue's key, and both for its workers."""

GATE_WORKERS: Final = f"{WORKERS}:{GATE}"
"""RQ's set of the workers that read the gate: the Timers."""

READY: Final = f"{PREFIX}:ready:{GATE}"
"""RQ 3's registry of jobs whose dependencies are met, until they are in the gate's list."""

OVERDUE: Final = 1.0
"""Seconds after which a job counts as overdue; a working Timer is faster."""


class DelaySet(NamedTuple):
    """The state of one set."""

    key: str
    waiting: int
    """Number of members that are not overdue."""
    overdue: int
    lateness: float
    """Seconds by which the first member is overdue, without those that Timers leave; 0 if none
    is."""
    timers: int
    """Number of live Timers that serve it."""
    left: int
    """Number of due members that its Timers leave."""
    strange: int
    """Number of these that neither bide nor delay-rq has added."""


def look(client: redis.Redis) -> list[DelaySet]:
    """Return all sets of delayed jobs that are not empty or have a Timer.

    These are the sets of RQ's queues, sets that queues name, and sets that Timers serve. The list
    of the gate is last, if it has jobs and no Timer is alive.

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
    ask.llen(f"{QUEUE}{GATE}").zcard(READY)
    *replies, pushed, met = ask.execute(raise_on_error=False)
    at_gate = sum(number for number in (pushed, met) if isinstance(number, int))
    found = []
    for place, (key, stays) in enumerate(left.items()):
        total, overdue, first = replies[3 * place : 3 * place + 3]
        alive = sum(key in timer for timer in timers)
        if isinstance(total, int) and (total or alive):  # otherwise it is a key of another program
            lateness = max(0.0, now - first[0][1]) if first else 0.0
            found.append(DelaySet(key, total - overdue, overdue, lateness, alive, *stays))
    if at_gate and not timers:  # every Timer opens it
        found.append(DelaySet(f"{QUEUE}{GATE}", 0, at_gate, 0.0, 0, 0, 0))
    return found


def _allowed(ask: Any) -> list[Any]:
    """Return the replies of a pipeline; an error for a key of another program."""
    replies: list[Any] = ask.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, redis.ResponseError) and not str(reply).startswith("WRONGTYPE"):
            raise reply
    return replies


def _timers(ask: Any, workers: Iterable[bytes]) -> list[dict[str, tuple[int, int]]]:
    """Return the sets of each live Timer; records of dead Timers have expired."""
    for worker in workers:
        ask.hget(_text(worker), SETS_FIELD)
    found = []
    for record in _allowed(ask):
        with suppress(AttributeError, TypeError, ValueError):  # none, or of another program
            sets = json.loads(record).items()
            found.append({str(key): _numbers(*left) for key, left in sets})
    return found


def _numbers(staying: Any, strange: Any) -> tuple[int, int]:
    """Return what a Timer leaves in a set; raise ValueError if it is not from a Timer."""
    if not all(type(number) is int and 0 <= number < 2**32 for number in (staying, strange)):
        raise ValueError
    return staying, strange


def _left(timers: Iterable[dict[str, tuple[int, int]]], key: str) -> tuple[int, int]:
    """Return what the Timers leave in a set: the largest numbers of all Timers."""
    return max((timer[key] for timer in timers if key in timer), default=(0, 0))


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
