"""Groups as their words have them: whose turn it is, given the time and what was done before."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import Any

from tests.support.probe import SECOND

BEGIN = 1_800_000_000_000_000
TURNS, SPARE_STEPS = 20, 16


@dataclass
class Job:
    id: str
    group: str
    """Or nothing."""
    due: int
    priority: int
    at_once: int
    state: str = "due"
    started: int = 0


@dataclass
class Rate:
    """Tokens come at even distances until the bucket is full."""

    count: int
    period: int
    burst: int
    full_at: Fraction = Fraction(0)
    last: int = 0

    def lacks(self, now: int) -> Fraction:
        """How many tokens it lacks."""
        gone = max(Fraction(0), self.full_at - now) * self.count / self.period
        return min(gone, Fraction(self.burst))

    def free_at(self, now: int) -> int:
        """When there is one; 0 where there is."""
        lacks = self.lacks(now)
        if floor(self.burst - lacks) >= 1:
            return 0
        return now + ceil((lacks - self.burst + 1) * self.period / self.count)

    def take(self, now: int) -> None:
        lacks = self.lacks(now) + 1
        self.full_at, self.last = now + lacks * self.period / self.count, now

    def put_back(self, now: int, tokens: int) -> None:
        lacks = self.lacks(now) - tokens
        self.full_at = now + lacks * self.period / self.count

    def carried(self, new: Rate, now: int) -> None:
        """`new` takes its place: it is full when this one would have been, or before.

        No token that was taken under the old rate goes back.
        """
        longest = Fraction(new.burst * new.period, new.count)
        new.full_at, new.last = min(Fraction(self.full_by(now)), now + longest), 0

    def full_by(self, now: int) -> int:
        """When it has all tokens. It never lacks more than it holds, whatever rate was before."""
        return now + ceil(self.lacks(now) * self.period / self.count)


@dataclass
class Group:
    name: str
    priority: int = 5
    asked: int = 0
    set: int = 0
    paused: bool = False
    rate: Rate | None = None
    is_shared: bool = True
    """Its rate is the one that the queue gives, if any."""
    free: int = 0
    stores_rate: bool = False
    """One that the queue gives was stored, as a token was missing."""
    level: int = 0
    """Of its marker; 0 for none. So much less than 10 is its priority."""
    turn: int = 0

    def limit(self) -> int:
        return self.set or max(self.asked, 1)

    def rests(self) -> bool:
        return self.level == 0 and self.turn > 0


@dataclass
class Model:
    """A queue as its words have it."""

    now: int = BEGIN
    jobs: dict[str, Job] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    had_odd: bool = False
    shared_rate: tuple[int, int, int] | None = None
    """Of each group without one of its own."""
    is_rewinding: bool = False
    """That has changed, and no claim has looked at the groups since."""
    ids: Iterator[int] = field(default_factory=itertools.count)

    def of(self, name: str, state: str) -> list[Job]:
        found = [job for job in self.jobs.values() if (job.group, job.state) == (name, state)]
        return sorted(found, key=lambda job: (job.due, job.id))

    def touch(self, name: str, at_once: int = 0) -> Group:
        group = self.groups.setdefault(name, Group(name, asked=at_once))
        if group.is_shared:
            self.give_rate(group, self.shared_rate)
        return group

    def give_rate(self, group: Group, value: tuple[int, int, int] | None) -> None:
        before = group.rate
        if before and (before.count, before.period, before.burst) == value:
            return
        group.rate, group.free = Rate(*value) if value else None, 0
        if group.rate:
            if before:
                before.carried(group.rate, self.now)
            group.free = group.rate.free_at(self.now)

    def settle_turn(self, group: Group) -> None:
        """Put its marker where it belongs, or forget it."""
        due, running = self.of(group.name, "due"), len(self.of(group.name, "active"))
        level = turn = 0
        if due and not group.paused and running < group.limit():
            level = 10 - group.priority
            turn = max(due[0].due, self.now, group.free)
            if group.level and group.turn <= self.now and turn == self.now:
                turn = group.turn  # it keeps its place
        group.level, group.turn = level, turn
        is_short = group.rate is not None and group.rate.lacks(self.now) > 0
        group.stores_rate = is_short or (group.rate is not None and not group.is_shared)
        own = group.rate and not group.is_shared
        if due or running or group.set or group.paused or own:
            return
        if group.rate and is_short:
            group.turn = group.rate.full_by(self.now)  # it rests until then
        else:
            self.groups.pop(group.name, None)

    def settle_turns(self, names: Iterable[str]) -> None:
        for name in dict.fromkeys(names):
            if name:
                self.settle_turn(self.touch(name))

    # -- verbs

    def add(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.jobs[job.id] = job
            if job.group:
                group = self.touch(job.group)
                group.priority = job.priority
                group.asked = job.at_once or group.asked
        self.settle_turns(job.group for job in jobs)

    def claim(self, count: int) -> list[str]:
        if self.is_rewinding:
            ahead = [g.name for g in self.groups.values() if g.level and g.turn > self.now]
            self.settle_turns(ahead)
            self.is_rewinding = False
        for group in [g for g in self.groups.values() if g.rests() and g.turn <= self.now]:
            del self.groups[group.name]
        taken: list[Job] = []
        steps = 2 * min(count, TURNS) + SPARE_STEPS
        had_odd = self.had_odd
        for level in range(1, 11):
            singles = [
                job
                for job in self.of("", "due")
                if 10 - job.priority == level and job.due <= self.now
            ]
            wanted = count - len(taken)
            if self._markers(level) and wanted > 0:
                share = self._share(len(singles), wanted, had_odd)
                steps = self._take_turns(level, share, steps, taken)
            is_overdue = bool(self._markers(level))
            wanted = count - len(taken)
            for job in singles[: max(wanted, 0)]:
                self._begin(job)
                taken.append(job)
            if is_overdue or len(singles) > max(wanted, 0):
                break
        return [job.id for job in taken]

    def _markers(self, level: int) -> list[Group]:
        come = [g for g in self.groups.values() if g.level == level and g.turn <= self.now]
        return sorted(come, key=lambda group: (group.turn, group.name))

    def _share(self, singles: int, wanted: int, had_odd: bool) -> int:
        half = wanted // 2
        if singles <= half or wanted % 2 == 0:
            return wanted - min(singles, half)
        self.had_odd = not had_odd
        return half if had_odd else half + 1

    def _take_turns(self, level: int, wanted: int, steps: int, taken: list[Job]) -> int:
        while wanted > 0:
            met = self._markers(level)[: min(wanted, steps)]
            steps -= len(met)
            begun = 0
            for group in met:
                self.touch(group.name)
                group.level = 0
                if group.free > self.now:
                    continue  # the rate has changed since its marker was set
                head, *_ = self.of(group.name, "due")
                self._begin(head)
                taken.append(head)
                begun += 1
                if group.rate:
                    group.rate.take(self.now)
                    group.free = group.rate.free_at(self.now)
            self.settle_turns(group.name for group in met)
            wanted -= begun
            if not met:
                break
        return steps

    def _begin(self, job: Job) -> None:
        job.state, job.started = "active", self.now

    def settle(self, job: Job, outcome: str, seconds: int) -> None:
        if outcome in ("retry", "snooze"):
            job.state, job.due = "due", self.now + seconds * SECOND
        elif outcome.startswith("release"):
            job.state = "due"
        else:
            job.state = "ended"
        group = self.touch(job.group) if job.group else None
        if group and group.rate and outcome == "release" and group.rate.last == job.started:
            group.rate.put_back(self.now, 1)
            group.free = group.rate.free_at(self.now)
        self.settle_turns([job.group])

    def move_job(self, job: Job, verb: str, seconds: int) -> None:
        if job.state == "due":
            if verb == "cancel":
                job.state = "ended"
            elif verb == "promote":
                if job.due <= self.now:
                    return  # nobody looks at its group
                job.due = self.now
            else:
                job.due = self.now + seconds * SECOND
            self.settle_turns([job.group])

    def arrange(self, name: str, what: str, value: Any) -> None:
        if what == "shared rate":
            self.is_rewinding = self.is_rewinding or value != self.shared_rate
            self.shared_rate = value
            return
        group = self.touch(name)
        if what == "pause":
            group.paused = value
        elif what == "concurrency":
            group.set = value
        else:
            is_other = group.is_shared and value is not None
            group.is_shared = value is None
            self.give_rate(group, self.shared_rate if value is None else value)
            if is_other and group.rate:  # what is carried over is whole microseconds
                group.rate.carried(group.rate, self.now)
                group.free = group.rate.free_at(self.now)
        self.settle_turn(group)
