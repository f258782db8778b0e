"""Hearing at once that a running job was asked to end.

The message is a hint: the answer to every renewal of a lease says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bide import aio


async def hear(
    client: aio.Client, channels: Sequence[str], ask: Callable[[str, str], None]
) -> None:
    """Listen until cancelled.

    Args:
        client: of the server.
        channels: of the queues that the worker serves.
        ask: called with the channel and the id of the job: ids are each queue's own.
    """
    async with client.listen(*channels) as listener:
        while True:
            said = await listener.next()
            if said is not None:
                ask(*said)
