"""Encoded bodies made into others, whose arguments are not touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from bide.errors import PayloadError
from bide.payload.codec import MAX_BODY
from bide.payload.items import is_item

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def with_parents(data: bytes, parents: Sequence[str]) -> bytes:
    """A body that waits for these jobs, instead of those it waited for; nothing else is changed.

    Raises:
        PayloadError: it is over `MAX_BODY` bytes by this, or it is data and no job.
    """
    if is_item(data):
        raise PayloadError("Data cannot wait for jobs; enqueue a job that pushes it.")
    head, newline, packed = data.partition(b"\n")
    named = msgspec.Raw(msgspec.json.encode(parents))
    data = msgspec.json.encode({**_fields.decode(head), "parents": named}) + newline + packed
    if len(data) > MAX_BODY:
        raise PayloadError(
            f"A job that waits for so many others takes {len(data):,} bytes, over {MAX_BODY:,}; "
            "have some jobs wait for a part of them each, and this one for those."
        )
    return data


def of_schedule(data: bytes, schedule: str) -> bytes:
    """An encoded body as that of the jobs of a schedule; its arguments are not touched."""
    head, newline, packed = data.partition(b"\n")
    return b'%b,"schedule":%b}' % (head[:-1], msgspec.json.encode(schedule)) + newline + packed
