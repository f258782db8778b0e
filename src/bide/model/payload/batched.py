r"""The body of a batch job: the bodies of its calls, one after another.

Each is one byte that no other body begins with, its length in digits, a newline, and the body as
its client sent it, with its signature if it has one:

    \x06 38\n{"task":"app.tasks:index","args":[42]} ...     (without the space)

So a script appends a call without parsing it, and each call has its own signature. Each call also
has its own codec: during a change of codec, producers of both codecs add to the same batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from bide.errors import PayloadError
from bide.model.payload.serializers import CODECS

if TYPE_CHECKING:
    from bide.model.payload.body import Body, Envelope

BATCH_MARK: Final = b"\x06"
"""`lua/include/dedup.lua` has it too."""

MOST: Final = 1_001_000
"""Bytes: those of the largest body, and of what frames and signatures may take beside."""

_HEAD: Final = re.compile(rb"\x06([0-9]{1,9})\n")


def is_batch(body: bytes) -> bool:
    """Whether a stored body holds those of several calls."""
    return body[:1] == BATCH_MARK


def frame(body: bytes) -> bytes:
    """A body as one of several."""
    return BATCH_MARK + b"%d\n" % len(body) + body


def calls_in(body: bytes) -> list[bytes]:
    """The bodies of the calls, in their order of arrival; at least one."""
    found: list[bytes] = []
    at = 0
    while at < len(body):
        head = _HEAD.match(body, at)
        end = head.end() + int(head[1]) if head else 0
        if head is None or end > len(body):
            raise PayloadError(
                "The stored body of batched calls is cut off or spoilt; delete the job, and find "
                "out who can write to the server."
            )
        found.append(body[head.end() : end])
        at = end
    return found


def join(data: bytes, decode: Callable[[bytes], Envelope]) -> tuple[Body, bytes]:
    """Join a batch: the first call's task and options, and the arguments of all calls.

    Return the body, with the most general codec of its calls; and the packed arguments, empty if
    all are JSON.
    """
    if len(data) > MOST:
        raise PayloadError(f"The batched calls have {len(data):,} bytes, more than {MOST:,}.")
    calls = calls_in(data)
    if any(map(is_batch, calls)):
        raise PayloadError(
            "The stored body of batched calls contains another batch; delete the job."
        )
    bodies = [decode(call).body for call in calls]
    codec = max((each.codec for each in bodies), key=CODECS.index)
    body = msgspec.structs.replace(bodies[0], args=(), kwargs={}, description=None, codec=codec)
    if any(each.task != body.task for each in bodies):
        raise PayloadError(f"Among the calls batched for {body.task} are calls of other tasks.")
    return (with_items(body, bodies), b"") if codec == "json" else (body, data)


def with_items(body: Body, calls: Sequence[Body]) -> Body:
    """The body with one argument: the list of those of the calls."""
    if any(len(call.args) != 1 or call.kwargs for call in calls):
        raise PayloadError(f"Each call that is batched for {body.task} must have one argument.")
    return msgspec.structs.replace(body, args=([call.args[0] for call in calls],), kwargs={})
