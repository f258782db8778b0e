"""Adding jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, get_args

from bide.clock import Duration, at_to_us, to_us
from bide.command import Arg, Command, command
from bide.durability import Durability, Kinds, cannot, check_durability, kinds_of
from bide.errors import UsageError
from bide.folding import Outcome
from bide.ids import check_name, new_id
from bide.keys import Keys, check_priority
from bide.ops.reply import groups, text
from bide.payload.codec import Body, encode_body
from bide.terms import folds

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

_OUTCOMES: Final[dict[bytes, Outcome]] = {word.encode(): word for word in get_args(Outcome)}
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


class Receipt(NamedTuple):
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

    Raises:
        UsageError: both are given, `at` is naive, or the delay is not a duration.
    """
    if at is not None:
        if delay is not None:
            raise UsageError("Give either delay= or at=, not both.")
        return f"={at_to_us(at)}"
    return "+0" if delay is None else f"+{to_us(delay)}"


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
) -> Prepared:
    """Make a job ready to be enqueued; `names` are those of the task's positional parameters.

    Raises:
        UsageError: an option cannot be meant.
        PayloadError: the arguments do not fit the encoding.
    """
    level = check_priority(priority)
    id = new_id() if job_id is None else check_name(job_id, "job_id")
    wanted = check_durability(durability)
    return Prepared(id, when(delay, at), level, encode_body(body, names), wanted, terms)


def enqueue(keys: Keys, jobs: Sequence[Prepared], kinds: Kinds = ()) -> Command[list[Receipt]]:
    """Add up to `CHUNK` jobs, all or (on a full server) none.

    Args:
        keys: of the queue.
        jobs: what to add: all with terms, or all without.
        kinds: what to wait for behind it. Without jobs, it is only asked whether that can be had.
    """
    args: list[Arg] = []
    have_terms = bool(jobs and jobs[0].terms)
    for job in jobs:
        args += job[:_SENT]
        if have_terms:
            args.append(job.terms)
    if kinds:
        args.append(",".join(kinds))

    def parse(reply: list[Any]) -> list[Receipt]:
        if reply[0] == b"cannot":
            raise cannot(reply[1].decode())
        if have_terms:
            return [
                Receipt(text(id), due_us, _OUTCOMES[word], _confirmed(job, kinds))
                for job, (word, due_us, id) in zip(jobs, groups(reply, 2, 3), strict=True)
            ]
        return [
            Receipt(job.id, due_us, _OUTCOMES[word], _confirmed(job, kinds))
            for job, (word, due_us) in zip(jobs, groups(reply, 2, 2), strict=True)
        ]

    return command("place" if have_terms else "enqueue", keys, args, parse, kinds if jobs else ())


def _confirmed(job: Prepared, kinds: Kinds) -> Durability:
    return job.durability if job.durability in kinds else "local"


def wanted(jobs: Sequence[Prepared]) -> Kinds:
    """What the jobs of one call ask for together: all of them get all of it."""
    return kinds_of(job.durability for job in jobs)


def enqueue_many(
    keys: Keys, jobs: Sequence[Prepared], kinds: Kinds = ()
) -> Iterator[list[Command[list[Receipt]]]]:
    """Add any number of jobs: round trips of several calls, each bounded by count and bytes."""
    trip: list[Command[list[Receipt]]] = []
    size, first, is_plain = 0, 0, True
    for i, job in enumerate(jobs):
        full = size + len(job.body) > CHUNK_BYTES
        most = CHUNK_FOLDED if folds(job.terms) else CHUNK if is_plain else TERMS_CHUNK
        if i > first and (full or i - first >= most or (job.terms == "") != is_plain):
            trip.append(enqueue(keys, jobs[first:i], kinds))
            first, size = i, 0
            if full or len(trip) == TRIP:
                yield trip
                trip = []
        size += len(job.body)
        is_plain = job.terms == ""
    if first < len(jobs):
        trip.append(enqueue(keys, jobs[first:], kinds))
    if trip:
        yield trip


def jobs_in(command: Command[Any]) -> int:
    """How many jobs a command of `enqueue` adds."""
    return len(command.args) // (_SENT + (command.script == "place"))
