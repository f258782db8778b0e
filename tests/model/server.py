"""The real queue beside the model's: one way to call it, and all that it stores."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, TypeVar

import redis

from bide.client import blocking
from bide.protocol.commands import Command
from bide.protocol.keys import LAYOUT, keys_of
from bide.protocol.scripts import TEST_CLOCK
from tests.model.store import DUE, FINISHED, Store, by_score
from tests.support.listener import ChannelListener

T = TypeVar("T")

SECOND = 1_000_000
BEGAN_US, CALL_US = 1_800_000_000 * SECOND, 700
QUEUE = "mail"
KEYS = keys_of(QUEUE)


class Server:
    """The real thing: runs commands, and shows all that is stored."""

    def __init__(self, url: str) -> None:
        self.raw = redis.Redis.from_url(url)
        self._client = blocking.Client(url, clock=TEST_CLOCK)
        self.listener = ChannelListener(self.raw, KEYS)

    def close(self) -> None:
        self.listener.__exit__()
        self._client.close()
        self.raw.close()

    def run(self, command: Command[T]) -> T:
        return self._client.run(command)

    def reply(self, command: Command[Any]) -> list[Any]:
        """What the script itself answers, to this call alone; each call takes its time."""
        self.raw.hincrby(KEYS["meta"], "test_held_us", CALL_US)
        return self._client.run(command._replace(parse=list, followup=None))

    def move(self, seconds: int) -> None:
        self.raw.hincrby(KEYS["meta"], "test_held_us", seconds * SECOND)

    def now(self) -> int:
        return int(self.raw.hget(KEYS["meta"], "test_held_us"))  # type: ignore[arg-type]

    def begin(self) -> None:
        """Empty it, and hold its clock: what is drawn must never depend on how fast it goes."""
        self.raw.flushdb()
        self.raw.hset(KEYS["meta"], "test_held_us", BEGAN_US)

    def stored(self) -> dict[str, Any]:
        """Everything, by name; sorted sets as id -> score, in their order."""
        pipe = self.raw.pipeline(transaction=True)
        names = [
            (name, key)
            for name in LAYOUT
            for key in KEYS.names[name]
            if LAYOUT[name].type != "any"  # what no verb makes
        ]
        read: dict[str, Any] = {
            "zset": lambda key: pipe.zrange(key, 0, -1, withscores=True),
            "hash": pipe.hgetall,
            "list": lambda key: pipe.lrange(key, 0, -1),
            "stream": pipe.xrange,
        }
        for name, key in names:
            read[LAYOUT[name].type](key)
        pipe.keys()
        *values, keys = pipe.execute()
        stored: dict[str, Any] = {"unknown": set(keys) - {key.encode() for _, key in names}}
        for (name, key), value in zip(names, values, strict=True):
            full = f"{name}:{key.rpartition(':')[2]}" if LAYOUT[name].fan else name
            if LAYOUT[name].type == "zset":
                stored[full] = [(member.decode(), int(score)) for member, score in value]
            elif LAYOUT[name].type == "hash":
                stored[full] = {field.decode(): text for field, text in value.items()}
            else:
                stored[full] = value
        stored["minutes"] = _counted(stored["minutes"])
        return stored


def _counted(fields: dict[str, bytes]) -> dict[str, Counter[str]]:
    """What was counted in each minute: lines, and the words of the one that is under way."""
    minutes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    under_way = fields.pop("this", b"").decode()
    for name, text in fields.items():
        words = text.decode().split() if name.isdecimal() else [f"{name}={int(text)}"]
        for word in words:
            kind, _, count = word.partition("=")
            minutes[name if name.isdecimal() else under_way][kind] += int(count)
    return dict(minutes)


def expected(model: Store) -> dict[str, Any]:
    """What should be stored."""
    runs = {id: job.run.line().encode() for id, job in model.jobs.items() if job.run}
    fans = [f"{name}:{level}" for name in ("due", "trash") for level in DUE]
    return {
        "unknown": set(),
        # What waits for others has a model of its own (`test_flows.py`).
        **{place: [] for place in ("blocked", "edges", "trash:blocked")},
        **{place: [(j.id, j.score) for j in model.at(place)] for place in fans},
        **{place: [(j.id, j.score) for j in model.at(place)] for place in ("active", *FINISHED)},
        "jobs": {id: job.body for id, job in model.jobs.items()},
        "run": runs,
        "results": {id: job.result for id, job in model.jobs.items() if job.result is not None},
        "notes": {id: b"\n".join(job.notes) for id, job in model.jobs.items() if job.notes},
        "terms": {
            id: job.constraints.encode() for id, job in model.jobs.items() if job.constraints
        },
        "expiring": by_score(model.expiring),
        "minutes": {str(minute): counts for minute, counts in model.minutes.items()},
        "meta": _meta(model),
        "asked": by_score(model.asked),
        "waiters": by_score(model.waiters),
        "keep": by_score(model.keep),
        "park": by_score(model.park),
        "claims": {
            worker: f"{then} {seq} {' '.join(ids)}".encode()
            for worker, (then, seq, ids) in model.claims.items()
        },
        "wake": [model.wakeup.encode()] if model.wakeup else [],
    }


def _meta(model: Store) -> dict[str, bytes]:
    texts = {"purged": model.purged, "retention": model.retention}
    texts |= {"rate": model.rate, "spent": model.spent}
    texts |= {"rewinding": "(a 0 -" if model.is_rewinding else ""}
    return {
        **{name: b"%d" % value for name, value in model.meta.items()},
        **{name: text.encode() for name, text in texts.items() if text},
    }
