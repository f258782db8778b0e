"""Eager mode: no server; a job runs where it is enqueued, and its enqueue returns when it has.

All that a worker does with a job is done: arguments are encoded, decoded and become what the
annotations say, resources are handed in, middlewares and callbacks run, the result is encoded. What
needs a later or an elsewhere is not: delays are ignored, and so are retry policies.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, Self, TypeVar, cast

from bide import aio, config, sync
from bide.job import Claimed, RunRecord, Snapshot
from bide.keys import Keys
from bide.ops.edges import is_remote, split_reference
from bide.ops.produce import Prepared, Receipt, unknown_parent
from bide.payload.gathered import framed
from bide.queue.core import leave_overridden
from bide.queue.place import Taken
from bide.states import FINISHED, State
from bide.task import Served
from bide.terms import Terms
from bide.testing import answers
from bide.testing.perform import WORKER, Everything, Performed, perform
from bide.testing.seen import JobSeen
from bide.testing.stage import AsyncStage, Stage, is_in_loop, outside_of_loops
from bide.worker.run import Run
from bide.worker.station import Station

T = TypeVar("T")

_STATES: Final = {
    "complete": State.COMPLETED,
    "fail": State.FAILED,
    "cancel": State.CANCELLED,
    "retry": State.DELAYED,
    "snooze": State.DELAYED,
    "hold": State.DELAYED,
}
_OUTCOMES: Final = {State.COMPLETED: "C", State.FAILED: "F", State.CANCELLED: "X"}
_LEASE_US: Final = 1_000_000


class Eager:
    """While it is open, every enqueue of the process runs its job before it returns.

    Where no event loop runs, jobs run in the calling thread. An awaited enqueue awaits coroutines
    where it is, and has a thread call plain functions, as a worker does. A blocking enqueue of a
    coroutine's own runs its job in a thread meanwhile.
    """

    def __init__(self, raise_failures: bool) -> None:
        self.jobs: Final[list[JobSeen]] = []
        """The jobs that ran, in the order in which they ended."""
        self._raise_failures = raise_failures
        self._served: Final[Served] = Everything()
        self._shelves: defaultdict[str, answers.Shelf] = defaultdict(
            lambda: answers.Shelf(_now_us, self._ask)
        )
        self._running: dict[str, Run] = {}
        self._stage = Stage()
        self._stages: dict[asyncio.AbstractEventLoop, AsyncStage] = {}
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        if is_in_loop():
            self._stages[asyncio.get_running_loop()] = AsyncStage(
                "A resource stays open until eager mode ends, and in an event loop only "
                "`async with bide.testing.eager():` can wait until it is closed; write that."
            )
        return self._open()

    def __exit__(self, *exc: object) -> None:
        self._close()
        for loop, stage in self._stages.items():
            if stage.is_idle or loop.is_closed():
                continue
            if loop.is_running():  # in another thread, or nothing would be open
                asyncio.run_coroutine_threadsafe(stage.close(), loop).result()
            else:
                loop.run_until_complete(stage.close())

    async def __aenter__(self) -> Self:
        return self._open()

    async def __aexit__(self, *exc: object) -> None:
        stage = self._stages.pop(asyncio.get_running_loop(), None)
        if stage is not None:
            await stage.close()
        self.__exit__(*exc)

    def _open(self) -> Self:
        self._exit.enter_context(config.override(stand_in=self))
        return self

    def _close(self) -> None:
        self._exit.close()
        leave_overridden()
        outside_of_loops(self._stage.close)

    # -- what queues ask of their stand-in (`bide.queue.place`)

    def blocking(self, queue: str) -> sync.Client:
        """What answers a blocking queue."""
        return cast("sync.Client", answers.Blocking(self._shelves[queue]))

    def awaited(self, queue: str) -> aio.Client:
        """What answers an awaited queue."""
        return cast("aio.Client", answers.Awaited(self._shelves[queue]))

    def enqueue(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Run jobs, one after another; raises what the first that fails raises."""
        if is_in_loop():
            return outside_of_loops(lambda: self._enqueue_apart(keys, jobs))
        return self._enqueue(keys, jobs, self._stage)

    async def enqueue_async(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Run jobs, one after another; raises what the first that fails raises."""
        loop = asyncio.get_running_loop()
        stage = self._stages.get(loop)
        if stage is None:
            stage = self._stages[loop] = AsyncStage()
        taken = []
        for job in jobs:
            receipt, run = self._begin(keys, job)
            if run is not None:
                steps = perform(run, self._served, stage, retries=False)
                self._end(run, await stage.play(steps))
            taken.append((receipt, self._shelves[keys.queue or ""].jobs[job.id]))
        return taken

    def _enqueue(self, keys: Keys, jobs: Sequence[Prepared], stage: Stage) -> Taken:
        taken = []
        for job in jobs:
            receipt, run = self._begin(keys, job)
            if run is not None:
                steps = perform(run, self._served, stage, retries=False)
                self._end(run, stage.play(steps))
            taken.append((receipt, self._shelves[keys.queue or ""].jobs[job.id]))
        return taken

    def _enqueue_apart(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """On a stage of its own, because the one there is may be what waits for these jobs."""
        stage = Stage()
        try:
            return self._enqueue(keys, jobs, stage)
        finally:
            stage.close()

    # -- one job

    def _begin(self, keys: Keys, job: Prepared) -> tuple[Receipt, Run | None]:
        """Note a job that is to run; no run if its id is known."""
        shelf = self._shelves[keys.queue or ""]
        if job.id in shelf.jobs:
            return Receipt(job.id, 0, "exists"), None
        now_us = _now_us()
        state, cause = self._stands(keys, job)
        if state is not State.ACTIVE:
            terms = Terms.read(job.terms.encode())._replace(when=job.when, cause=cause)
            shelf.jobs[job.id] = Snapshot(
                id=job.id,
                state=state,
                now_us=now_us,
                since_us=now_us,
                priority=job.priority,
                raw_body=job.body,
                run=None,
                raw_result=None,
                raw_notes=None,
                asked=False,
                terms=terms,
            )
            return Receipt(job.id, 0, "new"), None
        due_us = _when(job.when, now_us)
        terms = Terms.read(job.terms.encode())
        body = framed(job.body) if terms.gathers else job.body
        claimed = Claimed(job.id, body, now_us, 1, 0, due_us, due_us)
        station = Station(keys, WORKER, _LEASE_US, config.signing_keys())
        run = Run(station, claimed, time.monotonic(), lambda: None)
        self._running[job.id] = run
        shelf.jobs[job.id] = Snapshot(
            id=job.id,
            state=State.ACTIVE,
            now_us=now_us,
            since_us=now_us,
            priority=job.priority,
            raw_body=body,
            run=RunRecord(
                token=now_us,
                settled="0",
                priority=job.priority,
                attempt=1,
                crashes=0,
                strikes=0,
                alone=False,
                started_us=now_us,
                worker=WORKER,
                due_us=due_us,
                first_us=due_us,
                ended_us=0,
            ),
            raw_result=None,
            raw_notes=None,
            asked=False,
            terms=Terms.read(job.terms.encode()),
        )
        return Receipt(job.id, due_us, "new"), run

    def _stands(self, keys: Keys, job: Prepared) -> tuple[State, str | None]:
        """Whether a job runs now, waits for others, or is cancelled, and then because of which.

        Raises:
            JobNotFound: it waits for a job that nobody has enqueued.
        """
        terms = Terms.read(job.terms.encode())
        waits = False
        for parent in job.parents:
            queue, id = split_reference(parent) if is_remote(parent) else (keys.queue, parent)
            seen = self._shelves[queue or ""].jobs.get(id)
            if seen is None:
                raise unknown_parent(parent)
            effect = terms.effect(_OUTCOMES[seen.state]) if seen.state in FINISHED else None
            if effect == "run":
                return State.ACTIVE, None
            if effect == "cancel":
                return State.CANCELLED, parent
            waits = waits or effect is None
        if waits:
            return State.BLOCKED, None
        if job.parents and "a" in terms.dependence:  # it was to run only if one fails
            return State.CANCELLED, None
        return State.ACTIVE, None

    def _end(self, run: Run, performed: Performed) -> None:
        """Note how a run ended.

        Raises:
            BaseException: what the job raised, if it has failed and failures are to be raised.
        """
        id, shelf = run.claimed.id, self._shelves[run.station.queue]
        self._running.pop(id, None)
        outcome, when, data = performed.ended
        now_us = _now_us()
        state = _STATES[outcome]
        job = shelf.jobs[id]._replace(
            state=state,
            now_us=now_us,
            since_us=now_us if state in FINISHED else _when(when, now_us),
            raw_result=data if outcome == "complete" else None,
            raw_notes=_notes(run, now_us, data if outcome in ("fail", "retry") else b""),
        )
        shelf.jobs[id] = job
        seen = JobSeen(run.station.seal, job, performed.error)
        self.jobs.append(seen)
        if outcome == "fail" and self._raise_failures:
            raise performed.error if isinstance(performed.error, Exception) else seen.failure()

    def _ask(self, id: str) -> None:
        if id in self._running:
            self._running[id].asked = True


def eager(*, raise_failures: bool = True) -> Eager:
    """Run every job where it is enqueued: `with bide.testing.eager():`, or `async with`.

    An error of the job reaches the caller of its enqueue. A job that raises `RetryLater` or
    `Snooze` is left delayed, and nobody runs it again.

    Args:
        raise_failures: whether it does; else the job has failed, and its `error` says why.
    """
    return Eager(raise_failures)


def _now_us() -> int:
    return time.time_ns() // 1000


def _when(text: str, now_us: int) -> int:
    """As `lua/include/when.lua` reads it."""
    us = int(text[1:])
    return now_us + us if text[0] == "+" else max(us, now_us)


def _notes(run: Run, now_us: int, error: bytes) -> bytes:
    """What the job said of itself and how it ended, as `bide.notes` reads it."""
    lines = [f"{said.kind} {now_us} ".encode() + said.text for said in run.station.said]
    if error:
        lines.append(f"E 1 {run.claimed.token} {now_us} {WORKER} ".encode() + error)
    return b"\n".join(lines)
