"""The states of a job, and which verb leads from one to the next.

The table `TRANSITIONS` is the only place that says so; the scripts obey it, the model test walks
it, and `docs/keys.md` shows it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a job is in its life, as the API and the command line print it."""

    BLOCKED = "blocked"
    """Waits for other jobs."""
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
    "pop": ((State.WAITING,), (State.COMPLETED, State.FAILED)),
    "refuse": ((State.COMPLETED,), (State.FAILED,)),
    "complete": ((State.ACTIVE,), (State.COMPLETED,)),
    "retry": ((State.ACTIVE,), (*_DUE, State.CANCELLED)),
    "fail": ((State.ACTIVE,), (State.FAILED,)),
    "snooze": ((State.ACTIVE,), (*_DUE, State.CANCELLED)),
    "release": ((State.ACTIVE,), (State.WAITING, State.CANCELLED)),
    "crash": ((State.ACTIVE,), (State.WAITING, State.FAILED, State.CANCELLED)),
    "extend": ((State.ACTIVE,), (State.ACTIVE,)),
    "reclaim": ((State.ACTIVE,), (State.WAITING, State.FAILED, State.CANCELLED)),
    "expire": ((*_DUE, State.BLOCKED), (State.CANCELLED,)),
    "free": ((State.BLOCKED,), _DUE),
    "drop": ((State.BLOCKED,), (State.CANCELLED,)),
    "cancel": ((*_DUE, State.BLOCKED, State.ACTIVE), (State.CANCELLED,)),
    "reschedule": (_DUE, _DUE),
    "promote": ((*_DUE, State.BLOCKED), (State.WAITING,)),
    "revive": ((State.COMPLETED, State.FAILED, State.CANCELLED), _DUE),
}
"""verb -> (the states it takes a job from, the states it may lead to).

`retry` is what a worker settles an attempt with. What a person asks of a job that has ended, the
script `retry` and `job.retry()`, is called `revive` here: it leads elsewhere, from elsewhere.
A job that waits for others is freed by their ends, or dropped where one did not end as it should;
to reschedule it says when it is due then.
What is popped is data, and completed by that; a job that is none has failed, and so have data that
cannot be given out (`refuse`).
"""


EVENTS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "added": (
        ("enqueue", "fire"),
        "The job is there: delayed, waiting if it is due, or blocked if it waits for others. "
        "Someone enqueued it, or its schedule fired.",
    ),
    "freed": (
        ("free",),
        "What it waited for has ended: it is delayed, or waits if it is due.",
    ),
    "active": (("claim",), "A worker has taken it."),
    "progress": (("note",), "It said how far it is."),
    "completed": (("complete", "pop"), "It ran to its end; or it was data, and was popped."),
    "retried": (
        ("retry", "revive"),
        "It is to run again: an attempt raised, or someone asked so of a job that had ended.",
    ),
    "failed": (("fail", "reclaim", "crash", "pop", "refuse"), "It will not be run again."),
    "cancelled": (
        ("cancel", "reclaim", "expire", "drop"),
        "It was taken back; or it ran, was asked to end, and did; or it had not begun in time; or "
        "a job that it waited for did not end as it should have.",
    ),
    "reclaimed": (
        ("reclaim", "crash"),
        "Its lease ended without an outcome, or its process died: it waits again, unless `failed` "
        "or `cancelled` follows.",
    ),
    "rescheduled": (
        ("reschedule", "promote", "snooze", "release"),
        "It is due at another time: someone moved it, it snoozed, or a worker that stopped, or "
        "does not serve its task, gave it back.",
    ),
    "deleted": (("delete",), "Someone removed every trace of it."),
    "emptied": (
        ("empty",),
        "All jobs of the queue that were delayed, waiting or blocked were removed.",
    ),
    "drained": (
        ("settle", "reclaim", "pop"),
        "Nothing is left to do: no job is active, and none is due. Delayed ones may be there.",
    ),
    "gap": ((), "Events between the one before and the one after were lost."),
}
"""kind of event -> (the verbs that tell it, what it says).

Told while someone listens (`Queue.events`). A running job that is asked to end, and a lease that is
extended, change no state and tell nothing; nor does a finished job that is kept no longer.
"""
