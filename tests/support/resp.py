"""Where one message of the servers' protocol ends: all that the proxy needs to know of it."""

from __future__ import annotations


def end_of_message(data: bytes | bytearray, start: int = 0) -> int | None:
    """The index after the message that begins at `start`; None while it has not arrived whole.

    Requests are messages too: arrays of bulk strings. Version 2 of the protocol, which is the one
    that bide speaks.
    """
    line_end = data.find(b"\r\n", start)
    if line_end < 0:
        return None
    kind, after = data[start : start + 1], line_end + 2
    if kind in (b"+", b"-", b":"):
        return after
    if kind not in (b"$", b"*"):
        raise ValueError(f"not a message: {bytes(data[start : start + 40])!r}")
    count = int(data[start + 1 : line_end])
    if count < 0:
        return after
    if kind == b"$":
        end = after + count + 2
        return end if end <= len(data) else None
    for _ in range(count):
        inner = end_of_message(data, after)
        if inner is None:
            return None
        after = inner
    return after


def take_messages(data: bytearray) -> list[bytes]:
    """Cut the whole messages off the front of `data`."""
    messages, start = [], 0
    while start < len(data):
        end = end_of_message(data, start)
        if end is None:
            break
        messages.append(bytes(data[start:end]))
        start = end
    del data[:start]
    return messages
