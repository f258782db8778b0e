"""What can be done to jobs: one table for the command line, the dashboard and its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from bide.model.job import State
from bide.protocol.command import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import Keys
from bide.views.job import UNBEGUN

_DUE: Final = (State.WAITING, State.DELAYED)
_ENDED: Final = (State.FAILED, State.CANCELLED, State.COMPLETED)


class How(NamedTuple):
    """The details of a change; each verb reads its own."""

    when: str = "+0"
    """The new due time, to retry or reschedule, as `enqueue.when` writes it."""
    running: bool = True
    """Whether to cancel jobs that run."""
    unbegun: bool = True
    """Whether to delete jobs that have not begun."""


class JobVerb(NamedTuple):
    """A change of jobs, and the states of jobs that allow it."""

    name: str
    label: str
    """Of its button."""
    past: str
    """What was done, on the command line."""
    done: str
    """What was done, on the dashboard."""
    possible: tuple[State, ...]
    usual: tuple[State, ...]
    """The states that a filter on the command line selects if it names none."""
    command: Callable[[Keys, Sequence[str], How], Command[Any]]
    """Returns the command for a bounded number of jobs of a queue."""
    help: str = ""
    """What its command does; empty if the command line has none."""
    leaves_list: bool = True
    """Whether changed jobs leave the list that they were in. Otherwise they look like the remaining
    ones."""
    fine: tuple[str, ...] = ("ok",)
    """Results that count as a success."""

    def commands(self, keys: Keys, ids: Sequence[str], how: How) -> list[Command[Any]]:
        """Return the commands that change jobs of one queue, each a bounded number of them."""
        size = job_commands.MOST_CHANGED
        return [self.command(keys, ids[i : i + size], how) for i in range(0, len(ids), size)]


def _reschedule(keys: Keys, ids: Sequence[str], how: How) -> Command[Any]:
    return job_commands.reschedule(keys, ids, how.when)


VERBS: Final = {
    verb.name: verb
    for verb in (
        JobVerb(
            *("cancel", "Cancel", "cancelled", "cancelled", (State.ACTIVE, *UNBEGUN), _DUE),
            lambda keys, ids, how: job_commands.cancel(keys, ids, how.running),
            "Cancel jobs, and ask running jobs to stop.",
            fine=("ok", "asked", "cancelled"),
        ),
        JobVerb(
            *("promote", "Run now", "promoted", "made due now", UNBEGUN, (State.DELAYED,)),
            lambda keys, ids, how: job_commands.promote(keys, ids),
            "Make jobs due now.",
        ),
        JobVerb(
            *("reschedule", "Reschedule", "rescheduled", "rescheduled", UNBEGUN, _DUE),
            _reschedule,
            "Give jobs another due time.",
            leaves_list=False,
        ),
        JobVerb(
            *("spread", "Spread", "spread", "spread", _DUE, _DUE, _reschedule), leaves_list=False
        ),
        JobVerb(
            *("retry", "Retry", "retried", "retried", _ENDED, (State.FAILED,)),
            lambda keys, ids, how: job_commands.retry(keys, ids, how.when),
            "Run finished jobs again.",
        ),
        JobVerb(
            *("delete", "Delete", "deleted", "deleted", (*UNBEGUN, *_ENDED), _ENDED),
            lambda keys, ids, how: job_commands.delete(keys, ids, how.unbegun),
            "Delete jobs and all their data. A running job cannot be deleted.",
        ),
    )
}


def results(replies: Iterable[Any]) -> list[str]:
    """What came of each job: `ok`, `asked`, the state that it is in instead, or `gone`."""
    return [getattr(reply, "result", reply) for reply in replies]
