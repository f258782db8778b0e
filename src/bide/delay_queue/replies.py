"""Reading what claims and pops bring: items, and what only stands where items should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bide.command import Command
from bide.delay_queue.steps import Steps, ask_all
from bide.errors import PayloadError, UsageError
from bide.ids import short_id
from bide.job import Claimed
from bide.keys import Keys
from bide.logs import Log
from bide.ops import consume
from bide.ops.consume import Claim, Popped, Settle
from bide.payload.codec import encode_error
from bide.payload.items import decode_item, is_item
from bide.payload.signing import Seal

log = Log("bide.delay_queue")

Held = tuple[Claimed, Any]
"""What was claimed, and its data."""

Refused = tuple[str, bytes]
"""An item's id, and the error that it fails with."""


MOST_REFUSED: Final = 12
"""Jobs that one call fails at most because they are no data; `lua/pop.lua` has it too."""


class Sorted(NamedTuple):
    """What a claim brought."""

    items: list[Held]
    settles: list[Settle]
    """What cannot be read has failed, and what is too much is given back."""
    strangers: list[Claimed]
    """Jobs, of which a worker should have been told."""


def sorted_out(seal: Seal, reply: Claim, count: int) -> Sorted:
    """What a claim brought; `seal` checks the signatures of items before they are decoded."""
    keys = seal.keys
    found = Sorted([], [], [])
    for job in reply.jobs:
        if not is_item(job.body):
            found.strangers.append(job)
            continue
        try:
            seal.check("item", job.id, job.body)
            data = decode_item(job.body)
        except PayloadError as error:
            log.warning("queue %s: item %s has failed: %s", keys.queue, short_id(job.id), error)
            found.settles.append(Settle(job.id, job.token, "fail", "", encode_error(error)))
            continue
        if len(found.items) < count:
            found.items.append((job, data))
        else:  # of a repeated call that had asked for more
            found.settles.append(release(job))
    return found


def judged(
    keys: Keys, strangers: Sequence[Claimed], has_items: bool, is_data: bool
) -> tuple[list[Settle], UsageError | None]:
    """What becomes of jobs that a delay queue has met, and what to raise.

    Where there are data, they fail, a few at a time. Who meets nothing but jobs is at the wrong
    queue, and leaves them as they were.
    """
    if not has_items and not is_data:
        return [release(job) for job in strangers], _astray(keys)
    failing, rest = strangers[:MOST_REFUSED], strangers[MOST_REFUSED:]
    _warn(keys, len(failing))
    settles = [Settle(job.id, job.token, "fail", "", _refusal(job)) for job in failing]
    settles += [release(job) for job in rest]
    crowd = not has_items and len(failing) == MOST_REFUSED
    return settles, _crowd(keys) if crowd else None


def heed(keys: Keys, reply: Popped) -> None:
    """Say what a pop met besides data.

    Raises:
        UsageError: there were jobs, and no data.
    """
    if reply.lost:
        log.error(
            "queue %s: %d items are lost: the call that took them had no answer, and it was "
            "repeated more than 15 s later; use take() for what must not be lost",
            keys.queue,
            reply.lost,
        )
    if reply.refused:
        _warn(keys, reply.refused)
    if reply.astray:
        raise _astray(keys)
    if reply.refused == MOST_REFUSED and not reply.bodies:
        raise _crowd(keys)


def _warn(keys: Keys, count: int) -> None:
    log.warning(
        "queue %s: met %d jobs, which are no data; they have failed, and stay to be retried "
        "once a Worker serves the queue",
        keys.queue,
        count,
    )


def _astray(keys: Keys) -> UsageError:
    return UsageError(
        f"Queue {keys.queue} holds jobs, and no data; give the DelayQueue a name of its own, or "
        "have a Worker serve this queue."
    )


def _crowd(keys: Keys) -> UsageError:
    return UsageError(
        f"Queue {keys.queue} holds data, but jobs stood before them, and {MOST_REFUSED} have "
        "failed; enqueue functions to another queue, and call again for what is behind them."
    )


def _refusal(job: Claimed) -> bytes:
    try:
        decode_item(job.body)
    except PayloadError as error:
        return encode_error(error)
    raise AssertionError(job)


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


def decoded(seal: Seal, reply: Popped) -> tuple[list[Any], list[Refused]]:
    """The data, and what cannot be given out: not signed as it has to be, or not JSON."""
    data: list[Any] = []
    refused: list[Refused] = []
    for id, body in zip(reply.ids, reply.bodies, strict=True):
        try:
            seal.check("item", id, body)
            data.append(decode_item(body))
        except PayloadError as error:
            log.warning("queue %s: item %s has failed: %s", seal.keys.queue, short_id(id), error)
            refused.append((id, encode_error(error)))
    return data, refused


def refuse_all(keys: Keys, refused: Sequence[Refused]) -> Steps[None]:
    """What was popped and cannot be given out has failed: it stays as it is, for `retry`."""
    size = consume.MAX_NOTED
    commands = [consume.refuse(keys, refused[i : i + size]) for i in range(0, len(refused), size)]
    yield from ask_all(commands)
