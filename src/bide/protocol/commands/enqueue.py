"""Adds jobs and their dependencies: a few parents per call, also jobs of other queues."""

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
"""The placeholder parent of a job whose parents have not all been sent yet."""

MOST_PARENTS: Final = 20_000
"""Maximum number of parents of a job."""

MOST_POST: Final = 250
"""Maximum number of messages that one call reads or delivers."""

Followup = Callable[[list[Any]], Any]
"""Reads a reply, and returns the command that continues, or None."""


def is_remote(parent: str) -> bool:
    """Whether a reference to a parent or child means a job of another queue."""
    return parent.startswith("{")


def check_count(parents: Sequence[str]) -> None:
    """Refuse too many parents.

    Raises:
        UsageError: there are more than `MOST_PARENTS`.
    """
    if len(parents) > MOST_PARENTS:
        raise UsageError(
            f"A job can depend on {MOST_PARENTS:,} others, not on {len(parents):,}; add jobs "
            f"that depend on a part of them each, and let this job depend on those."
        )


def split_reference(reference: str) -> tuple[str, str]:
    """Split `{queue}id`, which references a job of another queue."""
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
    """Add parents to a job that `EnqueueFull` is adding.

    Args:
        keys: the keys of the job's queue.
        child: the job.
        told: each parent with `-`, or for a job of another queue that has ended with its outcome:
            `C`, `F` or `X`, or `U` if it does not exist.
        is_last: whether these are the last parents.
        parse: reads the last reply.
        confirm: the durabilities to wait for after this call.
        followup: reads the reply.
    """
    args: list[Arg] = [raw(child), int(is_last)]
    for parent, outcome in told:
        args += (raw(parent), outcome)
    if confirm:
        args.append(",".join(confirm))
    return command("dep_add", keys, args, parse, confirm, followup)


def subscribe(
    keys: Keys, awaited: Sequence[tuple[str, str]], followup: Followup | None = None
) -> Command[list[str]]:
    """Subscribe jobs of another queue to the ends of jobs of this one; return the present outcomes.

    The outcome of each is `-` if it has not ended, `C`, `F` or `X` as in `deps_edges.lua`, `U` if
    it does not exist, or `D` if the queue is a delay queue.

    Args:
        keys: the keys of the parents' queue.
        awaited: each child, as `{queue}id`, and the id of its parent.
        followup: reads the reply.
    """
    args: list[Arg] = []
    for child, parent in awaited:
        args += (raw(child), raw(parent))
    return command("dep_subscribe", keys, args, lambda reply: words(reply, 1), followup=followup)


class Children(NamedTuple):
    """The children of a job that have not ended."""

    total: int
    ids: list[str]
    """The first ids; `{queue}id` for a job of another queue."""


def children(keys: Keys, id: str, most: int) -> Command[Children]:
    """Read the children of a job.

    Args:
        keys: the keys of its queue.
        id: the job.
        most: maximum number of ids.
    """
    return command(
        "children", keys, (raw(id), most), lambda reply: Children(reply[2], words(reply, 3))
    )


class DependencyMessage(NamedTuple):
    """A message to another queue: an outcome, or with `asks` a subscription."""

    stored: str
    """The stored form."""
    queue: str
    """The other queue."""
    asks: bool
    child: str
    """The id of the child: in the other queue for an outcome, in this queue for a subscription."""
    parent: str
    """The id of the parent."""
    outcome: str = ""
    """The outcome of the parent; empty for a subscription."""


def read_outbox(keys: Keys, after: str, done: Sequence[str]) -> Command[list[DependencyMessage]]:
    """Remove delivered messages, and read the next ones.

    Args:
        keys: the keys of the queue.
        after: the stored form of the last message that was read; `-` for none.
        done: the stored forms of the delivered messages.
    """
    args: list[Arg] = [raw(after), MOST_POST, *map(raw, done)]
    return command("dep_outbox", keys, args, lambda reply: [*map(_message, words(reply, 1))])


def resolve(keys: Keys, told: Sequence[tuple[str, str, str]]) -> Command[None]:
    """Deliver up to `MOST_POST` outcomes of jobs to a queue with children of these jobs.

    Args:
        keys: the keys of the children's queue.
        told: for each outcome the child, the parent as `{queue}id`, and `C`, `F` or `X`.
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
"""Maximum jobs and bytes of bodies per script call, which limit its time on the server."""

CONSTRAINTS_CHUNK: Final = 100
"""Maximum jobs with constraints per call, because each takes longer."""
DEDUP_CHUNK: Final = 50
"""Maximum jobs per call that may be deduplicated: each may read and write another job's body."""

TRIP: Final = 40
"""Maximum calls per round trip; a call with the maximum of bytes is the last one."""


_SENT: Final = 4
"""Number of the fields of a job that the script takes; the durabilities follow all of them."""

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
    """The effect of an enqueue."""

    id: str
    due_us: int
    """When the job is due, on the server's clock; 0 if the id existed."""
    result: EnqueueResult
    """The result of the enqueue. Without a new job, `id` names the job that has the id or holds the
    key."""
    confirmed: Durability = "local"
    """The durability that was confirmed."""

    @property
    def created(self) -> bool:
        """Whether a job was added."""
        return self.result == "created"


def when(delay: Duration | None, at: datetime | None) -> str:
    """Encode a due time: `+N` microseconds from now, or the moment `=N`.

    A negative delay or a moment in the past means now.

    Raises:
        UsageError: both are given, `at` is naive, or the delay is not a duration.
    """
    if at is not None:
        if delay is not None:
            raise UsageError("Give either delay= or at=, not both.")
        return f"={at_to_us(at)}"
    return NOW if delay is None else f"+{delay_to_us(delay)}"


def given_when(delay: Duration | None, at: datetime | None) -> str:
    """Encode a due time as `when` does; raise if neither a delay nor a moment is given."""
    if delay is None and at is None:
        raise UsageError("Give delay= or at=, or call promote() to make the jobs due now.")
    return when(delay, at)


def check_when(when: str) -> str:
    """Return an encoded due time, if it is what `when` writes.

    Raises:
        UsageError: it is not, so a script would refuse it.
    """
    if not isinstance(when, str) or not _WHEN.fullmatch(when):
        raise UsageError(f"{when!r} is not a due time; write Snooze('10m') or Snooze(at=...).")
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
    """Prepare a job for an enqueue; `names` are the task's positional parameters.

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
    """Add up to `CHUNK` jobs: all of them, or none if the server is full.

    Args:
        keys: the keys of the queue.
        jobs: the jobs: all with constraints, or all without.
        kinds: the durabilities to wait for. Without jobs, the call only checks whether the server
            can give them.
        full: whether some jobs may have constraints and others none.
        with_all_keys: whether to send also the keys that most calls do not need.
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
    """Return the keys that `enqueue` needs for one job; to send and parse all 33 takes some µs."""
    header = load("enqueue").keys
    if str(priority) not in DUE_SETS[:PRIORITIES]:  # the script refuses it
        return keys.of(header)
    few = tuple(takewhile(lambda name: name != "due", header))
    return *keys.of(few), keys.names["due"][DUE_SETS.index(str(priority))]


def confirmed(job: Prepared, kinds: Kinds) -> Durability:
    """Return the job's confirmed durability, after these kinds were confirmed."""
    return job.durability if job.durability in kinds else "local"


def unknown_parent(id: str) -> JobNotFound:
    """Return the error for a parent that does not exist."""
    return JobNotFound(
        f"There is no job {short_id(id)!r} to wait for, so nothing was added; enqueue it before "
        "the jobs that depend on it, or check its id and its queue."
    )


def data_parent(queue: str) -> UsageError:
    """Return the error for a parent in a delay queue."""
    return UsageError(
        f"{queue!r} is a delay queue: its items are data, and no job can wait for them, so nothing "
        "was added; wait for a job."
    )


def wanted(jobs: Sequence[Prepared], clock: str = SERVER_CLOCK) -> Kinds:
    """Return the durabilities of the jobs of one call; the call waits for all of them.

    In `bide.testing`, which has its own clock, it waits for none: the server ends with the test.
    """
    asked = set(map(_durability_of, jobs))
    return () if asked <= LOCAL or clock != SERVER_CLOCK else kinds_of(asked)


def jobs_in(command: Command[Any]) -> int:
    """Return how many jobs a command of `enqueue` adds."""
    return len(command.args) // (_SENT + 2 * (command.script == "enqueue_full"))


def enqueue_many(
    keys: Keys, jobs: Sequence[Prepared], kinds: Kinds = ()
) -> Iterator[list[Command[list[Receipt]]]]:
    """Add any number of jobs; yield the calls of each round trip, limited by count and bytes.

    No job has a parent in another call of its round trip, because each call may have to be sent
    again after the others.
    """
    if len(jobs) == 1 and not (jobs[0].constraints or jobs[0].parents):
        yield [enqueue(keys, jobs, kinds)]
        return
    trip: list[Command[list[Receipt]]] = []
    sent: set[str] = set()  # the jobs of these calls
    size, first, kind, awaited = 0, 0, 0, 0
    # All by one script, so that a job can share a call with its parents.
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
"""The kind of a job that one call cannot add: it has many parents, or some in other queues."""


def _kind(job: Prepared) -> int:
    in_steps = len(job.parents) > CHUNK or any(is_remote(parent) for parent in job.parents)
    return _IN_STEPS if in_steps else 1


def _adding(
    keys: Keys, jobs: Sequence[Prepared], kinds: Kinds, kind: int
) -> Command[list[Receipt]]:
    if kind == _IN_STEPS:
        return EnqueueFull(keys, jobs[0], kinds).begin()
    # A call without all keys might have to be sent again, after the others.
    return enqueue(keys, jobs, kinds, full=kind > 0, with_all_keys=True)


class EnqueueFull:
    """Adds a job with many parents, or with parents in other queues, step by step.

    The first step adds the job with an additional parent, the gate, which only the last step
    removes. So the job never runs before all its parents are known, even if the producer dies. If
    the gate exists for half a minute, a claim removes the job, whose `enqueue` has not returned.
    """

    def __init__(self, keys: Keys, job: Prepared, kinds: Kinds) -> None:
        self._keys = keys
        self._job = job
        self._kinds = kinds
        self._is_new = True
        self._left = list(job.parents[CHUNK:])
        """The parents that have not been sent yet."""
        self._to_ask = [parent for parent in job.parents if is_remote(parent)]
        """The parents in other queues to which the job is not subscribed yet."""
        self._ended: list[tuple[str, str]] = []
        """The parents in other queues that have ended, with their outcomes."""
        self._data = ""
        """The name of a delay queue among the queues of the parents; empty if there is none."""

    def begin(self) -> Command[list[Receipt]]:
        """Return the command of the first step."""
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
                    f"Enqueueing job {short_id(self._job.id)} took so long that the server "
                    f"removed it, as it does after the death of a producer; enqueue it again."
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
