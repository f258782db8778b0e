"""What a worker was given: the server and the prefix that all of its queues have in common."""

from __future__ import annotations

from collections.abc import Sequence

from bide.errors import UsageError
from bide.payload.signing import VARIABLE, Keyring
from bide.queue import AsyncQueue, Queue
from bide.queue.place import Permit


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


def permit_for(url: str | None, queues: Sequence[Queue | AsyncQueue | str]) -> Permit:
    """Whether a test lets a worker use its server: its own, or that of queues that are objects."""
    permits = [queue._permit for queue in queues if not isinstance(queue, str)]
    asked = [permit for permit in permits if not permit.is_given]
    return Permit(url) if url is not None or not permits else (asked or permits)[0]


def pickling(
    queues: Sequence[Queue | AsyncQueue | str], allow: bool, keyring: Keyring | None
) -> set[str]:
    """The names of those whose pickled arguments are read: all, or those that chose pickle.

    Raises:
        UsageError: there are such, and no key could tell who has made them.
    """
    found = {
        queue if isinstance(queue, str) else queue.name
        for queue in queues
        if allow or (not isinstance(queue, str) and queue.serializer == "pickle")
    }
    if found and keyring is None:
        raise UsageError(
            "Pickles are read only with a signing key, or whoever can write to the server could "
            f"run any code here; set ${VARIABLE}, or serve no queue that pickles."
        )
    return found
