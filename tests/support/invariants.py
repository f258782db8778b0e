"""Whether what a queue holds on the server is a legal state.

    holding = assert_legal(client, "mail")
    assert holding.where("some-id") == "active"

The picture is taken by one script, so it may be asked for at any moment, under any load, and of a
server that is full (which refuses a transaction, even one that reads).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import redis

from bide.model.history import read_history
from bide.model.job import RunRecord
from bide.model.options import Constraints
from bide.model.payload.body import decode_body, decode_item, decode_result, is_item
from bide.model.schedule import Schedule
from bide.protocol.keys import DUE_SETS, LAYOUT, PREFIX, keys_of

_SETS = ("blocked", "active", "completed", "failed", "cancelled")
_ASIDE = ("asked", "waiters", "expiring", "schedules", "order", "held", "turns", "edges", "resting")
_HASHES = (
    *("jobs", "run", "results", "notes", "terms", "groups", "schedule", "scheduled"),
    *("unique", "folded"),
)
_KEY = re.compile(r"[udtg]:\S+")
_ENTRY = re.compile(rb"\S+ (f|s|[0-9]+) [0-9]+( [0-9]+)*")
_DEDUP_REPLY = re.compile(rb"[0-9]+ (replaced|debounced|throttled|batched) [0-9]+ \S+")
_PICTURE = """
local reply = {}
for i, key in ipairs(KEYS) do
  if i <= tonumber(ARGV[1]) then
    reply[i] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif i <= tonumber(ARGV[2]) then
    reply[i] = redis.call('HGETALL', key)
  else
    reply[i] = redis.call('LLEN', key)
  end
end
return reply
"""
_OUTCOMES = {
    "completed": "C",
    "failed": "FK-",
    "cancelled": "XRSHLK-CF",
    "active": "-",
    "due": "RSHLK-CFX",
}
"""State -> how the latest claim of a job in it may have been settled (`-`: not at all)."""


@dataclass(frozen=True)
class Holding:
    """What a queue holds."""

    sets: dict[str, dict[str, int]]
    """Name of the set (`due:5`, `active`, `trash:5`, ...) -> id -> score in microseconds."""
    asked: dict[str, int]
    """id -> since when a running job has been asked to stop."""
    waiters: dict[str, int]
    """id -> until when its end is waited for."""
    hashes: dict[str, dict[str, bytes]]
    records: dict[str, RunRecord]
    meta: dict[str, str]
    order: frozenset[str] = frozenset()
    """`<group> <due> <id>` of each job of a group that was not taken."""
    held: frozenset[str] = frozenset()
    """`<group> <id>` of each that runs."""
    turns: frozenset[str] = frozenset()
    """The markers of groups."""
    resting: dict[str, int] = field(default_factory=dict)
    """Group without jobs -> when its record is dropped."""
    fires: dict[str, int] = field(default_factory=dict)
    """Schedule -> when it fires next."""
    schedules: dict[str, Schedule] = field(default_factory=dict)
    edges: frozenset[str] = frozenset()
    """What waits for what, as `lua/include/deps_edges.lua` has it."""

    @property
    def ids(self) -> set[str]:
        """The ids of all jobs, those that `purge` has set aside excepted."""
        return {id for name, ids in self.sets.items() if not name.startswith("trash") for id in ids}

    @property
    def due(self) -> dict[str, int]:
        """id -> due time of all that is delayed or waiting."""
        return {id: at for p in DUE_SETS for id, at in self.sets[f"due:{p}"].items()}

    def where(self, id: str) -> str | None:
        """`due`, `blocked`, `active`, `completed`, `failed`, `cancelled`, `trash`, or None."""
        for name, ids in self.sets.items():
            if id in ids:
                return name.partition(":")[0]
        return None

    def total(self, name: str) -> int:
        """One of the queue's running totals."""
        return int(self.meta.get(name, 0))


def hold(client: redis.Redis, queue: str, prefix: str = PREFIX) -> Holding:
    """What a queue holds now, as one picture."""
    keys = keys_of(queue, prefix)
    fans = [(f"{fan}:{p}", key) for fan in ("due", "trash") for p, key in _fan(keys.names[fan])]
    zsets = fans + [(name, keys[name]) for name in (*_SETS, *_ASIDE)]
    names = [*(key for _, key in zsets), *(keys[name] for name in (*_HASHES, "meta", "wake"))]
    replies = client.eval(_PICTURE, len(names), *names, len(zsets), len(zsets) + len(_HASHES) + 1)
    sets = {
        name: {id.decode(): int(score) for id, score in _pairs(reply)}
        for (name, _), reply in zip(zsets, replies, strict=False)
    }
    hashes = {
        name: {id.decode(): value for id, value in _pairs(reply)}
        for name, reply in zip(_HASHES, replies[len(zsets) :], strict=False)
    }
    meta = {name.decode(): value.decode() for name, value in _pairs(replies[-2])}
    assert replies[-1] <= 1, "more than one wake-up message"
    records = {}
    for id, line in hashes["run"].items():
        record = RunRecord.read(line)
        assert record is not None, f"{id} has the record {line!r}"
        records[id] = record
    schedules = {}
    for name, line in hashes.pop("schedule").items():
        schedule = Schedule.read(name, line)
        assert schedule is not None, f"{name} has the record {line!r}"
        schedules[name] = schedule
    asked, waiters, _, fires, *others, resting = (sets.pop(name) for name in _ASIDE)
    order, held, turns, edges = map(frozenset, others)
    holding = Holding(sets, asked, waiters, hashes, records, meta, order, held, turns)
    return replace(holding, resting=resting, fires=fires, schedules=schedules, edges=edges)


def assert_legal(
    client: redis.Redis, queue: str, prefix: str = PREFIX, unreadable: bool = False
) -> Holding:
    """Hold that a queue is in a legal state; what it holds.

    `unreadable`: some bodies were written so that nothing can read them.
    """
    holding = hold(client, queue, prefix)
    _each_id_in_one_set(holding)
    _bodies_are_listed(holding)
    if not unreadable:
        _bodies_can_be_read(holding)
    _records_agree(holding)
    _groups_agree(holding)
    _edges_agree(holding)
    _schedules_agree(holding)
    _no_other_key(client, queue, prefix)
    return holding


def _each_id_in_one_set(holding: Holding) -> None:
    seen: dict[str, str] = {}
    for name, ids in holding.sets.items():
        for id, score in ids.items():
            assert id not in seen, f"{id} is in {seen[id]} and in {name}"
            assert score > 1_000_000_000_000_000, f"{id} in {name} has the score {score}"
            seen[id] = name
        if name.startswith("trash") and ids:
            assert "trash" in holding.meta, f"{name} would never be swept"
    assert holding.asked.keys() <= holding.sets["active"].keys(), "asked to stop, but does not run"


def _bodies_are_listed(holding: Holding) -> None:
    listed = {id for ids in holding.sets.values() for id in ids}
    bodies = holding.hashes["jobs"].keys()
    assert listed - bodies == set(), "listed without a body"
    assert bodies - listed == set(), "a body that no set lists"


def _bodies_can_be_read(holding: Holding) -> None:
    for body in holding.hashes["jobs"].values():
        decode_item(body) if is_item(body) else decode_body(body)


def _records_agree(holding: Holding) -> None:
    assert holding.records.keys() <= holding.hashes["jobs"].keys(), "a record of no job"
    for id in holding.hashes["jobs"]:
        state, record = holding.where(id), holding.records.get(id)
        if state in ("active", "completed", "failed"):
            assert record is not None, f"{id} is {state} without a record"
        if record is None or state in (None, "trash"):
            continue
        assert record.settled in _OUTCOMES[str(state)], f"{id} is {state}, but {record}"
        assert min(record.attempt, record.crashes, record.strikes) >= 0, f"{id}: {record}"
        if state == "due":
            place = "alone" if record.strikes >= 2 else str(record.priority)
            if record.settled in ("S", "L") and id in holding.sets["due:unserved"]:
                place = "unserved"
            if Constraints.read(holding.hashes["terms"].get(id)).group is not None:
                place = "grouped"
            assert id in holding.sets[f"due:{place}"], f"{id} is not in due:{place}: {record}"
    for id, result in holding.hashes["results"].items():
        assert holding.where(id) == "completed", f"{id} has a result"
        decode_result(result)
    for id, line in holding.hashes["terms"].items():
        assert id in holding.hashes["jobs"], f"{id} has constraints, and is no job"
        assert Constraints.read(line) != Constraints(), f"{id} has the constraints {line!r}"
        assert "terms" in holding.meta, "terms that nothing looks at"
    for key, entry in holding.hashes["unique"].items():
        assert _KEY.fullmatch(key), f"{key} is no key under which calls are deduplicated"
        assert _ENTRY.fullmatch(entry), f"{key} is held by {entry!r}"
    for id, noted in holding.hashes["folded"].items():
        assert _DEDUP_REPLY.fullmatch(noted), f"{id} came to {noted!r}"
    large = sum(len(result) for result in holding.hashes["results"].values() if len(result) >= 2000)
    assert int(holding.meta.get("result_bytes", 0)) == large
    for id, text in holding.hashes["notes"].items():
        if not all(line.startswith(b"R ") for line in text.split(b"\n")):  # it was only moved
            assert id in holding.records, f"{id} has notes, but never ran"
        _notes_can_be_read(id, text)


def _groups_agree(holding: Holding) -> None:
    of = {id: Constraints.read(line).group for id, line in holding.hashes["terms"].items()}
    due, active = holding.sets["due:grouped"], holding.sets["active"]
    assert holding.order == {f"{of[id]} {at:017} {id}" for id, at in due.items()}
    assert holding.held == {f"{of[id]} {id}" for id in active if of.get(id) is not None}
    markers = set()
    for name, line in holding.hashes["groups"].items():
        _priority, asked, set_, paused, level, turn = map(int, line.split()[:6])
        running = sum(entry.startswith(f"{name} ") for entry in holding.held)
        has_next = any(entry.startswith(f"{name} ") for entry in holding.order)
        is_trashed = any(of.get(id) == name for id in holding.sets["trash:grouped"])
        rate = line.split()[7:8]
        is_limited = bool(rate) and not rate[0].startswith(b"q")
        is_used = has_next or running or set_ or paused or is_limited
        rests = not level and turn > 0
        assert is_used or rests or is_trashed, f"{name} is remembered"
        assert not (is_used and rests), f"{name} has {line!r}, and rests"
        assert holding.resting.get(name, 0) == (turn if rests else 0), f"{name} rests until {turn}"
        may_begin = has_next and not paused and running < (set_ or asked or 1)
        assert may_begin == (level > 0) or is_trashed, f"{name} has {line!r}, and {running} run"
        if level and has_next:
            markers.add(f"{'abcdefghijk'[level - 1]} {turn:017} {name}")
    assert holding.turns == markers
    known = {*holding.hashes["groups"]}
    assert holding.resting.keys() <= known
    assert {entry.split()[0] for entry in holding.order | holding.held} <= known
    assert "groups" in holding.meta or not known, "groups that nothing looks at"


def _edges_agree(holding: Holding) -> None:
    """Whatever is blocked waits for something that will tell it of its end."""
    blocked = holding.sets["blocked"]
    waits: dict[str, set[str]] = {}
    for member in holding.edges:
        if member[0] == "<":
            child, parent = member[1:].split(" ")
            waits.setdefault(child, set()).add(parent)
    for id in blocked:
        assert waits.get(id), f"{id} is blocked, and waits for nothing"
        for parent in waits[id] - {"{}"}:
            if parent.startswith("{"):
                continue
            assert f">{parent} {id}" in holding.edges, f"{parent} would not tell {id}"
            is_told = any(member.startswith(f"!{parent} ") for member in holding.edges)
            is_live = holding.where(parent) in ("due", "blocked", "active", "trash")
            assert is_live or is_told, f"{id} waits for {parent}, for ever"
    assert not holding.edges or "edges" in holding.meta, "edges that nothing looks at"


def _schedules_agree(holding: Holding) -> None:
    bodies = holding.hashes["scheduled"].keys()
    assert bodies == holding.schedules.keys(), "a schedule without a body, or a body without one"
    assert "scheduled" in holding.meta or not holding.schedules
    assert holding.fires.keys() <= holding.schedules.keys(), "no schedule fires"
    for name, schedule in holding.schedules.items():
        ends = schedule.paused or schedule.over
        assert (name in holding.fires) == (not ends), schedule
        if schedule.times and not ends:
            assert holding.fires[name] == schedule.times[0] > schedule.seen_us, schedule


def _notes_can_be_read(id: str, text: bytes) -> None:
    kinds = [line[:2].decode() for line in text.split(b"\n")]
    notes = read_history(text)
    read = len(notes.attempts) + len(notes.logs) + (notes.progress is not None)
    read += len(notes.moves)
    assert read == len(kinds), f"{id} has notes that cannot be read: {text!r}"
    for attempt in notes.attempts:
        assert attempt.error is None or attempt.error.type != "unreadable", f"{id}: {text!r}"
    for kind, most in (("E ", 10), ("C ", 10), ("L ", 100), ("P ", 1), ("R ", 5)):
        assert kinds.count(kind) <= most, f"{id} has too many notes {kind}"


def _no_other_key(client: redis.Redis, queue: str, prefix: str) -> None:
    named = {key.encode() for keys in keys_of(queue, prefix).names.values() for key in keys}
    there = set(client.scan_iter(match=f"{prefix}:{{{queue}}}*", count=1000))
    assert there <= named, f"keys that nothing names: {there - named}"


def _pairs(flat: list[Any]) -> list[tuple[bytes, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _fan(keys: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(LAYOUT["trash"].fan, keys, strict=False))
