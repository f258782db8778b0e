"""What can be done to jobs: one table for the library, the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bide.errors import UsageError
from bide.model.durations import Duration, to_us
from bide.model.job import State
from bide.protocol.command import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import Keys
from bide.queue.select import UNBEGUN

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
    over_us: int = 0
    """The time over which jobs are spread; 0 to give all of them one due time."""


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

    def calls(
        self, keys: Keys, ids: Sequence[str], how: How
    ) -> Iterator[tuple[Sequence[str], Command[Any]]]:
        """The commands that change jobs of one queue, each a bounded number of them: these ids."""
        if how.over_us:
            for some, us in spread(ids, how.over_us):
                yield some, job_commands.reschedule(keys, some, f"+{us}")
            return
        size = job_commands.MOST_CHANGED
        for i in range(0, len(ids), size):
            yield ids[i : i + size], self.command(keys, ids[i : i + size], how)

    def check(self, states: Iterable[State]) -> None:
        """Refuse states of jobs that cannot be changed so.

        Raises:
            UsageError: there is such a state.
        """
        for state in states:
            if state not in self.possible:
                allowed = ", ".join(each.value for each in self.possible)
                raise UsageError(
                    f"What is {state} cannot be {self.past}; only what is {allowed} can."
                )


def read_over(over: Duration, name: str = "over") -> int:
    """The time over which jobs are spread, in microseconds.

    Raises:
        UsageError: it is invalid, or zero.
    """
    over_us = to_us(over, name)
    if over_us < 1:
        raise UsageError("Say over how long to spread the jobs, such as 10m.")
    return over_us


MOST_STEPS: Final = 1_000
"""Moments over which jobs are spread, at most."""


def spread(ids: Sequence[str], over_us: int) -> list[tuple[Sequence[str], int]]:
    """Jobs in groups, in their order, and how long from now each is due: evenly over a time."""
    size = min(job_commands.MOST_CHANGED, -(-len(ids) // MOST_STEPS)) or 1
    groups = [ids[i : i + size] for i in range(0, len(ids), size)]
    return [(group, i * over_us // len(groups)) for i, group in enumerate(groups)]


class BulkResult(NamedTuple):
    """The effect of a change of all jobs that match a filter."""

    looked: int = 0
    """Jobs that were looked at."""
    total: int = 0
    """Jobs there were to look at."""
    found: int = 0
    """Jobs that match."""
    changed: int = 0
    """Jobs that were changed, or asked to stop."""
    results: Mapping[str, int] = {}
    """The number of jobs with each result: `ok`, `asked`, the state that prevented the change, or
    `gone`."""


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
