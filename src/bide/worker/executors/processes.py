"""Runs claimed jobs in child processes: assigns them, receives outcomes, and handles deaths.

It decodes no body and calls no function of the application. The child of a job reports its outcome.
If the child dies, the job table shows which job it ran, and the system how it died.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from bide.errors import WorkerCrashed
from bide.logs import Log
from bide.model.ids import short_id
from bide.model.payload.body import DEFAULT_TIMEOUT, encode_error
from bide.protocol.commands.queues import RunningTask
from bide.protocol.commands.worker import Ended
from bide.worker.executors.base import Executor
from bide.worker.heartbeat import GRACE
from bide.worker.processes import linux
from bide.worker.processes.ipc import (
    Assign,
    Decided,
    Exited,
    JobDone,
    LostJobs,
    NoteAdded,
    Reply,
    decode_assign,
    encode_assign,
)
from bide.worker.processes.linux import describe_exit
from bide.worker.processes.pool import ProcessPool, Slot
from bide.worker.running_job import BEGUN, CANCELLED, Death, RunningJob, task_of

log = Log("bide.worker")

LOOK_EVERY: Final = 0.1
"""Seconds between checks of the running jobs, while there are any."""

MOST_AHEAD: Final = 50
"""Maximum number of jobs that may wait per child, however quick they are."""


_ALIVE: Final = Death("", False)


def _crash(how: str) -> Ended:
    """Return the outcome of a crashed job that no child can report."""
    return Ended("crash", data=encode_error(WorkerCrashed(how)))


class ProcessExecutor(Executor):
    """Runs the jobs of a worker in child processes."""

    def __init__(self, pool: ProcessPool, changed: Callable[[], None]) -> None:
        super().__init__(changed)
        self._pool = pool
        self._reports: deque[Assign] = deque()
        """Lost attempts of other workers, which children will pass to hooks."""
        self._newest = 0
        self._checking = False
        self._timer = self._loop.call_later(0, self._check_later)
        self._lost = LostJobs()
        pool.on_messages(self._on_replies, self._on_exit, self._on_ready)

    def __len__(self) -> int:
        """Return how many held jobs count; those of stopped children do not."""
        slots = self._pool.slots
        return len(self._held) - sum(s.stopped_at > 0 and s.row.job in self._held for s in slots)

    @property
    def capacity(self) -> int:
        """How many jobs may be held now: one per child, and more if jobs are quick."""
        able = sum(slot.takes_jobs for slot in self._pool.slots)
        return able * (1 + self._prefetch.ahead(MOST_AHEAD))

    @property
    def free_slots(self) -> int:
        """How many more jobs could start at once now; a job that waits for its time has a slot."""
        return max(0, sum(slot.takes_jobs for slot in self._pool.slots) - len(self))

    def snapshot(self) -> list[RunningTask]:
        """Return the running jobs."""
        running = [self._held.get(slot.row.job) for slot in self._pool.slots]
        for run in running:
            if run is not None:
                task_of(run)
        return [run.snapshot() for run in running if run is not None]

    def rss(self) -> int:
        """Return the memory in bytes of the processes that run jobs."""
        return sum(linux.rss(slot.pid) for slot in self._pool.slots if slot.pid)

    def held_jobs(self) -> list[RunningJob]:
        """Return the jobs that must keep their leases; safe to call in any thread.

        A job whose process is stopped makes no progress. Its lease ends, so another worker runs it.
        """
        jobs = super().held_jobs()
        stopped = set()
        for slot in self._pool.slots if self._held else ():
            pid, number = slot.pid, slot.row.job
            if pid and number in self._held and linux.is_idle(pid):
                stopped.add(number)
        return [run for run in jobs if run.ended or run.number not in stopped]

    def _cancel(self, run: RunningJob) -> None:
        self._reclaim()
        self._start_waiting()
        self._check()

    def _collect_ended(self) -> None:
        self._pool.read_messages()
        self._reclaim()

    def _stop_running(self) -> None:
        running = {slot.row.job for slot in self._pool.slots}
        lost = self._dispatched - running
        for slot in self._pool.slots:
            if slot.row.job or lost:  # a child is taking a job, and it is unknown which one
                slot.kill()

    def _released(self, run: RunningJob, is_waiting: bool) -> Ended:
        if run.death is not None and not run.death.overran:
            return _crash(run.death.how)
        return super()._released(run, is_waiting)

    async def open(self) -> None:
        """Start the children; if they cannot start, the worker stops."""
        await self._pool.open()

    async def close(self) -> None:
        """Stop the children."""
        try:
            await self._pool.close()
        finally:
            self._alarm.close()
            self._timer.cancel()

    def _start_waiting(self, *, at_once: bool = False) -> None:
        """Assign waiting jobs, and reports to hooks, to children."""
        while self._waiting:
            run = self._waiting[0]
            if run.cancel_requested and run.decided is None:
                self._waiting.popleft()
                self._end(run, CANCELLED)
                continue
            queue, death = run.queue_state.queue, run.death or _ALIVE
            assign = Assign(run.number, queue, run.claimed, run.claimed_at, *death)
            if not self._pool.send(encode_assign(assign)):
                break
            self._waiting.popleft()
        while self._reports and self._pool.send(encode_assign(self._reports[0])):
            self._reports.popleft()
        self._check_later()

    def report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        """Let a child call the hooks after an attempt that was lost by another worker."""
        number, queue = next(self._numbers), run.queue_state.queue
        assign = Assign(number, queue, run.claimed, run.claimed_at, how, False, True, has_failed)
        self._reports.append(assign)
        self._start_waiting()

    def _on_replies(self, replies: list[Reply]) -> None:
        for reply in replies:
            run = self._held.get(reply.number)  # type: ignore[union-attr]
            if isinstance(reply, JobDone):
                self._moved_at = time.monotonic()
                if run is not None:  # a report to hooks may be assigned before waiting jobs
                    self._newest = max(self._newest, reply.number)
                    run.missing = reply.missing
                    if reply.started:
                        run.note_start(reply.started)
                    self._note_run(run, reply.took)
                    self._end(run, reply.ended)
            elif isinstance(reply, NoteAdded) and run is not None:
                run.add_note(reply.kind, reply.text)
            elif isinstance(reply, Decided) and run is not None:
                run.decide(reply.ended)
        self._start_waiting()

    def _on_exit(self, slot: Slot, died: Exited, deaths: int) -> None:
        """Handle the death of a child, whose replies have all been processed."""
        number = slot.row.job
        slot.row.end()
        run = self._held.get(number)
        if run is None:
            if not number:
                self._lost.suspect(self._dispatched)
        elif run.decided is not None:
            with run.named():
                log.warning(
                    "%s (job %s): its callback was interrupted",
                    task_of(run),
                    short_id(run.claimed.id),
                )
            self._end(run)
        elif run.cancel_requested and slot.killed:
            self._end(run, CANCELLED)
        elif run.death is not None:  # the child that was to decide its outcome has died too
            self._end(run, _crash(describe_exit(died) if run.death.overran else run.death.how))
        elif run.timed_out or deaths == 1:
            # Another child decides the outcome, because it has the policy and the callback.
            run.death = death = Death(describe_exit(died), run.timed_out)
            if not death.overran:
                with run.named():
                    log.error(
                        "%s (job %s) crashed. %s", task_of(run), short_id(run.claimed.id), death.how
                    )
            run.deadline = time.monotonic() + DEFAULT_TIMEOUT
            self._waiting.appendleft(run)
        else:
            self._leave_to_lease(run, deaths)
        self._start_waiting()

    def _on_ready(self) -> None:
        self._check_later()
        self._changed()

    def _check_later(self) -> None:
        """Schedule the next check while jobs are held, or a child starts, closes or is stopped."""
        if self._checking:
            return
        if self._held or any(slot.is_unsettled for slot in self._pool.slots):
            self._checking = True
            self._timer = self._loop.call_later(LOOK_EVERY, self._check_and_dispatch)

    def _check_and_dispatch(self) -> None:
        self._checking = False
        self._check()
        self._start_waiting()

    def _check(self) -> None:
        """Enforce time-outs and cancellations, and release jobs that wait too long."""
        now = time.monotonic()
        longest, could, can = 0.0, self.capacity - len(self), False
        begun = set()
        for slot in self._pool.slots:
            slot.check()
            can = can or slot.is_free
            number = slot.row.job
            run = self._held.get(number)
            if run is None:
                if number and 0 < slot.row.deadline < now - GRACE:  # hooks take too long
                    slot.kill()
                continue
            begun.add(number)
            run.note_start(slot.row.begun)
            if slot.stopped_at:
                if now - slot.stopped_at > 2 * run.queue_state.lease:
                    slot.kill()  # its lease has ended: the outcome would be refused
                continue
            longest = max(longest, now - slot.row.begun)
            self._enforce_deadline(slot, number, run, now)
        self._prefetch.note_running(longest)
        self._newest = max([self._newest, *begun])
        if self.capacity - len(self) > could:
            self._changed()
        if len(self._held) - self.ahead > len(begun) and not can and self._is_stalled:
            self._reclaim()
            self._release_waiting()
        if self._pool.has_lost:
            self._pool.has_lost = False
            self._lost.suspect(self._dispatched)
        if self._lost or any(slot.pid and not slot.takes_jobs for slot in self._pool.slots):
            self._release_lost(begun, now)

    def _enforce_deadline(self, slot: Slot, number: int, run: RunningJob, now: float) -> None:
        """Kill the child of a job that exceeds its time-out and a grace, or request a cancellation.

        A callback, or the decision about a dead child's job, has no time-out but the grace alone.
        """
        run.deadline = slot.row.deadline or run.deadline
        if now > run.deadline + GRACE:
            run.timed_out = run.timed_out or run.decided is None
            slot.kill()
        elif run.cancel_requested and run.decided is None:
            slot.request_cancel(number, now)

    def _reclaim(self) -> None:
        """Take back the jobs that no child has received."""
        assigns = [decode_assign(message) for message in self._pool.reclaim()]
        self._reports.extend(assign for assign in assigns if assign.lost)
        runs = [run for assign in assigns if (run := self._held.get(assign.number)) is not None]
        self._waiting.extendleft(reversed(runs))

    @property
    def _dispatched(self) -> set[int]:
        """The numbers of the held jobs that were sent to children."""
        held_back = (*self._waiting, *(run for _, _, run in self._ahead))
        return self._held.keys() - {run.number for run in held_back}

    def _release_lost(self, begun: set[int], now: float) -> None:
        """Release jobs that were lost with a child: it died or stopped before it wrote its row.

        Such a job is not waiting, not in a row and not answered, for longer than a child needs from
        receiving a job to writing its row.
        """
        waiting: set[int] = set()
        if not self._pool.is_line_empty:
            # Jobs are received in order: those before a started job are not in the socket.
            waiting = {n for n, run in self._held.items() if n > self._newest or run.death}
        for number in self._lost.find(self._dispatched - begun, waiting, now):
            run = self._held[number]
            with run.named():
                log.warning(
                    "job %s was lost with a child process, and is released",
                    short_id(run.claimed.id),
                )
            self._end(run, BEGUN)

    def _leave_to_lease(self, run: RunningJob, deaths: int) -> None:
        """Leave a job until its lease ends: several jobs died, and the cause is unknown."""
        del self._held[run.number]
        run.ended = True
        with run.named():
            log.error(
                "%s (job %s) died with the %d jobs that ran here; it is run again when its lease "
                "ends",
                task_of(run),
                short_id(run.claimed.id),
                deaths,
            )
        self._changed()
