"""What a worker says and asks when it starts."""

from __future__ import annotations

from collections.abc import Sequence

from bide import aio
from bide.errors import BideError, TooOld, UsageError
from bide.keys import Keys
from bide.ops.inspect import Counts, counts
from bide.ops.registry import register


async def begin(client: aio.Client, everywhere: Keys, queues: Sequence[Keys]) -> None:
    """Note that the queues are in use.

    Raises:
        ServerUnavailable: the server could not be reached.
        UsageError: one of them holds data: all of it would fail.
        TooOld: one of them was laid out by a newer bide.
    """
    noting = register(everywhere, [str(keys.queue) for keys in queues])
    noted, *counted = await client.attempt_many([noting, *map(counts, queues)])
    if isinstance(noted, BideError):
        raise noted
    for keys, found in zip(queues, counted, strict=True):
        if isinstance(found, TooOld):
            raise found
        if isinstance(found, Counts) and found.is_data:  # if it is refused, the loop says so
            raise UsageError(
                f"Queue {keys.queue} is a delay queue: it holds data, which no worker can run; "
                "name another queue, or take what it holds with a DelayQueue."
            )
