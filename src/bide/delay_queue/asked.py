"""What may be asked of a delay queue, and what cannot be meant."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from bide.clock import Duration, to_us
from bide.errors import UsageError
from bide.ops import consume
from bide.queue.place import Place

C = TypeVar("C")

LEASE: Final = 30.0
"""Seconds for which an item is held, unless its consumer says otherwise."""


class Wanted(NamedTuple):
    """What a `take` asks for."""

    num: int
    lease_us: int
    wait: float | None
    """Seconds; None for as long as it takes."""


def wanted(num: int, lease: Duration, wait: Duration | None) -> Wanted:
    """What a `take` asks for.

    Raises:
        UsageError: one of them cannot be meant.
    """
    wait_us = None if wait is None else to_us(wait, "wait")
    seconds = None if wait_us is None else wait_us / 1e6
    return Wanted(checked_num(num, consume.MAX_CLAIM), checked_lease(lease), seconds)


def checked_num(num: int, most: int | None = None) -> int:
    """How many items are asked for.

    Raises:
        UsageError: it is no number of items.
    """
    if isinstance(num, bool) or not isinstance(num, int) or num < 1 or (most and num > most):
        raise UsageError(
            f"num={num!r} is no number of items; give 1 {f'to {most}' if most else 'or more'}."
        )
    return num


def checked_lease(lease: Duration) -> int:
    """A lease in microseconds.

    Raises:
        UsageError: it is not a duration, or none at all.
    """
    lease_us = to_us(lease, "lease")
    if lease_us == 0:
        raise UsageError("lease=0 would hold nothing; give as long as the work on an item takes.")
    return lease_us


def usable(place: Place[C]) -> Place[C]:
    """The place, if it has a server.

    Raises:
        UsageError: functions run at once there, and there is nothing that could hold data.
    """
    if place.stand_in is not None:
        raise UsageError(
            "bide.testing.eager() has no server that could hold data; test a DelayQueue with the "
            "fixture `bide_test`, or bide.testing.start()."
        )
    return place
