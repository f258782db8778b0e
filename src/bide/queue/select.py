"""Filters of jobs, the paging of lists, and the changes of selected jobs.

The library, the command line and the dashboard share this filter.

A search reads state by state and queue by queue, a bounded number of jobs at a time, and can be
continued. A page is read by its offset in the list, and each job that leaves the list before that
offset moves all others up. So pages overlap. If a page contains nothing that was read before, the
jobs have moved up by more than the overlap, and the search reads further up. A continued search of
a list that gains jobs only at the start compares the sizes of the list, see `Place.start_in`.

`VERBS` is their shared table of changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Final, NamedTuple

import msgspec

from bide.errors import PayloadError, UsageError
from bide.logs import plain, printable
from bide.model.durations import Duration, at_to_us, to_us
from bide.model.ids import LONGEST, check_name
from bide.model.job import FINISHED, LISTABLE, Snapshot, State
from bide.model.payload.body import ErrorInfo
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.jobs import MAX_PAGE
from bide.protocol.keys import Keys
from bide.queue.job_view import JobView, error_line, written
from bide.tasks.registry import task_name
from bide.tasks.task import signature_of_loaded

_NUMBER: Final = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\d+"  # also a UUID
)
_QUOTED: Final = re.compile(r"(?<!\w)'(?:[^']|'(?=\w))*'|\"[^\"]*\"")
"""An apostrophe within a word does not start a quotation."""
LONGEST_LINE: Final = 200
_COMPARED: Final = 1_000
"""Number of compared characters of a line; more than are shown, because quotes may be long."""


def first_line(error: ErrorInfo) -> str:
    """Return the compared part of a message: its first line, cut."""
    return error.message[:_COMPARED].partition("\n")[0]


def kind_of(error: ErrorInfo | None) -> str:
    """Return the text that all failures of a kind share, such as `ValueError: no order #`."""
    if error is None:
        return "(no error was kept)"
    message = _NUMBER.sub("#", _QUOTED.sub("'…'", first_line(error)))[:LONGEST_LINE]
    # Addresses and forms lose blanks at the ends, and control characters.
    return printable(f"{error.type}: {message}" if message.strip() else error.type).strip()


OVERLAP: Final = 50
"""Number of jobs that consecutive pages share."""

BACK: Final = 200
"""Number of places to go back if a page has no job of the page before."""


class Paging:
    """The position of a search in a list."""

    def __init__(self, start: int = 0, known: Sequence[str] = ()) -> None:
        """Start at a place; `known` has the ids that were read right before it."""
        self.start = start
        self._known = set(known)
        self._first = self._size = 0
        self.is_over = False
        """Whether there is nothing left to read."""

    def page(self, most: int) -> tuple[int, int]:
        """Return place and size of the next page, for up to `most` new ids."""
        self._first = max(0, self.start - OVERLAP) if self._known else self.start
        self._size = most + self.start - self._first
        return self._first, self._size

    def read(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the new ids of that page, with their places."""
        met = next((i for i, id in enumerate(ids) if id in self._known), None)
        if met is None and self._known and self._first:
            self.start = max(0, self._first - BACK)
            return {}
        behind = enumerate(ids[met or 0 :], self._first + (met or 0))
        fresh = {id: at for at, id in behind if id not in self._known}
        self._known.update(fresh)
        self.start = self._first + len(ids)
        self.is_over = len(ids) < self._size
        return fresh


EVERY: Final = 1_000_000_000
"""More jobs than any server holds, for a search without a limit."""

PAGE: Final = MAX_PAGE - OVERLAP
"""Jobs that such a search reads per round trip."""

LOOK: Final = 2_000
"""Maximum number of jobs that are read for one page of results."""

MOVING: Final = (State.WAITING, State.DELAYED)
"""States whose lists lose jobs at the start; other lists gain jobs there."""

_DIGITS: Final = re.compile("[0-9]{1,12}")


class FoundJob(NamedTuple):
    """A job, with its queue."""

    queue: str
    snapshot: Snapshot

    @property
    def id(self) -> str:
        """The job's id."""
        return self.snapshot.id

    @property
    def state(self) -> State:
        """The job's state."""
        return self.snapshot.state

    @property
    def job(self) -> JobView[Any]:
        """The job as a `JobView`; pickled arguments are not read."""
        return JobView(None, self.snapshot.id, snapshot=self.snapshot)

    @property
    def has_not_begun(self) -> bool:
        """Whether it is a job that waits, is delayed or is blocked."""
        return self.state in UNBEGUN and not self.snapshot.is_item

    @property
    def moment_us(self) -> int:
        """When it finished, started or is due, depending on its state."""
        seen = self.snapshot
        if seen.state in FINISHED:
            return seen.finished_us
        if seen.state == State.ACTIVE and seen.run is not None:
            return seen.run.started_us
        return seen.due_us

    @property
    def has_moment(self) -> bool:
        """Whether that moment is known: most blocked jobs are due as soon as they are unblocked."""
        seen = self.snapshot
        is_set = seen.constraints.when.startswith("=") and seen.due_us > seen.now_us
        return seen.state != State.BLOCKED or is_set

    @property
    def ago(self) -> float:
        """Seconds since that moment, by the server's clock; negative if it is in the future."""
        return (self.snapshot.now_us - self.moment_us) / 1e6


UNBEGUN: Final = (State.WAITING, State.DELAYED, State.BLOCKED)

Mask = Callable[[str, str, Any], Any]
"""Takes a task's name, the kind (`args`, `kwargs`, `meta`, `result`, `data`, `error`) and a value,
and returns the value to show, which JSON can hold. For an error it is called with the message, and
then with the traceback."""


def unmasked(task: str, kind: str, value: Any) -> Any:
    """Show every value; this is the mask of the library, and the mask `none`."""
    return value


def masked_error(error: ErrorInfo | None, task: str, mask: Mask) -> ErrorInfo | None:
    """Return an error with its message and its traceback masked."""
    if error is None or mask is unmasked:
        return error
    shown = [mask(task, "error", text) for text in (error.message, error.traceback)]
    message, trace = (text if isinstance(text, str) else written(text) for text in shown)
    return ErrorInfo(error.type, message, trace)


def searched(snapshot: Snapshot, mask: Mask) -> str:
    """Return the text of a job that a search compares: only what the dashboard shows."""
    parts = [snapshot.id]
    try:
        if snapshot.is_item:
            parts.append(written(mask(snapshot.task, "data", plain(snapshot.data()))))
        else:
            head = snapshot.head
            parts.append(head.description or "")
            if head.codec == "json":
                parts.append(written(mask(snapshot.task, "args", plain(list(head.args)))))
                parts.append(written(mask(snapshot.task, "kwargs", plain(dict(head.kwargs)))))
    except PayloadError:
        pass
    return "\n".join(parts)


@dataclass(frozen=True)
class Filter:
    """The conditions of a selection of jobs."""

    states: tuple[State, ...]
    task: str | None = None
    """A pattern of the task's name, with the wildcards of a shell."""
    group: str | None = None
    """The name of the group."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Masked arguments by name or position; other arguments may have any value. Pickled arguments
    are not read."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Masked entries of the meta."""
    error: str | None = None
    """A pattern of the last error, in the form `ValueError: no such order`."""
    kind: str = ""
    """The kind of failure, in the form of `kind_of`."""
    text: str = ""
    """A text that the masked data of the job contain."""
    since_us: int | None = None
    until_us: int | None = None
    """A range for the moment at which it came to its state, or is due."""
    older_us: int | None = None
    """The minimum time since that moment, by the server's clock."""
    due_before_us: int | None = None
    due_within_us: int | None = None
    """The maximum time until it is due, by the server's clock."""

    def within(self, states: tuple[State, ...]) -> Filter:
        """Return the same filter for jobs in these states."""
        return replace(self, states=states)

    @property
    def reads_jobs(self) -> bool:
        """Whether the filter needs more than queue and state, so that jobs must be read."""
        return self != Filter(self.states)

    def fits(self, seen: FoundJob, mask: Mask) -> bool:
        """Whether a job matches."""
        snapshot, at_us = seen.snapshot, seen.moment_us
        if seen.state not in self.states:
            return False  # its state has changed since the list was read
        if self.task is not None and not fnmatchcase(snapshot.task, self.task):
            return False
        if self.group is not None and snapshot.constraints.group != self.group:
            return False
        if self.error is not None or self.kind:
            error = masked_error(snapshot.notes.error, snapshot.task, mask)
            if not self._fits_error(error):
                return False
        bounds = {self.since_us, self.until_us, self.older_us, self.due_before_us}
        if not seen.has_moment and {*bounds, self.due_within_us} != {None}:
            return False
        if self.since_us is not None and at_us < self.since_us:
            return False
        if self.until_us is not None and at_us >= self.until_us:
            return False
        if self.older_us is not None and snapshot.now_us - at_us <= self.older_us:
            return False
        if self.due_before_us is not None and snapshot.due_us >= self.due_before_us:
            return False
        due_in_us = snapshot.due_us - snapshot.now_us
        if self.due_within_us is not None and due_in_us >= self.due_within_us:
            return False
        if (self.args or self.meta) and not self._fits_payload(snapshot, mask):
            return False
        return not self.text or self.text.lower() in searched(snapshot, mask).lower()

    def _fits_error(self, error: ErrorInfo | None) -> bool:
        """Whether an error contains the text, or matches the pattern, and is of the kind."""
        if self.error is not None:
            line = error_line(error) if error else ""
            # As text too: many errors of Python have brackets, which no one means as wildcards.
            if not line or not (self.error in line or fnmatchcase(line, self.error)):
                return False
        return not self.kind or kind_of(error) == self.kind

    def _fits_payload(self, snapshot: Snapshot, mask: Mask) -> bool:
        """Whether the arguments and the meta have these values."""
        if snapshot.is_item:
            return False
        task = snapshot.task
        try:
            meta = snapshot.head.meta or {}
            if self.meta and not _has(mask(task, "meta", meta), self.meta):
                return False
            if not self.args:
                return True
            body = snapshot.body()
            given = [list(body.args), dict(body.kwargs)]
            if body.codec != "json":  # convert values of other types to their JSON forms
                given = msgspec.json.decode(msgspec.json.encode(given))
        except (PayloadError, msgspec.MsgspecError, TypeError, ValueError, RecursionError):
            return False
        args, kwargs = mask(task, "args", given[0]), mask(task, "kwargs", given[1])
        if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
            return False  # the mask has replaced all values
        takes = signature_of_loaded(task)
        named: dict[str, Any] = {**kwargs}
        for i, value in enumerate(args):
            named[str(i)] = value
            if takes is not None:
                named.setdefault(takes.position(i), value)
        return _has(named, self.args)


_MISSING: Final = object()


def _has(given: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether a mapping has these values; 1 is 1.0, and not True."""
    return isinstance(given, Mapping) and all(
        (value := given.get(name, _MISSING)) == want
        and isinstance(value, bool) == isinstance(want, bool)
        for name, want in wanted.items()
    )


def as_stored(values: Any, what: str) -> dict[str, Any]:
    """Convert values, by name, to their JSON forms, to compare them with stored values.

    Raises:
        UsageError: it is not a mapping, or has a value that JSON cannot hold.
    """
    if not isinstance(values, Mapping):
        raise UsageError(
            f"{what} must map names to values, as {{'user_id': 42}} does, not {values!r}."
        )
    try:
        return {str(n): msgspec.json.decode(msgspec.json.encode(v)) for n, v in values.items()}
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{what} has a value that JSON cannot hold: {error}.") from None


def read_value(text: str) -> Any:
    """Parse a typed argument: as JSON if it is valid (`42`, `true`, `[1]`), otherwise as text."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> None:
    """Refuse NaN and Infinity, which Python's parser accepts and JSON does not have."""
    raise ValueError(name)


def read_pairs(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Parse typed names and values: `user_id=42`.

    Raises:
        UsageError: a pair has no name or no value.
    """
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"{name} {pair[:60]!r} has no value; write it as NAME=VALUE.")
        found[key.strip()] = read_value(value)
    return as_stored(found, name)


def make_filter(
    *,
    state: str | Iterable[str] | None,
    task: Any,
    group: str | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    meta: Mapping[str, Any] | None,
    error: str | None,
    older_than: Duration | None,
    due_before: Duration | datetime | None,
    since: datetime | None,
    until: datetime | None,
) -> Filter:
    """Create a filter from the arguments of `queue.where`.

    Raises:
        UsageError: an argument is invalid.
    """
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise UsageError(f"args must be a sequence of positional arguments, not {args!r}.")
    given = as_stored(dict(enumerate(args)), "args")
    if state is not None and not isinstance(state, Iterable):
        raise UsageError(f"state must be a state or several, such as 'delayed', not {state!r}.")
    states = [state] if isinstance(state, str) else [*(state or ())]
    for each in states:
        if each not in LISTABLE:
            raise UsageError(f"There is no state {each!r}; give one of {', '.join(LISTABLE)}.")
    since_us = None if since is None else at_to_us(since, "since")
    until_us = None if until is None else at_to_us(until, "until")
    check_range(since_us, until_us, "since", "until")
    due_before_us, due_within_us = due_bounds(due_before)
    return Filter(
        states=in_turn(states),
        task=task if task is None or isinstance(task, str) else escape(task_name(task)),
        group=None if group is None else check_name(group, "group"),
        args=given if kwargs is None else given | as_stored(kwargs, "kwargs"),
        meta={} if meta is None else as_stored(meta, "meta"),
        error=None if error is None else anywhere(checked_text(error, "error")),
        older_us=None if older_than is None else to_us(older_than, "older_than"),
        since_us=since_us,
        until_us=until_us,
        due_before_us=due_before_us,
        due_within_us=due_within_us,
    )


def check_range(since_us: int | None, until_us: int | None, start: str, end: str) -> None:
    """Refuse a range of time that is empty, because it ends before it starts."""
    if since_us is not None and until_us is not None and until_us <= since_us:
        raise UsageError(f"{start} is not before {end}, so no job can match; exchange them.")


def checked_text(text: Any, what: str) -> str:
    """Check a text that a filter compares."""
    if not isinstance(text, str) or not text:
        raise UsageError(f"{what} must be text to look for, not {text!r}.")
    return text


def due_bounds(
    when: Duration | datetime | None, name: str = "due_before"
) -> tuple[int | None, int | None]:
    """Return the bounds of a filter for due times: a moment, and a duration from now."""
    if when is None or isinstance(when, datetime):
        return (None if when is None else at_to_us(when, name)), None
    return None, to_us(when, name)


def pattern_of(text: str) -> str | None:
    """Convert a parameter to a pattern; a parameter that starts with = must match exactly."""
    if text.startswith("="):
        return escape(text[1:])
    return anywhere(text) if text else None


def anywhere(pattern: str) -> str:
    """Make a pattern without wildcards match any part of a text."""
    return pattern if any(char in pattern for char in "*?[") else f"*{pattern}*"


UNFINISHED: Final = (State.BLOCKED, State.DELAYED, State.WAITING, State.ACTIVE)
"""States of a job that has not ended, in the order in which it passes through them."""


ORDER: Final = (
    State.ACTIVE,
    State.WAITING,
    State.DELAYED,
    State.BLOCKED,
    State.FAILED,
    State.CANCELLED,
    State.COMPLETED,
)
"""The order of states in lists."""


def in_turn(states: Sequence[str]) -> tuple[State, ...]:
    """Sort states in the order in which a job passes through them.

    In this order, a search finds a job that changes its state meanwhile in its next state.
    """
    return tuple(state for state in LISTABLE if state in states)


class Place(NamedTuple):
    """The position from which to continue; `after` is its text form."""

    start: int
    """The index in the list of a queue's jobs in a state."""
    size: int
    """The size of that list."""
    looked: int
    """Number of jobs that were read before."""
    state: State
    queue: str
    behind: tuple[str, ...] = ()
    """The job before it, in a list that loses jobs at the start."""

    def __str__(self) -> str:
        behind = (id for id in self.behind if len(id) <= LONGEST)  # others fit no address
        place = f"{self.start}.{self.size}.{self.looked}.{self.state}.{self.queue}"
        return " ".join((place, *behind))

    @classmethod
    def read(cls, text: str, lists: Sequence[tuple[State, str]]) -> Place:
        """Parse a position; an empty text means the start of the first list."""
        if not text:
            return cls(0, 0, 0, *(lists[0] if lists else (State.ACTIVE, "")))
        place, *behind = text.split(" ", 1)
        start, size, looked, state, queue, *_ = *place.split(".", 4), "", "", "", "", ""
        is_number = all(_DIGITS.fullmatch(each) for each in (start, size, looked))
        for one, name in lists if is_number else ():
            if (one, name) == (state, queue):
                return cls(int(start), int(size), int(looked), one, name, tuple(behind))
        raise UsageError(
            f"after={text[:60]!r} is not a place in these lists; leave it out for the first jobs."
        )

    def up(self, by: int) -> Place:
        """Return the position after so many jobs before it have left a list in `MOVING`."""
        if not by or self.state not in MOVING:
            return self
        return self._replace(start=max(0, self.start - by), behind=())

    def start_in(self, size: int) -> int:
        """Return the index of the next job in the list, which now has this size.

        A list that is not in `MOVING` gains jobs only at the start. So the position has moved up
        by at most the number of jobs by which the list has become shorter.
        """
        left = 0 if self.state in MOVING else max(0, self.size - size)
        return max(0, self.start - left)


_DUE: Final = (State.WAITING, State.DELAYED)
_ENDED: Final = (State.FAILED, State.CANCELLED, State.COMPLETED)


class How(NamedTuple):
    """The details of a change; each verb reads its own."""

    when: str = "+0"
    """The new due time for a retry or reschedule, in the form of `enqueue.when`."""
    running: bool = True
    """Whether to cancel running jobs."""
    states: tuple[State, ...] = tuple(State)
    """The states of the selected jobs. A job that has started or ended since, or is to run again,
    is left alone."""
    over_us: int = 0
    """The time over which due times are spread; 0 for one due time for all jobs."""


class JobVerb(NamedTuple):
    """A change of jobs, and the states of jobs that allow it."""

    name: str
    label: str
    """The label of its button."""
    past: str
    """The past participle for the command line."""
    done: str
    """The past participle for the dashboard."""
    possible: tuple[State, ...]
    usual: tuple[State, ...]
    """The states that a filter on the command line selects if it names none."""
    command: Callable[[Keys, Sequence[str], How], Command[Any]]
    """Returns the command for a bounded number of jobs of a queue."""
    help: str = ""
    """The help of its command; empty if the command line has none."""
    leaves_list: bool = True
    """Whether changed jobs leave their list. Otherwise they cannot be distinguished from the
    remaining ones."""
    fine: tuple[str, ...] = ("ok",)
    """Results that count as a success."""

    def calls(
        self, keys: Keys, ids: Sequence[str], how: How
    ) -> Iterator[tuple[Sequence[str], Command[Any]]]:
        """Return the commands that change the jobs with these ids, a limited number per command."""
        if how.over_us:
            for some, us in spread(ids, how.over_us):
                yield some, job_commands.reschedule(keys, some, f"+{us}")
            return
        size = job_commands.MOST_CHANGED
        for i in range(0, len(ids), size):
            yield ids[i : i + size], self.command(keys, ids[i : i + size], how)

    def check(self, states: Iterable[State]) -> None:
        """Refuse states whose jobs do not allow this change.

        Raises:
            UsageError: there is such a state.
        """
        for state in states:
            if state not in self.possible:
                allowed = ", ".join(each.value for each in self.possible)
                raise UsageError(
                    f"Jobs that are {state} cannot be {self.past}; only {allowed} jobs can."
                )


def read_over(over: Duration, name: str = "over") -> int:
    """Convert the time over which jobs are spread to microseconds.

    Raises:
        UsageError: it is invalid, or zero.
    """
    over_us = to_us(over, name)
    if over_us < 1:
        raise UsageError("Give the time over which to spread the jobs, such as 10m.")
    return over_us


MOST_STEPS: Final = 1_000
"""Maximum number of different due times of a spread."""


def spread(ids: Sequence[str], over_us: int) -> list[tuple[Sequence[str], int]]:
    """Yield groups of jobs in their order, each with its delay, evenly over a time."""
    size = min(job_commands.MOST_CHANGED, -(-len(ids) // MOST_STEPS)) or 1
    groups = [ids[i : i + size] for i in range(0, len(ids), size)]
    return [(group, i * over_us // len(groups)) for i, group in enumerate(groups)]


class BulkResult(NamedTuple):
    """The effect of a change of all jobs that match a filter."""

    looked: int = 0
    """Number of jobs that were read."""
    total: int = 0
    """Number of jobs to read."""
    found: int = 0
    """Number of matching jobs."""
    changed: int = 0
    """Number of jobs that were changed, or asked to stop."""
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
            lambda keys, ids, how: job_commands.cancel(
                keys, ids, how.running and State.ACTIVE in how.states
            ),
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
            lambda keys, ids, how: job_commands.retry(keys, ids, how.when, how.states),
            "Run finished jobs again.",
        ),
        JobVerb(
            *("delete", "Delete", "deleted", "deleted", (*UNBEGUN, *_ENDED), _ENDED),
            lambda keys, ids, how: job_commands.delete(keys, ids, how.states),
            "Delete jobs and all their data. A running job cannot be deleted.",
        ),
    )
}


def results(replies: Iterable[Any]) -> list[str]:
    """Return the result for each job: `ok`, `asked`, the state that prevented it, or `gone`."""
    return [getattr(reply, "result", reply) for reply in replies]
