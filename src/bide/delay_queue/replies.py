"""Reading what claims and pops bring: items, and what only stands where items should."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from bide.command import Command
from bide.delay_queue.steps import Steps, ask, ask_all
from bide.errors import PayloadError
from bide.ids import new_id
from bide.job import Claimed
from bide.keys import DEFAULT_PRIORITY, Keys
from bide.ops import consume, produce
from bide.ops.consume import Claim, Popped, Settle
from bide.ops.produce import Prepared
from bide.payload.codec import encode_error
from bide.payload.items import decode_item

log = logging.getLogger("bide.delay_queue")

Held = tuple[Claimed, Any]
"""What was claimed, and its data."""


def sorted_out(keys: Keys, reply: Claim, count: int) -> Steps[list[Held]]:
    """The items of a claim; what is no data has failed, and what is too much is given back."""
    claimed: list[Held] = []
    settles: list[Settle] = []
    for job in reply.jobs:
        try:
            data = decode_item(job.body)
        except PayloadError as error:
            log.warning("queue %s: job %s has failed: %s", keys.queue, job.id, error)
            settles.append(Settle(job.id, job.token, "fail", "", encode_error(error)))
            continue
        if len(claimed) < count:
            claimed.append((job, data))
        else:  # of a repeated call that had asked for more
            settles.append(release(job))
    yield from settle_all(keys, settles)
    return claimed


def release(job: Claimed) -> Settle:
    """Given back as if it had not been taken."""
    return Settle(job.id, job.token, "release")


def settle_all(keys: Keys, settles: Sequence[Settle]) -> Steps[list[consume.Verdict]]:
    """Apply any number of outcomes; one verdict for each."""
    commands: list[Command[Any]] = []
    while settles:
        size = consume.fitting(settles)
        commands.append(consume.settle(keys, settles[:size]))
        settles = settles[size:]
    return [verdict for verdicts in (yield from ask_all(commands)) for verdict in verdicts]


def decoded(reply: Popped) -> tuple[list[Any], list[bytes]]:
    """The data, and the bodies that cannot be read."""
    data: list[Any] = []
    unread: list[bytes] = []
    for body in reply.bodies:
        try:
            data.append(decode_item(body))
        except PayloadError:
            unread.append(body)
    return data, unread


def set_aside(keys: Keys, bodies: Sequence[bytes]) -> Steps[None]:
    """What cannot be read is put back without its mark: the next call has it fail, with a note."""
    count = len(bodies)
    log.warning("queue %s: %d items are not JSON, and fail by the next call", keys.queue, count)
    jobs = [Prepared(new_id(), "+0", DEFAULT_PRIORITY, body[1:]) for body in bodies]
    yield from ask(produce.enqueue(keys, jobs))
