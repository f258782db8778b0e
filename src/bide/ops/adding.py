"""Adding any number of jobs: which calls go in which round trips, and which have to go in steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from bide.command import Command
from bide.durability import Kinds
from bide.errors import JobNotFound, ServerUnavailable, UsageError
from bide.folding import Outcome
from bide.ids import short_id
from bide.keys import Keys, keys_of
from bide.ops.edges import GATE, attend, is_remote, link, split_reference
from bide.ops.produce import (
    CHUNK,
    CHUNK_BYTES,
    CHUNK_FOLDED,
    TERMS_CHUNK,
    TRIP,
    Prepared,
    Receipt,
    confirmed,
    data_parent,
    enqueue,
    parents_of,
    unknown_parent,
)
from bide.ops.reply import text, words
from bide.terms import folds


def enqueue_many(
    keys: Keys, jobs: Sequence[Prepared], kinds: Kinds = ()
) -> Iterator[list[Command[list[Receipt]]]]:
    """Add any number of jobs: round trips of several calls, each bounded by count and bytes.

    No job waits for one of another call in its trip: any of these may have to be sent again, behind
    the others.
    """
    if len(jobs) == 1 and not (jobs[0].terms or jobs[0].parents):
        yield [enqueue(keys, jobs, kinds)]
        return
    trip: list[Command[list[Receipt]]] = []
    sent: set[str] = set()  # the jobs of these calls
    size, first, kind, awaited = 0, 0, 0, 0
    # All by one script, so that what waits may share a call with what it waits for.
    is_flow = any(map(parents_of, jobs))
    for i, job in enumerate(jobs):
        full = size + len(job.body) > CHUNK_BYTES
        new_kind = _kind(job) if job.terms or is_flow else 0
        most = CHUNK if not new_kind else CHUNK_FOLDED if folds(job.terms) else TERMS_CHUNK
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
        return Placing(keys, jobs[0], kinds).begin()
    # What went without some keys might have to be sent again, behind the others.
    return enqueue(keys, jobs, kinds, place=kind > 0, with_all_keys=True)


class Placing:
    """Adds a job that waits for many others, or for jobs of other queues, step by step.

    It is there from the first step on, and waits also for a gate that only the last step opens. So
    nobody sees it run before all that it waits for is known, whoever dies; and whoever finds a gate
    that has stood closed for half a minute removes the job, which nobody has been told of.
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
        return first._replace(rest=self._begun)

    def _begun(self, reply: list[Any]) -> Command[list[Receipt]] | None:
        if reply[0] == b"busy":
            return self.begin()
        if reply[0] != b"ok" or reply[2] == b"exists":
            return None
        self._is_new = reply[2] == b"new"
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
        again = attend(keys_of(queue, self._keys.prefix), awaited, asked)
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
            outcome: Outcome = "new" if self._is_new else "exists"
            is_confirmed = confirmed(self._job, self._kinds)
            return [Receipt(self._job.id, due_us, outcome, is_confirmed)]

        again = link(self._keys, self._job.id, told, is_last, receipt, self._kinds, linked)
        return again
