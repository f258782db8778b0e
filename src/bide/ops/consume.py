"""The worker's side: claim, settle, extend, leave.

A claim carries a number, so that its repeat after a lost reply returns what the first took. A
settle carries the token of its claim: the server applies it if the job is still held under that
token, answers `ok` again to a repeat, and `lost` to a worker whose lease has passed to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from bide.command import Arg, Command, command
from bide.job import Claimed
from bide.keys import Keys
from bide.ops.reply import groups, words

MAX_CLAIM: Final = 250
"""Jobs per claim at most: bounds the time one call may take on the server."""

MAX_SETTLES: Final = 250
MAX_SETTLE_BYTES: Final = 4_000_000
"""Bounds of one settle call, by count and by the bytes of results and errors."""

Outcome = Literal["complete", "retry", "fail", "snooze", "release"]
Verdict = Literal["ok", "lost", "gone"]


class Claim(NamedTuple):
    """What a claim brought."""

    now_us: int
    """The server's time at the claim."""
    until_us: int
    """When to claim again unless woken before; 0 where the worker was left without free slots."""
    deadline_us: int
    """The next due time or end of a lease; 0 where there is none."""
    more: bool
    """More is due than was taken or looked at: claim again as soon as there is room."""
    alone: bool
    """The job taken is a suspect: nothing may be claimed beside it."""
    drain: bool
    """A suspect waits for a worker that runs nothing else: finish what runs, then claim."""
    jobs: list[Claimed]
    stale: bool = False
    """The server has seen a later claim of this worker."""


class Settle(NamedTuple):
    """How one claimed job ended."""

    id: str
    token: int
    outcome: Outcome
    when: str = ""
    data: bytes = b""


class Retention(NamedTuple):
    """How many finished jobs a queue keeps, and how long (seconds)."""

    completed_count: int = 10_000
    completed_age: float = 86_400
    failed_count: int = 10_000
    failed_age: float = 30 * 86_400
    cancelled_count: int = 10_000
    cancelled_age: float = 86_400


DEFAULT_RETENTION: Final = Retention()


def claim(
    keys: Keys,
    worker: str,
    seq: int,
    count: int,
    lease_us: int,
    busy: int,
    retention: Retention = DEFAULT_RETENTION,
) -> Command[Claim]:
    """Take up to `count` due jobs; `busy` is the number of jobs the worker runs already."""
    args = (worker, seq, min(count, MAX_CLAIM), lease_us, busy, _limits(retention))
    return command("claim", keys, args, _read_claim)


def settle(
    keys: Keys, settles: Sequence[Settle], retention: Retention = DEFAULT_RETENTION
) -> Command[list[Verdict]]:
    """Apply outcomes; one verdict for each."""
    args: list[Arg] = [
        retention.completed_count,
        round(retention.completed_age * 1e6),
        retention.failed_count,
        round(retention.failed_age * 1e6),
    ]
    for id, token, outcome, when, data in settles:
        args += (id, f"{token:016d}", outcome, when, data)
    return command("settle", keys, args, _read_verdicts)


def fitting(settles: Sequence[Settle]) -> int:
    """How many of the first settles fit one call, by count, and by bytes after the first."""
    size = 0
    for count, settle in enumerate(settles[:MAX_SETTLES]):
        size += len(settle.data)
        if size > MAX_SETTLE_BYTES and count:
            return count
    return min(len(settles), MAX_SETTLES)


def extend(keys: Keys, lease_us: int, held: Sequence[tuple[str, int]]) -> Command[list[Verdict]]:
    """Renew leases; `held` is (id, token) of each job."""
    args: list[Arg] = [lease_us]
    for id, token in held:
        args += (id, f"{token:016d}")
    return command("extend", keys, args, _read_verdicts)


def leave(keys: Keys, worker: str) -> Command[None]:
    """Drop what the queue remembers of a worker that stops."""
    return command("leave", keys, (worker,), lambda reply: None)


@lru_cache
def _limits(retention: Retention) -> str:
    ages = [round(age * 1e6) for age in retention[1::2]]
    return " ".join(f"{count} {age}" for count, age in zip(retention[::2], ages, strict=True))


def _read_claim(reply: list[Any]) -> Claim:
    if reply[0] == b"stale":
        return Claim(0, 0, 0, True, False, False, [], stale=True)
    jobs = [
        Claimed(id.decode(), body, token, attempt, due_us)
        for id, body, token, attempt, due_us in groups(reply, 7, 5)
    ]
    now_us, until_us, deadline_us, more, alone, drain = reply[1:7]
    return Claim(now_us, until_us, deadline_us, bool(more), bool(alone), bool(drain), jobs)


def _read_verdicts(reply: list[Any]) -> list[Verdict]:
    return words(reply, 2)  # type: ignore[return-value]
