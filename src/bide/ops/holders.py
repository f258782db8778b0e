"""Which workers live, and what each runs: from what they said lately, and who holds which lease.

A worker says every `EVERY` seconds that it lives. What it runs at this moment, the server knows
better: each job that runs is held under a lease, and its record names the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from bide.command import Command, command
from bide.errors import BideError, PayloadError
from bide.ids import is_name
from bide.keys import Keys, keys_of
from bide.ops.registry import MOST_DOING, Doing, WorkerSeen
from bide.ops.reply import text
from bide.payload.codec import decode_envelope

CHUNK: Final = 500
"""Jobs that one call looks at."""


class Held(NamedTuple):
    """What one worker holds of one queue."""

    number: int
    for_: float
    """Seconds until the last of its leases ends; 0 or less if they have ended."""
    doing: list[Doing]
    """The jobs that it has held for longest."""


Holders = dict[str, Held]
"""By the worker's name."""


def holders(
    keys: Keys, shown: int, start: int = 0, before: Holders | None = None
) -> Command[Holders]:
    """Ask which workers hold jobs of a queue.

    Args:
        keys: of the queue.
        shown: how many jobs of each worker to name.
        start: how many jobs to pass over.
        before: what earlier calls have found among these.
    """

    def read(reply: list[Any]) -> Holders:
        found = dict(before or {})
        for name, count, until_us, *jobs in reply[3:]:
            doing = [
                Doing(str(keys.queue), text(id), _task(body), since_us)
                for id, since_us, body in zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True)
            ]
            held = Held(count, (until_us - reply[1]) / 1e6, doing)
            found[text(name)] = _sum([held, *filter(None, [found.get(text(name))])], shown)
        return found

    def rest(reply: list[Any]) -> Command[Holders] | None:
        return holders(keys, shown, reply[2], read(reply)) if reply[2] else None

    return command("holders", keys, (start, CHUNK, shown), read, rest=rest)


def ask(seen: Sequence[WorkerSeen], prefix: str, shown: int = MOST_DOING) -> list[Command[Holders]]:
    """The calls that say what workers hold; `tell` takes what came of them.

    Args:
        seen: the workers that have said something within the last hour.
        prefix: of the keys.
        shown: how many jobs of each worker to name.
    """
    return [holders(keys_of(queue, prefix), shown) for queue in _queues(seen)]


def tell(seen: Sequence[WorkerSeen], replies: Sequence[Holders | BideError]) -> list[WorkerSeen]:
    """The workers that live or hold a job, with what they run now.

    What a worker runs of a queue that could not be read (whoever asks may have no permission) is
    what the worker said itself.
    """
    by_queue = dict(zip(_queues(seen), replies, strict=True))
    return [one for worker in seen if (one := _as_it_is(worker, by_queue)) is not None]


def _as_it_is(worker: WorkerSeen, by_queue: dict[str, Holders | BideError]) -> WorkerSeen | None:
    about = worker.about
    told = [by_queue.get(queue, {}) for queue in about.queues]
    read = [found for found in told if not isinstance(found, BideError)]
    held = _sum([found[worker.name] for found in read if worker.name in found], MOST_DOING)
    if about.lease and held.for_ > 0:  # a lease that was renewed is a sign of life, too
        worker = worker._replace(ago=min(worker.ago, max(0.0, about.lease - held.for_)))
    if not worker.alive and held.for_ <= 0:
        return None
    if len(read) < len(told):
        return worker
    # A worker may hold more jobs than it has slots for: the others wait for a slot.
    busy = min(held.number, about.concurrency) if about.concurrency else held.number
    about = msgspec.structs.replace(about, busy=busy, doing=held.doing[:busy])
    return worker._replace(about=about)


def _queues(seen: Sequence[WorkerSeen]) -> list[str]:
    return sorted({queue for worker in seen for queue in worker.about.queues if is_name(queue)})


def _sum(parts: Sequence[Held], shown: int) -> Held:
    doing = sorted((job for part in parts for job in part.doing), key=lambda job: job.since_us)
    return Held(
        sum(part.number for part in parts),
        max((part.for_ for part in parts), default=0.0),
        doing[:shown],
    )


def _task(body: bytes | None) -> str:
    try:
        return decode_envelope(body).body.task if body else "?"
    except PayloadError:
        return "?"
