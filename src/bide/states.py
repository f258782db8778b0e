"""The states of a job, and which verb leads from one to the next.

The table `TRANSITIONS` is the only place that says so; the scripts obey it, the model test walks
it, and `docs/keys.md` shows it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a job is in its life, as the API and the command line print it."""

    DELAYED = "delayed"
    """Due later than now."""
    WAITING = "waiting"
    """Due, and not yet taken: derived from the due time, never stored."""
    ACTIVE = "active"
    """Taken by a worker, under a lease."""
    COMPLETED = "completed"
    """Ran to its end."""
    FAILED = "failed"
    """Will not be run again: its attempts are spent, or it was refused."""
    CANCELLED = "cancelled"
    """Taken back before it ran, or asked to end while it ran."""


LISTABLE: Final = tuple(State)
"""The states that can be listed, in the order in which they are shown."""

FINISHED: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
"""The states that a job does not leave by itself."""

_DUE: Final = (State.DELAYED, State.WAITING)

TRANSITIONS: Final[dict[str, tuple[tuple[State, ...], tuple[State, ...]]]] = {
    "claim": ((State.WAITING,), (State.ACTIVE,)),
    "complete": ((State.ACTIVE,), (State.COMPLETED,)),
    "retry": ((State.ACTIVE,), (*_DUE, State.CANCELLED)),
    "fail": ((State.ACTIVE,), (State.FAILED,)),
    "snooze": ((State.ACTIVE,), (*_DUE, State.CANCELLED)),
    "release": ((State.ACTIVE,), (State.WAITING, State.CANCELLED)),
    "crash": ((State.ACTIVE,), (State.WAITING, State.FAILED, State.CANCELLED)),
    "extend": ((State.ACTIVE,), (State.ACTIVE,)),
    "reclaim": ((State.ACTIVE,), (State.WAITING, State.FAILED, State.CANCELLED)),
    "cancel": ((*_DUE, State.ACTIVE), (State.CANCELLED,)),
    "reschedule": (_DUE, _DUE),
    "promote": (_DUE, (State.WAITING,)),
    "revive": ((State.COMPLETED, State.FAILED, State.CANCELLED), _DUE),
}
"""verb -> (the states it takes a job from, the states it may lead to).

`retry` is what a worker settles an attempt with. What a person asks of a job that has ended, the
script `retry` and `job.retry()`, is called `revive` here: it leads elsewhere, from elsewhere.
"""
