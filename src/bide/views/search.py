"""Which jobs are meant: a filter, how far a list was read, and where to go on.

A search reads state by state and queue by queue, a bounded number of jobs at a time, and can be
continued. A page is read by its offset in the list, and each job that leaves the list before that
offset moves all others up. So pages overlap. If a page contains nothing that was read before, the
jobs have moved up by more than the overlap, and the search reads further up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import Final, NamedTuple

from bide.errors import UsageError
from bide.logs import printable
from bide.model.ids import LONGEST
from bide.model.job import State
from bide.model.payload.body import ErrorInfo
from bide.views.job import FoundJob, Mask, error_line, searched
from bide.views.params import Params

_NUMBER: Final = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\d+"  # a UUID is one
)
_QUOTED: Final = re.compile(r"(?<!\w)'(?:[^']|'(?=\w))*'|\"[^\"]*\"")
"""An apostrophe within a word does not start a quotation."""
LONGEST_LINE: Final = 200
_COMPARED: Final = 1_000
"""Characters of a line that are compared; what is quoted is often longer than what is shown."""


def first_line(error: ErrorInfo) -> str:
    """The first line of a message, as far as it is compared."""
    return error.message[:_COMPARED].partition("\n")[0]


def kind_of(error: ErrorInfo | None) -> str:
    """The same text for all failures of a kind, such as `ValueError: no order #`."""
    if error is None:
        return "(no error was kept)"
    message = _NUMBER.sub("#", _QUOTED.sub("'…'", first_line(error)))[:LONGEST_LINE]
    # It goes through addresses and forms, which neither blanks at the ends nor controls survive.
    return printable(f"{error.type}: {message}" if message.strip() else error.type).strip()


OVERLAP: Final = 50
"""Jobs that are read once more with each page."""

BACK: Final = 200
"""Places by which it goes back where it has met nothing that it knows."""


class Paging:
    """How far a list was read."""

    def __init__(self, start: int = 0, known: Sequence[str] = ()) -> None:
        """Start at a place; `known` was read right before it, or the last of that."""
        self.start = start
        self._known = set(known)
        self._first = self._size = 0
        self.is_over = False
        """Whether there is nothing left to read."""

    def page(self, most: int) -> tuple[int, int]:
        """Place and size of the page to read next, for `most` that were not read before."""
        self._first = max(0, self.start - OVERLAP) if self._known else self.start
        self._size = most + self.start - self._first
        return self._first, self._size

    def read(self, ids: Sequence[str]) -> dict[str, int]:
        """Of the ids of that page those that were not read before, with their places."""
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


LOOK: Final = 2_000
"""Jobs that one page looks at, at most."""

MOVING: Final = (State.WAITING, State.DELAYED)
"""States whose lists lose their first jobs; the others gain theirs there."""

_DIGITS: Final = re.compile("[0-9]{1,12}")


@dataclass(frozen=True)
class Filter:
    """What a job must be, to be meant."""

    states: tuple[State, ...]
    task: str | None = None
    """A pattern with the wildcards of a shell."""
    error: str | None = None
    """Another, of the line `ValueError: no such order`."""
    kind: str = ""
    """Of failure, as `kind_of` names it."""
    text: str = ""
    """In what is shown of the job, behind the mask."""
    since_us: int | None = None
    until_us: int | None = None
    """A range of the moment at which it came to its state, or is due."""
    older_us: int | None = None
    """How long ago that moment must be, by the server's clock."""
    due_before_us: int | None = None

    @classmethod
    def read(cls, params: Params) -> Filter:
        """Read `state`, `task`, `error`, `kind`, `text`, `since` and `until`."""
        return cls(
            states=params.states(),
            task=_pattern(params.text("task")),
            error=_pattern(params.text("error")),
            kind=params.text("kind"),
            text=params.text("text"),
            since_us=params.moment_us("since"),
            until_us=params.moment_us("until"),
        )

    @property
    def reads_jobs(self) -> bool:
        """Whether queue and state alone do not say who is meant."""
        return self != Filter(self.states)

    def fits(self, seen: FoundJob, mask: Mask) -> bool:
        """Whether a job is meant."""
        snapshot, at_us = seen.snapshot, seen.moment_us
        if seen.state not in self.states:
            return False  # it has moved since the list was read
        if self.task is not None and not fnmatchcase(snapshot.task, self.task):
            return False
        error = snapshot.notes.error
        if self.error is not None and not (error and fnmatchcase(error_line(error), self.error)):
            return False
        if self.kind and kind_of(error) != self.kind:
            return False
        if self.since_us is not None and at_us < self.since_us:
            return False
        if self.until_us is not None and at_us >= self.until_us:
            return False
        if self.older_us is not None and snapshot.now_us - at_us <= self.older_us:
            return False
        if self.due_before_us is not None and snapshot.due_us >= self.due_before_us:
            return False
        return not self.text or self.text.lower() in searched(snapshot, mask).lower()


def _pattern(text: str) -> str | None:
    """The pattern that a parameter means; one that begins with = says the whole of a text."""
    if text.startswith("="):
        return escape(text[1:])
    return anywhere(text) if text else None


def anywhere(pattern: str) -> str:
    """A pattern without wildcards may stand anywhere in a text."""
    return pattern if any(char in pattern for char in "*?[") else f"*{pattern}*"


class Place(NamedTuple):
    """Where to continue; as text, what `after` says."""

    start: int
    """In the list of a queue's jobs in a state."""
    looked: int
    """How many jobs were looked at before."""
    state: State
    queue: str
    behind: tuple[str, ...] = ()
    """The job before it, in a list whose first jobs leave it."""

    def __str__(self) -> str:
        behind = (id for id in self.behind if len(id) <= LONGEST)  # another makes no address
        return " ".join((f"{self.start}.{self.looked}.{self.state}.{self.queue}", *behind))

    @classmethod
    def read(cls, text: str, lists: Sequence[tuple[State, str]]) -> Place:
        """Read a place; an empty text means the start of the first list."""
        if not text:
            return cls(0, 0, *(lists[0] if lists else (State.ACTIVE, "")))
        place, *behind = text.split(" ", 1)
        start, looked, state, queue, *_ = *place.split(".", 3), "", "", "", ""
        is_number = all(_DIGITS.fullmatch(each) for each in (start, looked))
        for one, name in lists if is_number else ():
            if (one, name) == (state, queue):
                return cls(int(start), int(looked), one, name, tuple(behind))
        raise UsageError(
            f"after={text[:60]!r} is not a place in these lists; leave it out for the first jobs."
        )

    def up(self, by: int) -> Place:
        """The same place once so many before it have left the list; no job is passed over."""
        return self._replace(start=max(0, self.start - by), behind=()) if by else self
