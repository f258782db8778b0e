"""Adding jobs, and what they wait for: a few parents at a time, also jobs of other queues."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar, get_args

import msgspec

from bide.errors import JobNotFound, ServerUnavailable, UsageError
from bide.model.dedup import EnqueueResult
from bide.model.durations import Duration, at_to_us, delay_to_us
from bide.model.ids import check_name, new_id, short_id
from bide.model.options import (
    LOCAL,
    Durability,
    Kinds,
    cannot,
    check_durability,
    has_dedup,
    kinds_of,
)
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import Arg, Command, command, pieces, raw, text, words
from bide.protocol.keys import DEFAULT_PRIORITY, DUE_SETS, PRIORITIES, Keys, check_priority, keys_of
from bide.protocol.scripts import SERVER_CLOCK, load

T = TypeVar("T")

GATE: Final = "{}"
"""Stands for more that a job waits for, and that is not known yet."""

MOST_PARENTS: Final = 20_000
"""Jobs that one may wait for."""

MOST_POST: Final = 250
"""Messages that are read, and delivered, in one call at most."""

Followup = Callable[[list[Any]], Any]
"""Reads a reply, and returns the command that continues, or None."""


def is_remote(parent: str) -> bool:
    """Whether what is waited for, or waits, is of another queue."""
    return parent.startswith("{")


def check_count(parents: Sequence[str]) -> None:
    """Refuse to wait for too many.

    Raises:
        UsageError: there are more than `MOST_PARENTS`.
    """
    if len(parents) > MOST_PARENTS:
        raise UsageError(
            f"A job can wait for {MOST_PARENTS:,} others, not for {len(parents):,}; have some jobs "
            "wait for a part of them each, and this one for those."
        )


def split_reference(reference: str) -> tuple[str, str]:
    """Queue and id of a job of another queue."""
    queue, _, id = reference[1:].partition("}")
    return queue, id


def add_dependencies(
    keys: Keys,
    child: str,
    told: Sequence[tuple[str, str]],
    is_last: bool,
    parse: Callable[[list[Any]], T],
    confirm: Kinds = (),
    followup: Followup | None = None,
) -> Command[T]:
    """Say what else a job waits for that is being placed.

    Args:
        keys: of its queue.
        child: the job.
        told: what it waits for, and `-`; of another queue's job that has ended, how: `C`, `F`, `X`,
            or `U` where there is none.
        is_last: this is all that it waits for.
        parse: reads the last reply.
        confirm: what is to be waited for behind it.
        followup: reads the reply.
    """
    args: list[Arg] = [raw(child), int(is_last)]
    for parent, outcome in told:
        args += (raw(parent), outcome)
    return command("dep_add", keys, args, parse, confirm, followup)


def subscribe(
    keys: Keys, awaited: Sequence[tuple[str, str]], followup: Followup | None = None
) -> Command[list[str]]:
    """Have a queue tell the ends of its jobs to those of another; how each has ended by now.

    For each `-` where it has not; `C`, `F`, `X` as `deps_edges.lua` has it; `U` where there is no
    such job; `D` where the queue is a delay queue.

    Args:
        keys: of the queue that is to tell.
        awaited: who waits, as `{queue}id`, and the id of the job here.
        followup: reads the reply.
    """
    args: list[Arg] = []
    for child, parent in awaited:
        args += (raw(child), raw(parent))
    return command("dep_subscribe", keys, args, lambda reply: words(reply, 1), followup=followup)


class Children(NamedTuple):
    """The jobs that wait for one, or have waited for it and have not ended."""

    total: int
    ids: list[str]
    """The first of them; of jobs of other queues, `{queue}id`."""


def children(keys: Keys, id: str, most: int) -> Command[Children]:
    """Who waits for a job.

    Args:
        keys: of its queue.
        id: the job.
        most: how many are read at most.
    """
    return command(
        "children", keys, (raw(id), most), lambda reply: Children(reply[2], words(reply, 3))
    )


class DependencyMessage(NamedTuple):
    """Something to be told to, or asked of, another queue."""

    stored: str
    """As it stands on the server."""
    queue: str
    """The other."""
    asks: bool
    child: str
    """The job that waits: its id, in the other queue where that is told, here where it is asked."""
    parent: str
    """The job that is waited for: its id."""
    outcome: str = ""
    """How it has ended, where that is told."""


def read_outbox(keys: Keys, after: str, done: Sequence[str]) -> Command[list[DependencyMessage]]:
    """Take off what was told or asked, and read what else is to be.

    Args:
        keys: of the queue.
        after: the last that was read, as it stands on the server; `-` to begin.
        done: what was told or asked, as it stands on the server.
    """
    args: list[Arg] = [raw(after), MOST_POST, *map(raw, done)]
    return command("dep_outbox", keys, args, lambda reply: [*map(_message, words(reply, 1))])


def resolve(keys: Keys, told: Sequence[tuple[str, str, str]]) -> Command[None]:
    """Tell a queue what came of jobs of another: of `MOST_POST` at most.

    Args:
        keys: of the queue whose jobs wait.
        told: the job that waits; what it waits for, as `{queue}id`; `C`, `F` or `X`.
    """
    args: list[Arg] = []
    for child, parent, outcome in told:
        args += (raw(child), raw(parent), outcome)
    return command("dep_resolve", keys, args, lambda reply: None)


def _message(stored: str) -> DependencyMessage:
    mark, rest = stored[0], stored[1:]
    if mark == "@":
        child, parent, outcome = rest.split(" ")
        queue, child = split_reference(child)
        return DependencyMessage(stored, queue, False, child, parent, outcome)
    child, parent = rest.split(" ")
    queue, parent = split_reference(parent)
    return DependencyMessage(stored, queue, True, child, parent)


CHUNK: Final = 250
CHUNK_BYTES: Final = 2_000_000
"""Jobs, and bytes of bodies, per script call: bounds the time a call may take on the server."""

CONSTRAINTS_CHUNK: Final = 100
"""The same of jobs with constraints, for which a call does more."""
DEDUP_CHUNK: Final = 50
"""Jobs per call of which one may change the body of another, which is then read and written."""

TRIP: Final = 40
"""Calls per round trip; one that is full by its bytes ends the trip."""


_SENT: Final = 4
"""Fields of a job that the script takes; what is to be confirmed stands behind all of them."""

_RESULTS: Final[dict[bytes, EnqueueResult]] = {
    b"open": "duplicate",
    **{word.encode(): word for word in get_args(EnqueueResult)},
}


def read_result(word: bytes) -> EnqueueResult:
    """Convert a script's word for the result of an enqueue."""
    return _RESULTS[word]


NOW: Final = "+0"
_WHEN: Final = re.compile(r"[+=][0-9]{1,16}")


class Prepared(NamedTuple):
    """A job that `prepare` has built and `enqueue_many` sends. Sending it twice adds it once."""

    id: str
    """The id of the job."""
    when: str
    """The delay, `+` and microseconds, or the due time, `=` and microseconds since 1970."""
    priority: int
    """0 to 9."""
    body: bytes
    """Task, arguments and options, encoded and signed."""
    durability: Durability = "local"
    """The confirmation that the enqueue waits for."""
    constraints: str = ""
    """Expiry, group, retention and deduplication, as `bide.model.options` writes them."""
    parents: tuple[str, ...] = ()
    """The ids of the jobs that it depends on; of jobs of other queues, `{queue}id`."""


parents_of: Final[Callable[[Prepared], tuple[str, ...]]] = attrgetter("parents")
_durability_of: Final[Callable[[Prepared], Durability]] = attrgetter("durability")


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What an enqueue did."""

    id: str
    due_us: int
    """When the job is due, on the server's clock; 0 if the id existed."""
    result: EnqueueResult
    """The result of the enqueue. Without a new job, `id` names the job that has the id or holds the
    key."""
    confirmed: Durability = "local"
    """What was waited for, and has come true."""

    @property
    def created(self) -> bool:
        """Whether a job was added."""
        return self.result == "created"


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


def given_when(delay: Duration | None, at: datetime | None) -> str:
    """Write down when a job is due, as `when`; raise if neither a delay nor a moment is given."""
    if delay is None and at is None:
        raise UsageError("Say when the jobs are due: give delay= or at=; promote() means now.")
    return when(delay, at)


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
    constraints: str = "",
    parents: Sequence[str] = (),
) -> Prepared:
    """Make a job ready to be enqueued; `names` are those of the task's positional parameters.

    Raises:
        UsageError: an option is invalid.
        PayloadError: the arguments do not fit the encoding.
    """
    return Prepared(
        new_id() if job_id is None else check_name(job_id, "job_id"),
        NOW if delay is None and at is None else when(delay, at),
        DEFAULT_PRIORITY if priority is None else check_priority(priority),
        encode_body(body, names),
        "local" if durability is None else check_durability(durability),
        constraints,
        tuple(parents),
    )


def enqueue(
    keys: Keys,
    jobs: Sequence[Prepared],
    kinds: Kinds = (),
    full: bool = False,
    with_all_keys: bool = False,
) -> Command[list[Receipt]]:
    """Add up to `CHUNK` jobs, all or (on a full server) none.

    Args:
        keys: of the queue.
        jobs: what to add: all with constraints, or all without.
        kinds: what to wait for behind it. Without jobs, it is only asked whether that can be had.
        full: some may have constraints, and others not.
        with_all_keys: also those that most calls have no need of, and go without.
    """
    args: list[Arg] = []
    have_constraints = full or bool(jobs and jobs[0].constraints)
    for job in jobs:
        args += job[:_SENT]
        if have_constraints:
            args += (job.constraints, " ".join(job.parents))
    if kinds:
        args.append(",".join(kinds))

    def parse(reply: list[Any]) -> list[Receipt]:
        if reply[0] == b"cannot":
            raise cannot(reply[1].decode())
        if reply[0] == b"unknown":
            raise unknown_parent(text(reply[1]))
        if reply[0] == b"data":
            raise data_parent(keys.queue or "")
        if have_constraints:
            return [
                Receipt(text(id), due_us, read_result(word), confirmed(job, kinds))
                for job, (word, due_us, id) in zip(jobs, pieces(reply, 2, 3), strict=True)
            ]
        receipts = []
        for job, due_us in zip(jobs, islice(reply, 2, None), strict=True):
            result: EnqueueResult = "created" if due_us else "duplicate"
            is_confirmed = confirmed(job, kinds) if kinds else "local"
            receipts.append(Receipt(job.id, due_us, result, is_confirmed))
        return receipts

    confirm = kinds if jobs else ()
    if have_constraints:

        def again(reply: list[Any]) -> Command[list[Receipt]] | None:
            return enqueue(keys, jobs, kinds, True) if reply[0] == b"busy" else None

        return command("enqueue_full", keys, args, parse, confirm, again)
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


def confirmed(job: Prepared, kinds: Kinds) -> Durability:
    """What of this job's durability has come true, where these kinds were waited for."""
    return job.durability if job.durability in kinds else "local"


def unknown_parent(id: str) -> JobNotFound:
    """The error for a parent that there is not."""
    return JobNotFound(
        f"There is no job {short_id(id)!r} to wait for, so nothing was added; enqueue it before "
        "the jobs that depend on it, or check its id and its queue."
    )


def data_parent(queue: str) -> UsageError:
    """The error for a parent in a delay queue."""
    return UsageError(
        f"{queue!r} is a delay queue: its items are data, and no job can wait for them, so nothing "
        "was added; wait for a job."
    )


def wanted(jobs: Sequence[Prepared], clock: str = SERVER_CLOCK) -> Kinds:
    """What the jobs of one call ask for together: all of them get all of it.

    Under `bide.testing`, which has a clock of its own, nothing: the server ends with the test.
    """
    asked = set(map(_durability_of, jobs))
    return () if asked <= LOCAL or clock != SERVER_CLOCK else kinds_of(asked)


def jobs_in(command: Command[Any]) -> int:
    """How many jobs a command of `enqueue` adds."""
    return len(command.args) // (_SENT + 2 * (command.script == "enqueue_full"))


def enqueue_many(
    keys: Keys, jobs: Sequence[Prepared], kinds: Kinds = ()
) -> Iterator[list[Command[list[Receipt]]]]:
    """Add any number of jobs: round trips of several calls, each bounded by count and bytes.

    No job waits for one of another call in its trip: any of these may have to be sent again, behind
    the others.
    """
    if len(jobs) == 1 and not (jobs[0].constraints or jobs[0].parents):
        yield [enqueue(keys, jobs, kinds)]
        return
    trip: list[Command[list[Receipt]]] = []
    sent: set[str] = set()  # the jobs of these calls
    size, first, kind, awaited = 0, 0, 0, 0
    # All by one script, so that what waits may share a call with what it waits for.
    is_flow = any(map(parents_of, jobs))
    for i, job in enumerate(jobs):
        full = size + len(job.body) > CHUNK_BYTES
        new_kind = _kind(job) if job.constraints or is_flow else 0
        most = CHUNK
        if new_kind:
            most = DEDUP_CHUNK if has_dedup(job.constraints) else CONSTRAINTS_CHUNK
        many = i - first >= most or (is_flow and awaited + len(job.parents) > CHUNK)
        if i > first and (full or many or new_kind != kind or kind == _IN_STEPS):
            trip.append(_adding(keys, jobs[first:i], kinds, kind))
            if is_flow:
                sent.update(earlier.id for earlier in jobs[first:i])
            first, size, awaited = i, 0, 0
            if full or len(trip) == TRIP:
                yield trip
                trip, sent = [], set()
        if is_flow and trip and not sent.isdisjoint(job.parents):
            yield trip
            trip, sent = [], set()
        size += len(job.body)
        kind = new_kind
        awaited += len(job.parents)
    if first < len(jobs):
        trip.append(_adding(keys, jobs[first:], kinds, kind))
    if trip:
        yield trip


_IN_STEPS: Final = 2
"""The kind of a job that one call cannot add: it waits for many, or for jobs of other queues."""


def _kind(job: Prepared) -> int:
    in_steps = len(job.parents) > CHUNK or any(is_remote(parent) for parent in job.parents)
    return _IN_STEPS if in_steps else 1


def _adding(
    keys: Keys, jobs: Sequence[Prepared], kinds: Kinds, kind: int
) -> Command[list[Receipt]]:
    if kind == _IN_STEPS:
        return EnqueueFull(keys, jobs[0], kinds).begin()
    # What went without some keys might have to be sent again, behind the others.
    return enqueue(keys, jobs, kinds, full=kind > 0, with_all_keys=True)


class EnqueueFull:
    """Adds a job that waits for many others, or for jobs of other queues, step by step.

    It is there from the first step on, and waits also for a gate that only the last step opens. So
    it never runs before all that it waits for is known, even if the producer dies. If a gate has
    stayed closed for half a minute, a claim removes the job: its `enqueue` has not returned.
    """

    def __init__(self, keys: Keys, job: Prepared, kinds: Kinds) -> None:
        self._keys = keys
        self._job = job
        self._kinds = kinds
        self._is_new = True
        self._left = list(job.parents[CHUNK:])
        """What it waits for and has not been noted."""
        self._to_ask = [parent for parent in job.parents if is_remote(parent)]
        """Of these, those of other queues that have not been asked."""
        self._ended: list[tuple[str, str]] = []
        """Of these, those that have ended, and how."""
        self._data = ""
        """A delay queue that was met among these."""

    def begin(self) -> Command[list[Receipt]]:
        """The first step."""
        gated = self._job._replace(parents=(*self._job.parents[:CHUNK], GATE))
        first = enqueue(self._keys, [gated], self._kinds)
        return first._replace(followup=self._begun)

    def _begun(self, reply: list[Any]) -> Command[list[Receipt]] | None:
        if reply[0] == b"busy":
            return self.begin()
        if reply[0] != b"ok" or reply[2] == b"duplicate":
            return None
        self._is_new = reply[2] == b"created"
        return self._next()

    def _next(self) -> Command[Any]:
        if self._left:
            some, self._left = self._left[:CHUNK], self._left[CHUNK:]
            return self._link([(parent, "-") for parent in some], is_last=False)
        if self._to_ask:
            return self._ask()
        some_ended, self._ended = self._ended[:CHUNK], self._ended[CHUNK:]
        return self._link(some_ended, is_last=not self._ended)

    def _ask(self) -> Command[Any]:
        queue, _ = split_reference(self._to_ask[0])
        of_queue = [ref for ref in self._to_ask if split_reference(ref)[0] == queue][:CHUNK]
        child = f"{{{self._keys.queue}}}{self._job.id}"

        def asked(reply: list[Any]) -> Command[Any]:
            if reply[0] == b"busy":
                return again
            outcomes = words(reply, 1)
            known = set(of_queue)
            self._to_ask = [ref for ref in self._to_ask if ref not in known]
            for ref, outcome in zip(of_queue, outcomes, strict=True):
                if outcome == "D":
                    self._data = queue
                    outcome = "U"
                if outcome != "-":
                    self._ended.append((ref, outcome))
            return self._next()

        awaited = [(child, split_reference(ref)[1]) for ref in of_queue]
        again = subscribe(keys_of(queue, self._keys.prefix), awaited, asked)
        return again

    def _refusal(self, parent: str) -> JobNotFound | UsageError:
        return data_parent(self._data) if self._data else unknown_parent(parent)

    def _link(self, told: list[tuple[str, str]], is_last: bool) -> Command[Any]:
        def linked(reply: list[Any]) -> Command[Any] | None:
            if reply[0] == b"busy":
                return again
            if reply[0] == b"unknown":
                raise self._refusal(text(reply[1]))
            if reply[0] == b"gone":
                raise ServerUnavailable(
                    f"Enqueueing job {short_id(self._job.id)} took so long that it was removed "
                    "again, as is what a producer that died leaves behind; enqueue it again."
                )
            return None if is_last or reply[0] == b"ended" else self._next()

        def receipt(reply: list[Any]) -> list[Receipt]:
            due_us = reply[1] if reply[0] == b"ok" else 0
            result: EnqueueResult = "created" if self._is_new else "duplicate"
            is_confirmed = confirmed(self._job, self._kinds)
            return [Receipt(self._job.id, due_us, result, is_confirmed)]

        again = add_dependencies(
            self._keys, self._job.id, told, is_last, receipt, self._kinds, linked
        )
        return again
