r"""What travels in a `DelayQueue`: data, and no task.

The body of an item is one byte that the body of a job cannot begin with, then the data as JSON:

    \x03{"user":1}

So a worker that meets an item knows it for what it is, and a `DelayQueue` knows a job.
"""

from __future__ import annotations

from typing import Any, Final

from bide.errors import PayloadError
from bide.payload.serializers import pack, reason, unpack
from bide.payload.signing import unsigned

MARK: Final = b"\x03"
"""`lua/pop.lua` has it too."""

MAX_DATA: Final = 1_000_000
"""The largest item in bytes; it is a message, not a file."""


def encode_item(data: object) -> bytes:
    """Encode data.

    Raises:
        PayloadError: it does not fit JSON, or takes more than `MAX_DATA` bytes.
    """
    try:
        packed = pack(data, "json")
    except Exception as error:  # properties and time zones of the data's own may raise anything
        raise PayloadError(f"The data: {reason(error, 'json')}.") from None
    if len(packed) > MAX_DATA:
        raise PayloadError(
            f"The data take {len(packed):,} bytes, more than {MAX_DATA:,}; store them elsewhere "
            "and push their id."
        )
    return MARK + packed


def is_item(body: bytes) -> bool:
    """Whether a stored body is that of an item, not of a job."""
    return body[:1] == MARK


def decode_item(body: bytes) -> Any:
    """Decode a stored item.

    Raises:
        PayloadError: it is a job, or cannot be read.
    """
    if not is_item(body):
        raise PayloadError(
            "This is a job, not data: a DelayQueue met it and cannot run it; have a Worker serve "
            "this queue, and retry the job."
        )
    try:
        return unpack(unsigned(body)[1:], "json")
    except Exception as error:
        raise PayloadError(f"The stored data are not JSON: {error}.") from None
