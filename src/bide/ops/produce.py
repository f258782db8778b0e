"""Adding jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Final, NamedTuple, get_args

import msgspec

from bide.clock import Duration, at_to_us, delay_to_us
from bide.command import Arg, Command, command
from bide.durability import Durability, Kinds, cannot, check_durability, kinds_of
from bide.errors import JobNotFound, UsageError
from bide.folding import Outcome
from bide.ids import check_name, new_id, short_id
from bide.keys import DEFAULT_PRIORITY, DUE_SETS, PRIORITIES, Keys, check_priority
from bide.ops.reply import pieces, text
from bide.payload.codec import Body, encode_body
from bide.script import load

CHUNK: Final = 250
CHUNK_BYTES: Final = 2_000_000
"""Jobs, and bytes of bodies, per script call: bounds the time a call may take on the server."""

TERMS_CHUNK: Final = 100
"""The same of jobs with terms, for which a call does more."""
CHUNK_FOLDED: Final = 50
"""Jobs per call of which one may change the body of another, which is then read and written."""

TRIP: Final = 40
"""Calls per round trip; one that is full by its bytes ends the trip."""


_SENT: Final = 4
"""Fields of a job that the script takes; what is to be confirmed stands behind all of them."""

_OUTCOMES: Final[dict[bytes, Outcome]] = {
    b"open": "exists",
    **{word.encode(): word for word in get_args(Outcome)},
}


def read_outcome(word: bytes) -> Outcome:
    """What an enqueue came to, from a script's word for it."""
    return _OUTCOMES[word]


NOW: Final = "+0"
_WHEN: Final = re.compile(r"[+=][0-9]{1,16}")


class Prepared(NamedTuple):
    """A job that is ready to be enqueued. Enqueueing it twice adds it once."""

    id: str
    when: str
    priority: int
    body: bytes
    durability: Durability = "local"
    """What is to be waited for when it is enqueued."""
    terms: str = ""
    """What is asked of it beside its due time, as `bide.terms` writes it."""
    parents: tuple[str, ...] = ()
    """What it waits for: ids, of jobs of other queues `{queue}id`."""


parents_of: Final[Callable[[Prepared], tuple[str, ...]]] = attrgetter("parents")
_durability_of: Final[Callable[[Prepared], Durability]] = attrgetter("durability")


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What an enqueue did."""

    id: str
    due_us: int
    """When the job is due, on the server's clock; 0 where the id existed."""
    outcome: Outcome
    """What it came to: `"new"`; `"exists"`, where the id did and nothing was changed; or how the
    call was folded into another job, whose id this then has."""
    confirmed: Durability = "local"
    """What was waited for, and has come true."""

    @property
    def new(self) -> bool:
        """Whether a job was added."""
        return self.outcome == "new"


def when(delay: Duration | None, at: datetime | None) -> str:
    """Write down when a job is due: `+N` microseconds from now, or the moment `=N`.

    A negative delay has passed and means now, as a moment that has passed does.

    Raises:
        UsageError: both are given, `at` is naive, or the delay is not a duration.
    """
    if at is not None:
        if delay is not None:
            raise UsageError("Give either delay= or at=, not both.")
        return f"={at_to_us(at)}"
    return NOW if delay is None else f"+{delay_to_us(delay)}"


def check_when(when: str) -> str:
    """Return what says when a job is due, if it is what `when` writes.

    Raises:
        UsageError: it is not; a script would refuse it.
    """
    if not isinstance(when, str) or not _WHEN.fullmatch(when):
        raise UsageError(f"{when!r} does not say when; write Snooze('10m') or Snooze(at=...).")
    return when


def prepare(
    body: Body,
    delay: Duration | None = None,
    at: datetime | None = None,
    priority: int | None = None,
    job_id: str | None = None,
    names: Sequence[str] = (),
    durability: Durability | None = None,
    terms: str = "",
    parents: Sequence[str] = (),
) -> Prepared:
    """Make a job ready to be enqueued; `names` are those of the task's positional parameters.

    Raises:
        UsageError: an option cannot be meant.
        PayloadError: the arguments do not fit the encoding.
    """
    return Prepared(
        new_id() if job_id is None else check_name(job_id, "job_id"),
        NOW if delay is None and at is None else when(delay, at),
        DEFAULT_PRIORITY if priority is None else check_priority(priority),
        encode_body(body, names),
        "local" if durability is None else check_durability(durability),
        terms,
        tuple(parents),
    )


def enqueue(
    keys: Keys,
    jobs: Sequence[Prepared],
    kinds: Kinds = (),
    place: bool = False,
    with_all_keys: bool = False,
) -> Command[list[Receipt]]:
    """Add up to `CHUNK` jobs, all or (on a full server) none.

    Args:
        keys: of the queue.
        jobs: what to add: all with terms, or all without.
        kinds: what to wait for behind it. Without jobs, it is only asked whether that can be had.
        place: some may have terms, and others not.
        with_all_keys: also those that most calls have no need of, and go without.
    """
    args: list[Arg] = []
    have_terms = place or bool(jobs and jobs[0].terms)
    for job in jobs:
        args += job[:_SENT]
        if have_terms:
            args += (job.terms, " ".join(job.parents))
    if kinds:
        args.append(",".join(kinds))

    def parse(reply: list[Any]) -> list[Receipt]:
        if reply[0] == b"cannot":
            raise cannot(reply[1].decode())
        if reply[0] == b"unknown":
            raise unknown_parent(text(reply[1]))
        if reply[0] == b"data":
            raise data_parent(keys.queue or "")
        if have_terms:
            return [
                Receipt(text(id), due_us, read_outcome(word), confirmed(job, kinds))
                for job, (word, due_us, id) in zip(jobs, pieces(reply, 2, 3), strict=True)
            ]
        return [
            Receipt(
                job.id,
                due_us,
                "new" if due_us else "exists",
                confirmed(job, kinds) if kinds else "local",
            )
            for job, due_us in zip(jobs, islice(reply, 2, None), strict=True)
        ]

    confirm = kinds if jobs else ()
    if have_terms:
        return command("place", keys, args, parse, confirm, _again_if_busy(keys, jobs, kinds))
    if with_all_keys or len(jobs) != 1:
        return command("enqueue", keys, args, parse, confirm)

    def with_all(reply: list[Any]) -> Command[list[Receipt]] | None:
        return enqueue(keys, jobs, kinds, with_all_keys=True) if reply[0] == b"keys" else None

    return Command("enqueue", _few_keys(keys, jobs[0].priority), args, parse, confirm, with_all)


@lru_cache(maxsize=8192, typed=True)
def _few_keys(keys: Keys, priority: int) -> tuple[str, ...]:
    """Those of `enqueue` for a job alone; to send and read all 33 takes some µs."""
    header = load("enqueue").keys
    if str(priority) not in DUE_SETS[:PRIORITIES]:  # the script refuses it
        return keys.of(header)
    few = tuple(takewhile(lambda name: name != "due", header))
    return *keys.of(few), keys.names["due"][DUE_SETS.index(str(priority))]


def _again_if_busy(
    keys: Keys, jobs: Sequence[Prepared], kinds: Kinds
) -> Callable[[list[Any]], Command[list[Receipt]] | None]:
    return lambda reply: enqueue(keys, jobs, kinds, True) if reply[0] == b"busy" else None


def confirmed(job: Prepared, kinds: Kinds) -> Durability:
    """What of this job's durability has come true, where these kinds were waited for."""
    return job.durability if job.durability in kinds else "local"


def unknown_parent(id: str) -> JobNotFound:
    """The error for a parent that there is not."""
    return JobNotFound(
        f"There is no job {short_id(id)!r} to wait for, so nothing was added: it never was, was "
        "deleted, or its time is over; enqueue it before what depends on it, or leave it out."
    )


def data_parent(queue: str) -> UsageError:
    """The error for a parent in a delay queue."""
    return UsageError(
        f"{queue!r} is a delay queue: its items are data, and no job can wait for them, so nothing "
        "was added; wait for a job."
    )


def wanted(jobs: Sequence[Prepared]) -> Kinds:
    """What the jobs of one call ask for together: all of them get all of it."""
    return kinds_of(map(_durability_of, jobs))


def jobs_in(command: Command[Any]) -> int:
    """How many jobs a command of `enqueue` adds."""
    return len(command.args) // (_SENT + 2 * (command.script == "place"))
