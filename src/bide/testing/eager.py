"""Eager mode: without a server, each job runs inside its enqueue.

A run has all steps of a worker: arguments are encoded, decoded and converted to the annotated
types, resources are injected, middlewares and callbacks run, and the result is encoded. Delays,
expiry and retry policies are ignored.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Final, Self

from bide.client import aio, blocking, config
from bide.errors import JobWaitTimeout, UsageError
from bide.model.ids import short_id
from bide.model.job import FINISHED, Claimed, RunRecord, Snapshot, State
from bide.model.limits import Retention
from bide.model.options import Constraints
from bide.model.payload.serializers import frame
from bide.protocol.commands import Command
from bide.protocol.commands.enqueue import (
    Prepared,
    Receipt,
    is_remote,
    split_reference,
    unknown_parent,
)
from bide.protocol.commands.jobs import PurgeReply, QueueStats
from bide.protocol.keys import Keys
from bide.queue.binding import Taken, leave_overridden
from bide.tasks.task import TaskRegistry
from bide.testing.expect import JobSeen
from bide.testing.runner import (
    WORKER,
    AsyncRunner,
    Everything,
    JobRun,
    Runner,
    is_in_loop,
    outside_of_loops,
    run_job,
)
from bide.worker.queue_state import QueueState
from bide.worker.running_job import RunningJob


class FakeQueue:
    """The jobs of one queue, with the replies that a server would give."""

    def __init__(self, request_cancel: Callable[[str], None]) -> None:
        """Set up; `request_cancel` asks a running job to stop."""
        self.jobs: dict[str, Snapshot] = {}
        self._request_cancel = request_cancel
        self._answers: Final[dict[str, Callable[..., Any]]] = {
            "cancel": self._cancel,
            "configure": lambda *_: None,
            "counts": self._counts,
            "delete": self._delete,
            "purge": lambda *_: PurgeReply(0, False),
            "limit": lambda *_: None,
            "fetch": lambda *ids: [self.jobs.get(id) for id in ids],
            "list": self._list,
            "queue_register": lambda *_: None,
            "upcoming": self._upcoming,
            "await_end": self._await_end,
            "workers": lambda *_: [],
        }

    def answer(self, command: Command[Any]) -> Any:
        """Return the result of a command, or an error if only a server could run it."""
        answer = self._answers.get(command.script)
        if answer is None:
            return UsageError(
                "Eager mode has no server, and only that could "
                f"{command.script.partition('_')[0]}; test it with `with bide.testing.start():`."
            )
        return answer(*command.args)

    def _in(self, state: str) -> list[Snapshot]:
        return [job for job in list(self.jobs.values()) if job.state == state]

    def _list(self, state: str, start: int, count: int) -> list[str]:
        ids = [job.id for job in self._in(state)]
        return (ids[::-1] if state in FINISHED else ids)[start : start + count]

    def _upcoming(self, within_us: int, count: int) -> list[tuple[str, int]]:
        latest = _now_us() + within_us if within_us else None
        due = sorted((job.since_us, job.id) for job in self._in(State.DELAYED))
        return [(id, at) for at, id in due if latest is None or at <= latest][:count]

    def _counts(self) -> QueueStats:
        many = {state: len(self._in(state)) for state in State}
        return QueueStats(
            now_us=_now_us(),
            delayed=many[State.DELAYED],
            waiting=many[State.WAITING],
            active=many[State.ACTIVE],
            completed=many[State.COMPLETED],
            failed=many[State.FAILED],
            cancelled=many[State.CANCELLED],
            blocked=many[State.BLOCKED],
            next_due_us=min((job.since_us for job in self._in(State.DELAYED)), default=0),
            idle_workers=0,
            paused=False,
            totals={state.value: many[state] for state in FINISHED}
            | {"retried": 0, "reclaimed": 0},
            gap_us=0,
            retention=Retention(),
            is_data=False,
        )

    def _await_end(self, id: str, _for_us: int) -> str | JobWaitTimeout:
        """Return how a job has ended; raise if it has not, because no other process will run it."""
        job = self.jobs.get(id)
        if job is None:
            return "gone"
        if job.state in FINISHED:
            return job.state.value
        return JobWaitTimeout(
            f"Job {short_id(id)} is {job.state}, and in eager mode nothing runs later or "
            "elsewhere; test it with `with bide.testing.start():`."
        )

    def _cancel(self, running: int, *ids: str) -> list[str]:
        words = []
        for id in ids:
            job = self.jobs.get(id)
            if job is not None and job.state in (State.DELAYED, State.BLOCKED):
                now_us = _now_us()
                self.jobs[id] = job._replace(state=State.CANCELLED, since_us=now_us)
                words.append("ok")
            elif job is not None and job.state == State.ACTIVE and running:
                self._request_cancel(id)
                words.append("asked")
            else:
                words.append(job.state.value if job else "gone")
        return words

    def _delete(self, states: str, *ids: str) -> list[str]:
        words = []
        for id in ids:
            job = self.jobs.get(id)
            if job is None or job.state == State.ACTIVE:
                words.append("active" if job else "gone")
            elif (job.state if job.state in FINISHED else State.WAITING) not in states.split():
                words.append(job.state.value)
            else:
                del self.jobs[id]
                words.append("ok")
        return words


_NOWHERE: Final = "unix:///bide.testing.eager"
"""A URL without a server, for clients that never connect."""


class EagerClient(blocking.Client):
    """A client for the jobs of one queue, without a server."""

    def __init__(self, queue: FakeQueue) -> None:
        super().__init__(_NOWHERE)
        self._queue = queue

    def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Return the results, or an error in place of each."""
        return [self._queue.answer(command) for command in commands]

    def waiting_for(self, channel: str, text: str) -> Any:
        """Return an empty context: `await_end` refuses each wait that would need more."""
        return nullcontext()


class EagerAsyncClient(aio.AsyncClient):
    """As `EagerClient`, for awaited queues."""

    def __init__(self, queue: FakeQueue) -> None:
        super().__init__(_NOWHERE)
        self._queue = queue

    async def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """As `EagerClient.attempt_many`."""
        return [self._queue.answer(command) for command in commands]

    def waiting_for(self, channel: str, text: str) -> Any:
        """As `EagerClient.waiting_for`."""
        return nullcontext()


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
    """Eager mode: while it is open, every enqueue of the process runs its job before it returns.

    Without a running event loop, jobs run in the calling thread. An awaited enqueue awaits
    coroutines in its own event loop, and calls plain functions in a thread, as a worker does. If a
    coroutine calls a blocking enqueue, its job runs in a thread meanwhile.
    """

    def __init__(self, raise_failures: bool) -> None:
        self.jobs: Final[list[JobSeen]] = []
        """The jobs that ran, in the order in which they ended."""
        self._raise_failures = raise_failures
        self._served: Final[TaskRegistry] = Everything()
        self._queues: dict[str, FakeQueue] = {}
        self._running: dict[str, RunningJob] = {}
        self._runner = Runner()
        self._runner_lock = threading.RLock()
        self._runners: dict[asyncio.AbstractEventLoop, AsyncRunner] = {}
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        if is_in_loop():
            self._runners[asyncio.get_running_loop()] = AsyncRunner(
                "A resource stays open until eager mode ends, and in an event loop only "
                "`async with bide.testing.eager():` can wait until it is closed; write that."
            )
        return self._open()

    def __exit__(self, *exc: object) -> None:
        self._close()
        for loop, runner in self._runners.items():
            if runner.is_idle or loop.is_closed():
                continue
            if loop.is_running():  # in another thread, otherwise no resource would be open
                asyncio.run_coroutine_threadsafe(runner.close(), loop).result()
            else:
                loop.run_until_complete(runner.close())

    async def __aenter__(self) -> Self:
        return self._open()

    async def __aexit__(self, *exc: object) -> None:
        runner = self._runners.pop(asyncio.get_running_loop(), None)
        if runner is not None:
            await runner.close()
        self.__exit__(*exc)

    def _open(self) -> Self:
        self._exit.enter_context(config.override(fake_server=self))
        return self

    def _close(self) -> None:
        self._exit.close()
        leave_overridden()
        outside_of_loops(self._runner.close)

    # -- the fake server of queues (`bide.queue.binding`)

    def blocking(self, queue: str) -> blocking.Client:
        """Return the client of a blocking queue."""
        return EagerClient(self._queue(queue))

    def awaited(self, queue: str) -> aio.AsyncClient:
        """Return the client of an awaited queue."""
        return EagerAsyncClient(self._queue(queue))

    def _queue(self, name: str | None) -> FakeQueue:
        return self._queues.setdefault(name or "", FakeQueue(self._request_cancel))

    def enqueue(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Run jobs, one after another; raises what the first that fails raises."""
        if is_in_loop():
            return outside_of_loops(lambda: self._enqueue_apart(keys, jobs))
        if not self._runner_lock.acquire(blocking=False):
            return self._enqueue_apart(keys, jobs)
        try:
            return self._play(keys, jobs, self._runner)
        finally:
            self._runner_lock.release()

    async def enqueue_async(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Run jobs, one after another; raises what the first that fails raises."""
        loop = asyncio.get_running_loop()
        runner = self._runners.get(loop)
        if runner is None:
            runner = self._runners[loop] = AsyncRunner()
        return await self._run_all(keys, jobs, runner)

    def _enqueue_apart(self, keys: Keys, jobs: Sequence[Prepared]) -> Taken:
        """Run jobs on another runner, because a job of the present one may wait for these jobs."""
        runner = Runner()
        try:
            return self._play(keys, jobs, runner)
        finally:
            runner.close()
            del self._runners[runner.inner.loop]

    def _play(self, keys: Keys, jobs: Sequence[Prepared], runner: Runner) -> Taken:
        """Run jobs; what their coroutines enqueue uses the same open resources."""
        self._runners[runner.inner.loop] = runner.inner
        return runner.play(self._run_all(keys, jobs, runner))

    async def _run_all(
        self, keys: Keys, jobs: Sequence[Prepared], runner: Runner | AsyncRunner
    ) -> Taken:
        """Run jobs; raises the error of the first that fails."""
        queue = self._queue(keys.queue)
        taken: Taken = []
        for job in jobs:
            receipt, run = self._begin(keys, job)
            if run is not None:
                try:
                    job_run = await run_job(run, self._served, runner, retries=False)
                except BaseException:  # a resource cannot be opened, or the test was interrupted
                    del self._running[job.id], queue.jobs[job.id]
                    raise
                failure = self._end(run, job_run)
                if failure is not None:
                    raise failure
            taken.append((receipt, queue.jobs[job.id]))
        return taken

    # -- one job

    def _begin(self, keys: Keys, job: Prepared) -> tuple[Receipt, RunningJob | None]:
        """Record a job and return its run; None if its id is known, or it does not run now."""
        queue = self._queue(keys.queue)
        if job.id in queue.jobs:
            return Receipt(job.id, 0, "duplicate"), None
        now_us = _now_us()
        constraints = Constraints.read(job.constraints.encode())
        state, cause = self._stands(keys, job, constraints)
        body, due_us, record = job.body, 0, None
        if state is State.ACTIVE:
            due_us = _when(job.when, now_us)
            body = frame(job.body) if constraints.batches else job.body
            record = RunRecord(
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
            )
        else:
            constraints = constraints._replace(when=job.when, cause=cause)
        queue.jobs[job.id] = Snapshot(
            id=job.id,
            state=state,
            now_us=now_us,
            since_us=now_us,
            priority=job.priority,
            raw_body=body,
            run=record,
            raw_result=None,
            raw_notes=None,
            asked=False,
            constraints=constraints,
        )
        if record is None:
            return Receipt(job.id, 0, "created"), None
        claimed = Claimed(job.id, body, now_us, 1, 0, due_us, due_us)
        queue_state = QueueState(keys, WORKER, _LEASE_US, config.signing_keys())
        run = self._running[job.id] = RunningJob(
            queue_state, claimed, time.monotonic(), lambda: None
        )
        return Receipt(job.id, due_us, "created"), run

    def _stands(
        self, keys: Keys, job: Prepared, constraints: Constraints
    ) -> tuple[State, str | None]:
        """Return whether a job runs now, waits or is cancelled, and the parent that cancels it.

        Raises:
            JobNotFound: the job depends on a job that was never enqueued.
        """
        waits = False
        for parent in job.parents:
            queue, id = split_reference(parent) if is_remote(parent) else (keys.queue, parent)
            seen = self._queue(queue).jobs.get(id)
            if seen is None:
                raise unknown_parent(parent)
            effect = constraints.effect(_OUTCOMES[seen.state]) if seen.state in FINISHED else None
            if effect == "run":
                return State.ACTIVE, None
            if effect == "cancel":
                return State.CANCELLED, parent
            waits = waits or effect is None
        if waits:
            return State.BLOCKED, None
        if job.parents and constraints.run_if == "failed":
            return State.CANCELLED, None
        return State.ACTIVE, None

    def _end(self, run: RunningJob, job_run: JobRun) -> BaseException | None:
        """Record the end of a run; return the error that the enqueue raises, if any."""
        id, queue = run.claimed.id, self._queue(run.queue_state.queue)
        self._running.pop(id, None)
        ended = job_run.ended
        now_us = _now_us()
        state = _STATES[ended.outcome]
        error = ended.data if ended.outcome in ("fail", "retry") else b""
        job = queue.jobs[id]._replace(
            state=state,
            now_us=now_us,
            since_us=now_us if state in FINISHED else _when(ended.due, now_us),
            raw_result=ended.data if ended.outcome == "complete" else None,
            raw_notes=_notes(run, now_us, error),
        )
        queue.jobs[id] = job
        seen = JobSeen(run.queue_state.seal, job, job_run.error)
        self.jobs.append(seen)
        if ended.outcome != "fail" or not self._raise_failures:
            return None
        return job_run.error if isinstance(job_run.error, Exception) else seen.failure()

    def _request_cancel(self, id: str) -> None:
        if id in self._running:
            self._running[id].cancel_requested = True


def eager(*, raise_failures: bool = True) -> Eager:
    """Run each job inside its enqueue: `with bide.testing.eager():`, or `async with`.

    An error of the job reaches the caller of its enqueue. A job that raises `RetryLater`,
    `PauseQueue` or `Snooze` stays delayed, and does not run again.

    Args:
        raise_failures: whether errors reach the caller. If False, the job fails, and `error` has
            its error.
    """
    return Eager(raise_failures)


def _now_us() -> int:
    return time.time_ns() // 1000


def _when(text: str, now_us: int) -> int:
    """Parse a due time as `lua/include/due_time.lua` does."""
    us = int(text[1:])
    return now_us + us if text[0] == "+" else max(us, now_us)


def _notes(run: RunningJob, now_us: int, error: bytes) -> bytes:
    """Return the notes of the job and its end, in the form that `bide.model.history` reads."""
    lines = [f"{said.kind} {now_us} ".encode() + said.text for said in run.queue_state.notes]
    if error:
        lines.append(f"E 1 {run.claimed.token} {now_us} {WORKER} ".encode() + error)
    return b"\n".join(lines)
