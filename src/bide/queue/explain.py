"""Explain why a job does not run, from the job, its queue and the workers.

`explain` is a pure function of what was read. Each reason is one function, in the order of the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

from bide.model.durations import describe, from_us
from bide.model.ids import short_id
from bide.model.job import FINISHED, Snapshot, State
from bide.protocol.commands.dependencies import GATE
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import WorkerInfo

Kind = Literal[
    "blocked",
    "not_due",
    "paused",
    "held",
    "limited",
    "concurrency",
    "no_worker",
    "not_served",
    "busy",
    "next",
    "group",
    "group_paused",
    "group_limited",
]


class Reason(NamedTuple):
    """A reason why a job does not run."""

    kind: Kind
    text: str
    """A sentence without the full stop, for people."""
    until: datetime | None = None
    """When the reason ends, if that is known."""


class Read(NamedTuple):
    """The input of `explain`."""

    queue: str
    job: Snapshot
    counts: QueueStats
    workers: Sequence[WorkerInfo]
    """The workers of all queues."""

    @property
    def serving(self) -> list[WorkerInfo]:
        """The workers that serve the job's queue."""
        return [worker for worker in self.workers if self.queue in worker.about.queues]


def explain(read: Read) -> list[Reason]:
    """Return the reasons why a job does not run; none if it runs or has ended.

    The reasons that concern the job itself come first. If there are no others, the job is next in
    line, or all workers are busy.
    """
    if read.job.state == State.ACTIVE or read.job.state in FINISHED:
        return []
    found = [reason for look in _LOOKS for reason in look(read)]
    return found or [*_in_line(read)]


def _blocked(read: Read) -> Iterator[Reason]:
    if read.job.state != State.BLOCKED:
        return
    named = [short_id(id) for id in read.job.awaited if id != GATE]
    if len(named) < len(read.job.awaited):
        named.append("others that its producer has yet to name")
    more = read.job.awaits - len(read.job.awaited)
    text = ", ".join(named) + (f" and {more:,} more" if more else "")
    yield Reason("blocked", f"it waits for {text}")


def _due(read: Read) -> Iterator[Reason]:
    if read.job.state == State.DELAYED and not read.job.is_given_back:
        yield _until("not_due", "it is not due", read.job.due_us, read)


def _paused(read: Read) -> Iterator[Reason]:
    if read.counts.paused:
        text = f"the queue is paused; `bide queues resume {read.queue}` ends that"
        yield Reason("paused", text)


def _limits(read: Read) -> Iterator[Reason]:
    limits, active = read.counts.limits, read.counts.active
    if limits.held_until:
        text = f"a job holds the queue until {limits.held_until:%F %T} UTC"
        yield Reason("held", text, limits.held_until)
    if read.job.state in (State.DELAYED, State.BLOCKED):  # these may be over by then
        return
    if limits.limited_until:
        text = f"the rate of {limits.rate} is used up"
        yield Reason("limited", text, limits.limited_until)
    if limits.concurrency and active >= limits.concurrency:
        yield Reason("concurrency", f"{active} jobs run, and concurrency is {limits.concurrency}")


def _group(read: Read) -> Iterator[Reason]:
    turn, name = read.job.turn, read.job.constraints.group
    if turn is None or name is None:
        return
    before = f"{turn.before:,} of them are before it"
    if turn.paused:
        import shlex  # only here

        resume = shlex.join(["bide", "queues", "resume", read.queue, "--group", name])
        yield Reason("group_paused", f"its group {name} is paused; `{resume}` ends that")
    elif read.job.state == State.DELAYED:
        return
    elif turn.running >= turn.concurrency:
        text = f"{turn.running} of its group {name} run, and no more may"
        yield Reason("group", f"{text}; {before}" if turn.before else text)
    elif turn.free_us > read.job.now_us:
        yield _until(
            "group_limited", f"the rate of its group {name} is used up", turn.free_us, read
        )
    elif turn.before:
        yield Reason("group", f"jobs of its group {name} take turns; {before}")


def _workers(read: Read) -> Iterator[Reason]:
    serving = read.serving
    if not serving:
        yield Reason("no_worker", f"no worker serves the queue {read.queue}, or none is alive")
    elif all(worker.about.paused for worker in serving):
        name = short_id(serving[0].name)
        text = f"all workers of the queue are paused; `bide workers resume {name}` ends that"
        yield Reason("no_worker", text)
    elif all(read.job.task in worker.about.unknown_tasks for worker in serving):
        yield Reason("not_served", f"no worker of the queue serves the task {read.job.task}")
    elif read.job.is_given_back:
        error = read.job.notes.error
        if error is not None and error.type == "bide.PayloadError":
            text = f"it was released by a worker whose {read.job.task} does not take its arguments"
            yield Reason("not_served", f"{text}, and waits for one that does")
            return
        text = f"it was released by a worker without the task {read.job.task}"
        yield Reason("not_served", f"{text}, and waits for one that has it")


def _in_line(read: Read) -> Iterator[Reason]:
    about = [worker.about for worker in read.serving]
    slots, busy = sum(one.concurrency for one in about), sum(one.busy for one in about)
    if busy >= slots:
        yield Reason("busy", f"all {slots} slots of the queue's workers are taken")
    else:
        yield Reason(
            "next", f"it is in line with {read.counts.waiting} that are due, and is taken soon"
        )


_LOOKS: Final[tuple[Callable[[Read], Iterator[Reason]], ...]] = (
    *(_blocked, _due, _paused, _limits, _group, _workers),
)


def _until(kind: Kind, text: str, until_us: int, read: Read) -> Reason:
    ahead = describe((until_us - read.job.now_us) / 1e6)
    return Reason(kind, f"{text} for another {ahead}", from_us(until_us))
