"""Lists queues, groups and workers.

A worker sends a heartbeat every `EVERY` seconds. The running jobs are read from the server, which
is more recent: each running job is held under a lease, and its record names the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from bide.errors import BideError, PayloadError
from bide.model.durations import from_us
from bide.model.ids import check_name, is_name
from bide.model.limits import written_rate
from bide.model.options import check_concurrency
from bide.model.payload.body import decode_envelope
from bide.protocol.commands import Arg, Command, command, number, pairs, pieces, text, words
from bide.protocol.commands.jobs import DATA
from bide.protocol.keys import Keys, keys_of

EVERY: Final = 10.0
"""Seconds between two heartbeats of a worker."""

ALIVE: Final = 15.0
"""Seconds within which a live worker has given a sign of life: a heartbeat, with a margin."""


class RunningTask(msgspec.Struct, frozen=True, array_like=True):
    """A running job of a worker."""

    queue: str
    id: str
    task: str
    since_us: int

    @property
    def since(self) -> datetime:
        """When it was claimed, by the server's clock."""
        return from_us(self.since_us)


MOST_TASKS: Final = 200
"""Maximum number of tasks that a worker reports."""

MOST_DOING: Final = 10
"""Maximum number of running jobs that a worker reports, besides their count."""


_FORGOTTEN: Final = 3600.0
"""Seconds after which `heartbeat.lua` may remove a worker without a sign of life."""

MOST_UNKNOWN_TASKS: Final = 10
"""Maximum number of tasks that a worker lacks and reports."""

MOST_LONG_TASKS: Final = 10
"""Maximum number of tasks that a worker reports because their time-out exceeds its grace."""


class WorkerReport(msgspec.Struct, frozen=True):
    """The report of a worker about itself."""

    host: str = "?"
    pid: int = 0
    queues: list[str] = []
    executor: str = "?"
    concurrency: int = 0
    started_us: int = 0
    version: str = "?"
    busy: int = 0
    """Number of running jobs."""
    doing: list[RunningTask] = []
    """The first running jobs."""
    rss: int = 0
    """Bytes of memory, including its child processes."""
    unknown_tasks: list[str] = []
    """Tasks of recently claimed jobs that it does not serve."""
    skew: float | None = None
    """Seconds by which its clock is ahead of the server's; None if that is not known yet."""
    lease: float = 0.0
    """Seconds for which it holds a job without renewing the lease; 0 if it does not report them."""
    grace: float = 0.0
    """Seconds that running jobs have when it stops; 0 if it does not report them."""
    long_tasks: list[str] = []
    """The first tasks of its queues whose time-out is longer than its grace."""
    has_health_port: bool = False
    """Whether its supervisor answers probes."""
    tasks: list[str] = []
    """The first tasks that it serves."""
    paused: bool = False
    """Whether it claims nothing until it is resumed."""

    @property
    def started(self) -> datetime:
        """When it started, by its own clock."""
        return from_us(self.started_us)


class WorkerInfo(NamedTuple):
    """A worker, and the seconds since its last sign of life."""

    name: str
    """The worker's name."""
    ago: float
    """Seconds since its last sign of life."""
    about: WorkerReport
    """Its last report: host, queues, running jobs and so on."""

    @property
    def alive(self) -> bool:
        """Whether the last sign of life is less than 15 seconds ago.

        A worker sends a heartbeat every 10 seconds; the renewal of a job's lease is a sign of life
        too. A dead worker is listed as long as it holds a job under a lease.
        """
        return self.ago <= ALIVE


def register_queues(keys: Keys, queues: Sequence[str]) -> Command[None]:
    """Add queues to the list of queues; `keys` are the global keys."""
    return command("queue_register", keys, queues, lambda reply: None)


def unregister_queues(keys: Keys, queues: Sequence[str]) -> Command[None]:
    """Remove queues from the list of queues; `keys` are the global keys."""
    return command("queue_unregister", keys, queues, lambda reply: None)


class StartReply(NamedTuple):
    """The facts that a worker checks before it serves a queue."""

    is_data: bool
    """Whether the queue is a delay queue: workers cannot run its data."""
    policy: str | None
    """The server's eviction policy; None if the user may not read it."""


def worker_start(keys: Keys) -> Command[StartReply]:
    """Read the facts that a worker checks before it serves a queue."""
    return command("worker_start", keys, (), _read_beginning)


def _read_beginning(reply: list[Any]) -> StartReply:
    _, kind, policy = words(reply, 0)
    return StartReply(kind == DATA, None if policy == "-" else policy)


class HeartbeatReply(NamedTuple):
    """The server's reply to a heartbeat."""

    now_us: int
    stop: bool
    """Whether it was asked to stop."""
    pause: bool = False
    """Whether it was asked to pause."""


def heartbeat(keys: Keys, worker: str, about: WorkerReport | None) -> Command[HeartbeatReply]:
    """Send the report of a live worker, or with None that it stops."""
    text = b""
    if about is not None:
        doing = [_in_utf8(job) for job in about.doing]
        text = msgspec.json.encode(msgspec.structs.replace(about, doing=doing))
    return command(
        "heartbeat",
        keys,
        (worker, text),
        lambda reply: HeartbeatReply(reply[1], reply[2] == 1, reply[3] == 1),
    )


def _in_utf8(job: RunningTask) -> RunningTask:
    """Return an entry that JSON can hold: an id may contain any bytes."""
    id = job.id.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return msgspec.structs.replace(job, id=id)


def worker_stop(keys: Keys, names: Sequence[str]) -> Command[list[str]]:
    """Ask workers to stop; return `ok` or `gone` for each."""
    return command("worker_stop", keys, names, lambda reply: words(reply, 2))


def worker_pause(keys: Keys, names: Sequence[str], paused: bool) -> Command[list[str]]:
    """Ask workers to pause, or to resume; return `ok` or `gone` for each."""
    args: list[Arg] = [int(paused), *names]
    return command("worker_pause", keys, args, lambda reply: words(reply, 2))


def workers(keys: Keys) -> Command[list[WorkerInfo]]:
    """List the workers with a sign of life within the last hour, dead ones too; see `tell`."""
    return command("workers", keys, (), _read_workers)


def queues(keys: Keys) -> Command[list[str]]:
    """List the names of all queues that were ever used, sorted, without invalid names."""
    return command("queues", keys, (), lambda reply: sorted(filter(is_name, words(reply[1], 0))))


def _read_workers(reply: list[Any]) -> list[WorkerInfo]:
    seen = []
    for name, value in pairs(reply[2]).items():
        if " " in name:  # requests to stop or to pause
            continue
        at_us, _, text = value.partition(b" ")
        ago = (reply[1] - number(at_us)) / 1e6
        if ago <= _FORGOTTEN:
            seen.append(WorkerInfo(name, ago, _read_about(text)))
    return sorted(seen, key=lambda worker: worker.name)


def _read_about(text: bytes) -> WorkerReport:
    """Parse a worker's report; other versions may send other fields."""
    try:
        return msgspec.json.decode(text, type=WorkerReport)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return WorkerReport()


CHUNK: Final = 500
"""Maximum number of jobs that one call reads."""


class Held(NamedTuple):
    """The jobs of one queue that one worker holds."""

    number: int
    for_: float
    """Seconds until its last lease ends; 0 or less if all have ended."""
    doing: list[RunningTask]
    """The jobs that it has held for longest."""


Holders = dict[str, Held]
"""By the name of the worker."""


def holders(
    keys: Keys, shown: int, start: int = 0, before: Holders | None = None
) -> Command[Holders]:
    """Read which workers hold jobs of a queue.

    Args:
        keys: the keys of the queue.
        shown: maximum number of jobs to return for each worker.
        start: number of jobs that earlier calls have read.
        before: the results of earlier calls.
    """

    def read(reply: list[Any]) -> Holders:
        found = dict(before or {})
        for name, count, until_us, *jobs in reply[3:]:
            doing = [
                RunningTask(str(keys.queue), text(id), _task(body), since_us)
                for id, since_us, body in zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True)
            ]
            held = Held(count, (until_us - reply[1]) / 1e6, doing)
            found[text(name)] = _sum([held, *filter(None, [found.get(text(name))])], shown)
        return found

    def followup(reply: list[Any]) -> Command[Holders] | None:
        return holders(keys, shown, reply[2], read(reply)) if reply[2] else None

    return command("holders", keys, (start, CHUNK, shown), read, followup=followup)


def ask(seen: Sequence[WorkerInfo], prefix: str, shown: int = MOST_DOING) -> list[Command[Holders]]:
    """Return the commands that read which jobs workers hold; `tell` takes their results.

    Args:
        seen: the result of `workers`.
        prefix: the prefix of the keys.
        shown: maximum number of jobs to return for each worker.
    """
    return [holders(keys_of(queue, prefix), shown) for queue in _queues(seen)]


def tell(seen: Sequence[WorkerInfo], replies: Sequence[Holders | BideError]) -> list[WorkerInfo]:
    """Return the workers that live or hold a job, with their running jobs.

    If a queue could not be read, for example because the caller has no permission, its running jobs
    are those of the worker's report.
    """
    by_queue = dict(zip(_queues(seen), replies, strict=True))
    return [one for worker in seen if (one := _as_it_is(worker, by_queue)) is not None]


def _as_it_is(worker: WorkerInfo, by_queue: dict[str, Holders | BideError]) -> WorkerInfo | None:
    about = worker.about
    told = [by_queue.get(queue, {}) for queue in about.queues]
    read = [found for found in told if not isinstance(found, BideError)]
    held = _sum([found[worker.name] for found in read if worker.name in found], MOST_DOING)
    if about.lease and held.for_ > 0:  # the renewal of a lease is a sign of life, too
        worker = worker._replace(ago=min(worker.ago, max(0.0, about.lease - held.for_)))
    if not worker.alive and held.for_ <= 0:
        return None
    if len(read) < len(told):
        return worker
    # A worker may hold more jobs than it has slots for: the others wait for a slot.
    busy = min(held.number, about.concurrency) if about.concurrency else held.number
    about = msgspec.structs.replace(about, busy=busy, doing=held.doing[:busy])
    return worker._replace(about=about)


def _queues(seen: Sequence[WorkerInfo]) -> list[str]:
    return sorted({queue for worker in seen for queue in worker.about.queues if is_name(queue)})


def _sum(parts: Sequence[Held], shown: int) -> Held:
    doing = sorted((job for part in parts for job in part.doing), key=lambda job: job.since_us)
    return Held(
        sum(part.number for part in parts),
        max((part.for_ for part in parts), default=0.0),
        doing[:shown],
    )


def _task(body: bytes | None) -> str:
    try:
        return decode_envelope(body).body.task if body else "?"
    except PayloadError:
        return "?"


PAGE: Final = 200
"""Approximate number of groups per call, which limits its time on the server."""

BEGIN: Final = "0"
"""The cursor for the first page, and the cursor that the last page returns."""

UNSET: Final = 0
"""The concurrency for the value that the jobs of the group ask for."""


class GroupCounts(NamedTuple):
    """The number of jobs in a group by state, and the group's settings."""

    name: str
    delayed: int
    waiting: int
    active: int
    priority: int
    """The priority of the group: the priority of the job that was enqueued last."""
    concurrency: int
    """Maximum number of its jobs that run at once."""
    is_configured: bool
    """Whether `concurrency` was configured; otherwise it comes from the latest job, or is 1."""
    paused: bool
    rate: str | None = None
    """Jobs that may start per period, such as `"10/s"`; None for no limit."""
    burst: int | None = None
    """Jobs that may start at once after a quiet time; None without a rate."""
    has_own_rate: bool = False
    """Whether `rate` was configured for this group; otherwise it is the queue's `group_rate`."""


class GroupPage(NamedTuple):
    """Some of a queue's groups."""

    cursor: str
    """The position to continue from; `BEGIN` at the end."""
    groups: list[GroupCounts]
    now_us: int
    turns: dict[str, int]
    """When each group has its next turn; groups without one are left out."""


def configure(
    keys: Keys,
    name: str,
    concurrency: int | None = None,
    paused: bool | None = None,
    rate: str = "-",
) -> Command[None]:
    """Configure a group; None leaves a setting unchanged.

    Args:
        keys: the keys of the queue.
        name: the group's name.
        concurrency: maximum jobs at once; `UNSET` for the value that its jobs ask for.
        paused: whether no job may start.
        rate: in the form of `stored_rate`; `-` leaves it unchanged.

    Raises:
        UsageError: a value is invalid.
    """
    if concurrency is not None and concurrency != UNSET:
        check_concurrency(concurrency)
    words = ["-" if value is None else str(int(value)) for value in (concurrency, paused)]
    return command(
        "group_configure", keys, (check_name(name, "group"), *words, rate), lambda reply: None
    )


def counts(keys: Keys, name: str) -> Command[GroupCounts]:
    """Read the number of jobs in a group by state, and the group's settings.

    Raises:
        UsageError: the name is invalid.
    """
    args = (check_name(name, "group"), BEGIN, 1)
    return command("groups", keys, args, lambda reply: _read(reply).groups[0])


def page(keys: Keys, cursor: str) -> Command[GroupPage]:
    """Read some of the groups that have jobs or are configured; a group may come twice."""
    return command("groups", keys, ("-", cursor, PAGE), _read)


def _read(reply: list[Any]) -> GroupPage:
    found, turns = [], {}
    for name, *numbers, rate, turn_us in pieces(reply, 3, 10):
        delayed, waiting, running, priority, limit, configured, paused = numbers
        found.append(
            GroupCounts(
                text(name),
                *(delayed, waiting, running, priority, limit, bool(configured), bool(paused)),
                *written_rate(rate.removeprefix(b"q")),
                has_own_rate=rate != b"" and not rate.startswith(b"q"),
            )
        )
        if turn_us:
            turns[text(name)] = turn_us
    return GroupPage(reply[2].decode(), found, reply[1], turns)
