"""The books: what was handed in, what ran, and what the server holds, held against each other.

Each check is one of the invariants; what it finds is a sentence. An empty list is the proof that
this run gives, and no more.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.load import Asked, Given
from tests.support.cpu_waits import Look, starved
from tests.support.invariants import Holding
from tests.support.ledger import Line

FINAL = ("completed", "failed", "cancelled")


class Happened(NamedTuple):
    """A fault that can explain why a job ran once more."""

    from_us: int
    until_us: int
    workers: frozenset[str] | None = None
    """Whom it hit, by the names they were given; None for all."""
    excuses: bool = True
    """Whether a job may run once more because of it; else it must have cost nothing but time."""
    is_starvation: bool = False
    """Whether it was no fault: the machine had no processor for it (`support/cpu_waits.py`)."""

    def explains(self, run: Line, next_run: Line, real_clock: bool = True) -> bool:
        """Whether it can have kept the outcome of a run from being applied.

        A worker holds a job from its claim on (the token). If the worker stands still between the
        claim and the run, the run may begin after the fault.
        """
        if not self.excuses or not self.hit(run):
            return False
        held_us = min(run.token, run.real_us) if real_clock else run.real_us
        return self.from_us <= next_run.real_us and held_us <= self.until_us

    def hit(self, run: Line) -> bool:
        """Whether it hit the worker of a run."""
        return self.workers is None or worker_of(run) in self.workers


SPARE = 1 / 8
"""Of a lease: what is left where a renewal failed. The renewal begins within three eighths of a
lease, waits a quarter for its answer, and the next one begins a quarter later."""


class Missed(NamedTuple):
    """A worker's log says that leases were not renewed: the line to the server was bad."""

    worker: str
    at_us: int


def starvations(
    looks: Sequence[Look], lease: float, missed: Sequence[Missed] = ()
) -> list[Happened]:
    """When workers may have lost leases of so many seconds, because they had no processor."""
    lease_us = round(lease * 1e6)
    found = [*starved(looks, lease)]
    for short in starved(looks, lease, SPARE):
        has_missed = any(
            worker == short.worker
            and short.from_us - lease_us <= at_us <= short.until_us + lease_us
            for worker, at_us in missed
        )
        is_told = any(
            one.worker == short.worker
            and one.from_us <= short.until_us
            and short.from_us <= one.until_us
            for one in found
        )
        if has_missed and not is_told:
            found.append(short)
    return [
        Happened(one.from_us, one.until_us, frozenset({one.worker}), is_starvation=True)
        for one in found
    ]


_MISSED = re.compile(
    r"^(\S+ \S+) WARNING The leases of queue \S+ could not be renewed", re.MULTILINE
)


def missed_in(worker: str, log: str) -> list[Missed]:
    """When a worker's log says that leases were not renewed."""
    return [
        Missed(worker, round(datetime.strptime(at, "%Y-%m-%d %H:%M:%S.%f%z").timestamp() * 1e6))
        for at in _MISSED.findall(log)
    ]


def worker_of(line: Line) -> str:
    """The name that the worker was given."""
    return line.worker.partition(".")[0]


@dataclass
class Account:
    """What the books say of one fault."""

    jobs: int = 0
    lost: int = 0
    early: int = 0
    explained: int = 0
    """Runs that were one too many, with a fault each that explains them."""
    starved: int = 0
    """How many of these by a machine that had no processor for the worker."""
    unexplained: int = 0
    findings: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """Seconds from a fault to the end of each job that it held up."""


class Books:
    """All that is known when the load has drained."""

    def __init__(
        self,
        jobs: Mapping[str, Given],
        asked: Mapping[str, Asked],
        lines: Sequence[Line],
        holding: Holding,
        happened: Sequence[Happened],
        real_clock: bool = True,
    ) -> None:
        self.jobs = jobs
        self.asked = asked
        self.holding = holding
        self.happened = happened
        self.lines = lines
        self._real_clock = real_clock
        self.starved: Counter[str] = Counter()
        """How often each job ran once more because its worker had no processor."""
        self.begun: dict[str, list[Line]] = defaultdict(list)
        self.done: dict[str, list[Line]] = defaultdict(list)
        for line in lines:
            if line.what in ("begun", "done"):
                (self.begun if line.what == "begun" else self.done)[line.id].append(line)

    def account(self) -> Account:
        """Check all that can be checked from here: invariants 1 to 4 and 6."""
        account = Account(jobs=len(self.jobs))
        account.lost = _note(account, self._lost())
        account.early = _note(account, self._early())
        _note(account, self._wrong_ends())
        _note(account, self._outcomes())
        _note(account, self._tokens())
        self._duplicates(account)
        account.recoveries = list(self._recoveries())
        return account

    def _lost(self) -> Iterator[str]:
        """1: what was acknowledged is in exactly one state (that it is in one, `legal` holds)."""
        there = self.holding.ids
        for id in self.asked:
            if id not in there:
                yield f"{id} was acknowledged, and is gone"

    def _wrong_ends(self) -> Iterator[str]:
        """8, and how each job ended; a crash or a stop has used no attempt."""
        for id, job in self.jobs.items():
            where, record = self.holding.where(id), self.holding.records.get(id)
            if where is None or id not in self.asked:
                continue
            if where != job.ends:
                yield f"{id} is {where}, not {job.ends}"
            elif record is not None and job.attempts and record.attempt != job.attempts:
                yield f"{id} took {record.attempt} attempts, not {job.attempts}"
            elif where == "completed" and job.runs and not self.done[id]:
                yield f"{id} is completed, and no run of it came to its end"

    def _outcomes(self) -> Iterator[str]:
        """2: each attempt has one outcome, that of the run that held the token."""
        sets, records = self.holding.sets, self.holding.records
        for name in ("completed", "failed"):
            if self.holding.total(name) != len(sets[name]):
                yield f"{len(sets[name])} jobs {name}, but so often that was: " + str(
                    self.holding.total(name)
                )
        ended = [r for id, r in records.items() if self.holding.where(id) in ("completed",)]
        retried = sum(record.attempt - 1 for record in ended)
        failed = [r for id, r in records.items() if self.holding.where(id) == "failed"]
        most = retried + sum(record.attempt for record in failed)
        if not retried <= self.holding.total("retried") <= most:
            yield f"{self.holding.total('retried')} retries, where attempts say {retried}"
        for id, result in self.holding.hashes["results"].items():
            if id not in self.jobs or not self.jobs[id].runs:
                continue
            if int(result) not in {line.token for line in self.done[id]}:
                yield f"{id} has the result of a run that did not end: {result.decode()}"
            elif int(result) != records[id].token:
                yield f"{id} has the result of another run than the one that held it last"

    def _early(self) -> Iterator[str]:
        """4: nothing begins before it is due."""
        for id, runs in self.begun.items():
            for run in runs:
                if self._real_clock and run.real_us < run.due_us:
                    yield f"{id} began {(run.due_us - run.real_us) / 1e3:.1f} ms early"
                if not self._real_clock and run.token < run.due_us:
                    yield f"{id} was taken {(run.due_us - run.token) / 1e3:.1f} ms early"
            if id in self.asked and self._real_clock:
                first_us = self.asked[id].asked_us + round(self.jobs[id].delay * 1e6)
                if runs[0].real_us < first_us:
                    yield f"{id} began {(first_us - runs[0].real_us) / 1e3:.1f} ms early"

    def _tokens(self) -> Iterator[str]:
        """6: no two claims of a job have one token, and the record has the last."""
        for id, runs in self.begun.items():
            tokens = [run.token for run in runs]
            if len(set(tokens)) < len(tokens):
                yield f"{id} ran twice under one token"
            record = self.holding.records.get(id)
            if record is not None and record.token < max(tokens):
                yield f"the token of {id} has become less"
            by_token = sorted(runs, key=lambda run: run.token)
            if not self.happened and any(b.attempt < a.attempt for a, b in pairwise(by_token)):
                yield f"an attempt of {id} came after the next one"

    def _duplicates(self, account: Account) -> None:
        """3: an attempt runs once, and at most once more for each fault that explains it.

        Starvation is looked at last: what a fault explains needs no other cause.
        """
        for id, runs in self.begun.items():
            by_attempt: dict[int, list[Line]] = defaultdict(list)
            for run in runs:
                by_attempt[run.attempt].append(run)
            for attempt, again in sorted(by_attempt.items()):
                unused = sorted(self.happened, key=lambda cause: cause.is_starvation)
                for run, next_run in pairwise(sorted(again, key=lambda run: run.token)):
                    cause = next(
                        (h for h in unused if h.explains(run, next_run, self._real_clock)), None
                    )
                    if cause is None:
                        account.unexplained += 1
                        account.findings.append(
                            f"{id} ran again in attempt {attempt}, by {next_run.worker} after "
                            f"{run.worker}, and no fault explains it"
                        )
                        continue
                    unused.remove(cause)
                    account.explained += 1
                    if cause.is_starvation:
                        account.starved += 1
                        self.starved[id] += 1

    def _recoveries(self) -> Iterator[float]:
        """How long each job took that a fault held up.

        From the fault's moment, if it hit some workers and others could go on; from its end, if
        it hit all. Held up is what ran on those whom it hit, and what fell due until then.
        """
        for id, asked in self.asked.items():
            runs, ends = self.begun[id], self.done[id]
            if not runs or not ends:
                continue
            due_us = runs[0].due_us
            if not self._real_clock:
                due_us = asked.asked_us + round(self.jobs[id].delay * 1e6)
            for fault in self.happened:
                if fault.is_starvation:
                    continue
                since_us = fault.from_us if fault.workers else fault.until_us
                if any(fault.from_us <= end.real_us < since_us for end in ends):
                    continue
                held = any(
                    run.real_us <= fault.from_us
                    and fault.hit(run)
                    and not any(e.token == run.token and e.real_us <= fault.from_us for e in ends)
                    for run in runs
                )
                later = [end.real_us for end in ends if end.real_us >= since_us]
                if later and (held or fault.from_us <= due_us <= since_us):
                    yield (min(later) - since_us) / 1e6


def in_order(runs: Iterable[Line]) -> Iterator[str]:
    """5: one worker, no retries, one priority: by due time, then by id."""
    last: Line | None = None
    for run in runs:
        if last is not None and (run.due_us, run.id) < (last.due_us, last.id):
            yield f"{run.id} ran after {last.id}, which is due later"
        last = run


def _note(account: Account, findings: Iterator[str]) -> int:
    found = list(findings)
    account.findings += found
    return len(found)
