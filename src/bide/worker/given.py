"""What a worker was given: the server and the prefix that all of its queues have in common."""

from __future__ import annotations

from collections.abc import Sequence

from bide.errors import UsageError
from bide.queue import AsyncQueue, Queue


def agreed(what: str, given: str | None, queues: Sequence[Queue | AsyncQueue | str]) -> str | None:
    """What was given, else what the queues that are objects have in common.

    Raises:
        UsageError: they differ, so one worker cannot serve them all.
    """
    found = {getattr(queue, what) for queue in queues if not isinstance(queue, str)}
    if given is not None or not found:
        return given
    if len(found) > 1:
        raise UsageError(
            f"The queues differ in their {what}, and a worker serves one server and prefix; "
            "start a worker for each."
        )
    value: str = found.pop()
    return value
