"""Books of jobs that have to do with each other: what ran at once, in which order, after what."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.books import Happened
from tests.support.ledger import Line

SECOND_US = 1_000_000


class Span(NamedTuple):
    """From when to when something ran, by the machine's clock."""

    from_us: int
    until_us: int
    id: str


def spans(lines: Iterable[Line], happened: Sequence[Happened]) -> list[Span]:
    """What ran when; a run that came to no end ran until its worker was hit.

    One whose worker was starved ran until its job began elsewhere: its lease had passed by then.
    """
    begun: dict[tuple[str, int], Line] = {}
    ends: dict[tuple[str, int], int] = {}
    for line in lines:
        if line.what == "begun":
            begun[line.id, line.token] = line
        elif line.what in ("done", "raised"):
            ends[line.id, line.token] = line.real_us
    starvations = [h for h in happened if h.is_starvation]
    faults = [h for h in happened if not h.is_starvation]
    found = []
    for run, line in begun.items():
        hits = [h.from_us for h in faults if h.hit(line) and h.from_us >= line.real_us]
        until_us = ends.get(run, min(hits, default=line.real_us))
        passed_on = [
            other.real_us
            for other in begun.values()
            if other.id == line.id and other.token > line.token
            if any(h.explains(line, other) for h in starvations)
        ]
        until_us = min([until_us, *passed_on])
        found.append(Span(line.real_us, max(until_us, line.real_us + 1), line.id))
    return sorted(found)


def too_many(found: Iterable[Span], most: int, what: str) -> Iterator[str]:
    """No more than so many of these at once."""
    edges = sorted(edge for s in found for edge in ((s.from_us, 1, s.id), (s.until_us, -1, s.id)))
    running: set[str] = set()
    for _, step, id in edges:
        (running.add if step > 0 else running.discard)(id)
        if len(running) > most:
            yield f"{len(running)} {what} ran at once, not {most}: {', '.join(sorted(running))}"
            return


def too_fast(lines: Iterable[Line], most: int) -> Iterator[str]:
    """No more than so many claimed in any second, by the server's clock."""
    claimed = sorted({(line.token, line.id) for line in lines if line.what == "begun"})
    times = [token for token, _ in claimed]
    for i, token in enumerate(times):
        count = bisect_left(times, token + SECOND_US) - i
        if count > most:
            yield f"{count} began within a second of {token}, not {most}"
            return


def out_of_order(lines: Iterable[Line], what: str) -> Iterator[str]:
    """What is due sooner, or was enqueued sooner, began sooner: of one group, by its first runs."""
    first: dict[str, Line] = {}
    for line in lines:
        if line.what == "begun" and (line.id not in first or line.token < first[line.id].token):
            first[line.id] = line
    for one, other in pairwise(sorted(first.values(), key=lambda line: line.token)):
        if (other.due_us, other.id) < (one.due_us, one.id):
            yield f"{other.id} of {what} began after {one.id}, which is due later"


def too_soon(lines: Iterable[Line], parents: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A job that waits for others began when each of these had come to an end."""
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}
    for line in lines:
        if line.what == "begun":
            begun.setdefault(line.id, line.real_us)
        elif line.what == "done":
            ended.setdefault(line.id, line.real_us)
    for child, awaited in parents.items():
        for parent in awaited:
            if child in begun and begun[child] < ended.get(parent, begun[child] + 1):
                yield f"{child} began before {parent} had ended"


def wrongly_batched(
    lists: Iterable[Sequence[tuple[str, int]]], wanted: Mapping[str, int]
) -> Iterator[str]:
    """Each item is in one list of its key, in the order in which it came.

    Args:
        lists: what jobs that have completed were given, by their due times.
        wanted: how many items each key has; they are numbered from 0.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for items in lists:
        if len({key for key, _ in items}) != 1:
            yield f"a list is of several keys: {items}"
        for key, number in items:
            found[key].append(number)
    for key, count in wanted.items():
        if sorted(found[key]) != list(range(count)):
            lost = set(range(count)) - set(found[key])
            twice = [number for number, often in Counter(found[key]).items() if often > 1]
            yield f"of the items of {key}, {sorted(lost)} are lost and {twice} are there twice"
        elif found[key] != sorted(found[key]):
            yield f"the items of {key} are out of order: {found[key]}"


def wrongly_fired(name: str, ids: Iterable[str], every_us: int, limit: int) -> Iterator[str]:
    """Each time of a schedule with an interval is there once: no one is missing between two."""
    times = sorted(int(id.rpartition("@")[2]) for id in ids if id.startswith(f"{name}@"))
    if len(times) != limit:
        yield f"{name} fired {len(times)} times, not {limit}"
    gaps = {b - a for a, b in pairwise(times)} - {every_us}
    if gaps:
        yield f"between two times of {name} there are {sorted(gaps)} µs, not {every_us}"
