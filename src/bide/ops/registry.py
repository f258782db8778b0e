"""Which queues and workers there are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from bide.clock import from_us
from bide.command import Command, command
from bide.ids import is_name
from bide.keys import Keys
from bide.ops.manage import DATA
from bide.ops.reply import number, pairs, words

EVERY: Final = 10.0
"""Seconds between two heartbeats of a worker."""

ALIVE: Final = 15.0
"""Seconds within which a live worker has given a sign of life: a heartbeat, with time to spare."""


class Doing(msgspec.Struct, frozen=True, array_like=True):
    """A job that a worker runs."""

    queue: str
    id: str
    task: str
    since_us: int

    @property
    def since(self) -> datetime:
        """When it was claimed, by the server's clock."""
        return from_us(self.since_us)


MOST_DOING: Final = 10
"""Jobs that a worker tells of; how many there are, it says too."""


_FORGOTTEN: Final = 3600.0
"""Seconds after which `heartbeat.lua` may forget a worker that says nothing."""

MOST_UNSERVED: Final = 10
"""Tasks that it does not serve that a worker tells of."""


class About(msgspec.Struct, frozen=True):
    """What a worker says of itself."""

    host: str = "?"
    pid: int = 0
    queues: list[str] = []
    executor: str = "?"
    concurrency: int = 0
    started_us: int = 0
    version: str = "?"
    busy: int = 0
    """How many jobs it runs."""
    doing: list[Doing] = []
    """The first of them."""
    rss: int = 0
    """Bytes of memory, of its children too."""
    schema: int = 1
    """The newest that it knows."""
    unserved: list[str] = []
    """Tasks that it was lately asked for, and does not serve."""
    skew: float | None = None
    """Seconds by which its clock is ahead of the server's; None while that is not known."""
    lease: float = 0.0
    """Seconds for which it holds a job without renewing the lease; 0 where it does not say."""

    @property
    def started(self) -> datetime:
        """When it started, by its own clock."""
        return from_us(self.started_us)


class WorkerSeen(NamedTuple):
    """A worker, and how long ago (seconds) it last gave a sign of life."""

    name: str
    ago: float
    about: About

    @property
    def alive(self) -> bool:
        """Whether that is less than 15 seconds ago.

        A worker sends a heartbeat every 10 seconds; to renew the lease of a job is a sign of life
        too. A worker that is not alive is listed as long as it holds a job under a lease.
        """
        return self.ago <= ALIVE


def register(keys: Keys, queues: Sequence[str]) -> Command[None]:
    """Note that queues are in use; `keys` are the global ones."""
    return command("register", keys, queues, lambda reply: None)


def unregister(keys: Keys, queues: Sequence[str]) -> Command[None]:
    """Take queues off the list of those that are in use; `keys` are the global ones."""
    return command("unregister", keys, queues, lambda reply: None)


class Beginning(NamedTuple):
    """What a worker must know of a queue before it serves it."""

    is_data: bool
    """Whether it is a delay queue, whose data no worker can run."""
    policy: str | None
    """What the server drops when its memory is full; None where that may not be asked."""


def begin(keys: Keys) -> Command[Beginning]:
    """Ask what a worker must know of a queue before it serves it."""
    return command("begin", keys, (), _read_beginning)


def _read_beginning(reply: list[Any]) -> Beginning:
    _, kind, policy = words(reply, 0)
    return Beginning(kind == DATA, None if policy == "-" else policy)


class Pulse(NamedTuple):
    """What a worker learns when it says that it lives."""

    now_us: int
    stop: bool
    """Someone wants it to stop."""


def heartbeat(keys: Keys, worker: str, about: About | None) -> Command[Pulse]:
    """Say that a worker lives, or with None that it stops."""
    text = msgspec.json.encode(about) if about else b""
    return command("heartbeat", keys, (worker, text), lambda reply: Pulse(reply[1], reply[2] == 1))


def stop(keys: Keys, names: Sequence[str]) -> Command[list[str]]:
    """Ask workers to stop; `ok` or `gone` for each."""
    return command("stop", keys, names, lambda reply: words(reply, 2))


def workers(keys: Keys) -> Command[list[WorkerSeen]]:
    """The workers that were heard of within an hour, dead ones too; see `bide.ops.holders`."""
    return command("workers", keys, (), _read_workers)


def queues(keys: Keys) -> Command[list[str]]:
    """The names of all queues that were ever used, sorted; what is no name, is none of bide's."""
    return command("queues", keys, (), lambda reply: sorted(filter(is_name, words(reply[1], 0))))


def _read_workers(reply: list[Any]) -> list[WorkerSeen]:
    seen = []
    for name, value in pairs(reply[2]).items():
        if " " in name:  # who was asked to stop
            continue
        at_us, _, text = value.partition(b" ")
        ago = (reply[1] - number(at_us)) / 1e6
        if ago <= _FORGOTTEN:
            seen.append(WorkerSeen(name, ago, _read_about(text)))
    return sorted(seen, key=lambda worker: worker.name)


def _read_about(text: bytes) -> About:
    """Other versions may say other things of themselves."""
    try:
        return msgspec.json.decode(text, type=About)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return About()
