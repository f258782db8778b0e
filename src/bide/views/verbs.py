"""What can be done to jobs: one table for the command line, the dashboard and its forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from bide.model.job import State
from bide.protocol.command import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import Keys

_DUE: Final = (State.WAITING, State.DELAYED)
UNBEGUN: Final = (*_DUE, State.BLOCKED)
_ENDED: Final = (State.FAILED, State.CANCELLED, State.COMPLETED)


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
    leaves_list: bool = True
    """Whether changed jobs leave the list that they were in. Otherwise they look like the remaining
    ones."""
    fine: tuple[str, ...] = ("ok",)
    """Results that count as a success."""

    def commands(
        self,
        keys: Keys,
        ids: Sequence[str],
        *,
        when: str = "+0",
        running: bool = True,
        unbegun: bool = True,
    ) -> list[Command[Any]]:
        """Return the commands that change jobs of one queue, each a bounded number of them.

        `when` is the new due time of jobs to retry or reschedule, as `enqueue.when` writes it;
        `running` says whether to cancel running jobs, `unbegun` whether to delete those not begun.
        """
        size = job_commands.MOST_CHANGED
        chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
        match self.name:
            case "cancel":
                return [job_commands.cancel(keys, some, running) for some in chunks]
            case "promote":
                return [job_commands.promote(keys, some) for some in chunks]
            case "retry":
                return [job_commands.retry(keys, some, when) for some in chunks]
            case "delete":
                return [job_commands.delete(keys, some, unbegun) for some in chunks]
            case _:
                return [job_commands.reschedule(keys, some, when) for some in chunks]


VERBS: Final = {
    verb.name: verb
    for verb in (
        JobVerb(
            *("cancel", "Cancel", "cancelled", "cancelled", (State.ACTIVE, *UNBEGUN), _DUE),
            fine=("ok", "asked", "cancelled"),
        ),
        JobVerb("promote", "Run now", "promoted", "made due now", UNBEGUN, (State.DELAYED,)),
        JobVerb("reschedule", "Reschedule", "rescheduled", "rescheduled", UNBEGUN, _DUE, False),
        JobVerb("spread", "Spread", "spread", "spread", _DUE, _DUE, False),
        JobVerb("retry", "Retry", "retried", "retried", _ENDED, (State.FAILED,)),
        JobVerb("delete", "Delete", "deleted", "deleted", (*UNBEGUN, *_ENDED), _ENDED),
    )
}


def results(replies: Iterable[Any]) -> list[str]:
    """What came of each job: `ok`, `asked`, the state that it is in instead, or `gone`."""
    return [getattr(reply, "result", reply) for reply in replies]
