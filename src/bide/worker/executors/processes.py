"""Runs claimed jobs in child processes: assigns them, receives outcomes, and handles deaths.

It has the interface of `bide.worker.executors.local`, but decodes no body and calls no function of
the application. The child of a job reports its outcome. If the child dies, the job table shows
which job it ran, and the system how it died.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

from bide.errors import WorkerCrashed
from bide.logs import Log
from bide.model.ids import short_id
from bide.model.job import Claimed
from bide.model.payload.body import DEFAULT_TIMEOUT, encode_error
from bide.protocol.commands.queues import RunningTask
from bide.protocol.commands.worker import Settle
from bide.worker.executors.local import NOTES_DELAY
from bide.worker.heartbeat import GRACE
from bide.worker.processes import linux
from bide.worker.processes.ipc import (
    Assign,
    Decided,
    Done,
    Exited,
    NoteAdded,
    Reply,
    decode_assign,
    encode_assign,
)
from bide.worker.processes.job_table import LostJobs
from bide.worker.processes.linux import describe_exit
from bide.worker.processes.pool import ProcessPool, Slot
from bide.worker.queue_state import STALE, Prefetch, QueueState
from bide.worker.run.running_job import (
    BEGUN,
    UNBEGUN,
    UNCOUNTED,
    Ended,
    RunningJob,
    log_end,
    task_of,
)
from bide.worker.unknown_tasks import UnknownTasks

log = Log("bide.worker")

LOOK_EVERY: Final = 0.1
"""Seconds between checks of the running jobs, while there are any."""

MOST_AHEAD: Final = 50
"""Maximum number of jobs that may wait per child, however quick they are."""


class _Death(NamedTuple):
    """How the child of a job died."""

    how: str
    overran: bool
    """The worker killed it, because the job ran too long."""


_ALIVE: Final = _Death("", False)


def _crash(how: str) -> Ended:
    """Return the outcome of a crashed job that no child can report."""
    return "crash", "", encode_error(WorkerCrashed(how))


class ProcessExecutor:
    """Runs the jobs of a worker in child processes."""

    def __init__(self, pool: ProcessPool, changed: Callable[[], None]) -> None:
        """Set up, in the event loop that will read the replies of the children.

        Args:
            pool: the children.
            changed: called in the loop's thread when there is something to send, or a free slot.
        """
        self._pool = pool
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._held: dict[int, RunningJob] = {}
        self._unsent: deque[int] = deque()
        self._reports: deque[Assign] = deque()
        """Lost attempts of other workers, which children will pass to hooks."""
        self._unconfirmed: dict[Settle, RunningJob] = {}
        self._prefetch = Prefetch()
        self._last_reply_at = 0.0
        self._newest = 0
        self._checking = False
        self._timer = self._loop.call_later(0, self._check_later)
        self._exits: dict[int, _Death] = {}
        self._lost = LostJobs()
        self.executed = 0
        self.unknown_tasks: Final = UnknownTasks()
        self.has_callbacks = False
        self.is_spent = False
        pool.on_messages(self._on_replies, self._on_exit, self._on_ready)

    def __len__(self) -> int:
        """Return how many held jobs count; those of stopped children do not."""
        slots = self._pool.slots
        return len(self._held) - sum(s.stopped_at > 0 and s.row.job in self._held for s in slots)

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        return len(self._held)

    @property
    def capacity(self) -> int:
        """How many jobs may be held: one per child, and more if jobs are quick."""
        able = sum(slot.takes_jobs for slot in self._pool.slots)
        return able * (1 + self._prefetch.ahead(MOST_AHEAD))

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
        held = dict(self._held)
        if held:
            for slot in self._pool.slots:
                pid, number = slot.pid, slot.row.job
                if pid and number in held and linux.is_idle(pid):
                    del held[number]
        return [*held.values(), *self._unconfirmed.values()]

    def mark_recorded(self, settles: Sequence[Settle]) -> list[RunningJob | None]:
        """Forget the outcomes that the server has recorded; return their runs."""
        return [self._unconfirmed.pop(settle, None) for settle in settles]

    def submit(self, queue_state: QueueState, jobs: Sequence[Claimed], claimed_at: float) -> None:
        """Accept claimed jobs, and assign them to children."""
        if not self._held:
            self._last_reply_at = time.monotonic()
        for claimed in jobs:
            number = next(self._numbers)
            self._held[number] = RunningJob(queue_state, claimed, claimed_at, self._send_notes_soon)
            self._unsent.append(number)
        self._dispatch()

    def request_cancel(self, channel: str, id: str) -> None:
        """Cancel a job.

        Args:
            channel: the channel of the job's queue, because two queues may share an id.
            id: the job's id.
        """
        for run in self._held.values():
            if run.claimed.id == id and run.queue_state.keys["asked"] == channel and not run.asked:
                run.asked = True
                break
        else:
            return
        self._reclaim()
        self._dispatch()
        self._check()

    def release_all(self) -> None:
        """Release all jobs without using an attempt, and kill the children that run them.

        If a function has ended and only the job's callback still runs, the outcome is kept.
        """
        self._pool.read_messages()
        self._reclaim()
        running = {slot.row.job for slot in self._pool.slots}
        lost = self._held.keys() - running - set(self._unsent)
        for slot in self._pool.slots:
            if slot.row.job or lost:  # a child is taking a job, and it is unknown which one
                slot.kill()
        unbegun = set(self._unsent)
        self._unsent.clear()
        for number, run in list(self._held.items()):
            death = self._exits.get(number)
            if death is None or death.overran:
                run.decide(UNBEGUN if number in unbegun else BEGUN)
            else:
                run.decide(_crash(death.how))
            self._end(number)

    async def open(self) -> None:
        """Start the children; if they cannot start, the worker stops."""
        await self._pool.open()

    async def close(self) -> None:
        """Stop the children."""
        try:
            await self._pool.close()
        finally:
            self._timer.cancel()

    def _dispatch(self) -> None:
        while self._unsent:
            number = self._unsent[0]
            run = self._held[number]
            if run.asked and run.decided is None:
                run.decide(("cancel", "", b""))
                self._unsent.popleft()
                self._end(number)
                continue
            death = self._exits.get(number, _ALIVE)
            assign = Assign(number, run.queue_state.queue, run.claimed, run.claimed_at, *death)
            if not self._pool.send(encode_assign(assign)):
                break
            self._unsent.popleft()
        while self._reports and self._pool.send(encode_assign(self._reports[0])):
            self._reports.popleft()
        self._check_later()

    def report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        """Let a child call the hooks after an attempt that was lost by another worker."""
        number, queue = next(self._numbers), run.queue_state.queue
        assign = Assign(number, queue, run.claimed, run.claimed_at, how, False, True, has_failed)
        self._reports.append(assign)
        self._dispatch()

    def _on_replies(self, replies: list[Reply]) -> None:
        """Process the replies of children."""
        for reply in replies:
            run = self._held.get(reply.number)  # type: ignore[union-attr]
            if isinstance(reply, Done):
                self._last_reply_at = time.monotonic()
                if run is not None:  # a report to hooks may be assigned before waiting jobs
                    self._prefetch.note_run(reply.took)
                    self._newest = max(self._newest, reply.number)
                    run.decide(reply.ended)
                    if run.queue_state.metrics is not None:
                        run.queue_state.metrics.note_run(reply.took)
                    run.missing = reply.missing
                    self._end(reply.number)
            elif isinstance(reply, NoteAdded) and run is not None:
                run.add_note(reply.kind, reply.text)
            elif isinstance(reply, Decided) and run is not None:
                run.decide(reply.ended)
        self._dispatch()

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
                    "%s (job %s): its callback was cut off", task_of(run), short_id(run.claimed.id)
                )
            self._end(number)
        elif run.asked and slot.killed:
            run.decide(("cancel", "", b""))
            self._end(number)
        elif number in self._exits:  # the child that was to decide its outcome has died too
            death = self._exits[number]
            run.decide(_crash(describe_exit(died) if death.overran else death.how))
            self._end(number)
        elif run.timed_out or deaths == 1:
            # Another child decides the outcome, because it has the policy and the callback.
            self._exits[number] = death = _Death(describe_exit(died), run.timed_out)
            if not death.overran:
                with run.named():
                    log.error(
                        "%s (job %s) crashed. %s", task_of(run), short_id(run.claimed.id), death.how
                    )
            run.deadline = time.monotonic() + DEFAULT_TIMEOUT
            self._unsent.appendleft(number)
        else:
            self._leave_to_lease(number, deaths)
        self._dispatch()

    def _on_ready(self) -> None:
        """Handle a child that has become ready."""
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
        self._dispatch()

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
        if len(self._held) > len(begun) and not can and now - self._last_reply_at > STALE:
            self._release_unstarted()
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
        elif run.asked and run.decided is None:
            slot.request_cancel(number, now)

    def _reclaim(self) -> None:
        """Take back the jobs that no child has received."""
        assigns = [decode_assign(message) for message in self._pool.reclaim()]
        self._reports.extend(assign for assign in assigns if assign.lost)
        numbers = [assign.number for assign in assigns if assign.number in self._held]
        self._unsent.extendleft(reversed(numbers))

    def _release_unstarted(self) -> None:
        """Release the jobs that no child has received; none of them uses an attempt."""
        self._reclaim()
        waiting = list(self._unsent)
        self._unsent.clear()
        for number in waiting:
            run = self._held[number]
            if number in self._exits:
                self._unsent.append(number)
                continue
            run.decide(("cancel", "", b"") if run.asked else UNBEGUN)
            self._end(number)

    @property
    def _dispatched(self) -> set[int]:
        return self._held.keys() - set(self._unsent)

    def _release_lost(self, begun: set[int], now: float) -> None:
        """Release jobs that were lost with a child: it died or stopped before it wrote its row.

        Such a job is not waiting, not in a row and not answered, for longer than a child needs from
        receiving a job to writing its row.
        """
        waiting: set[int] = set()
        if not self._pool.is_line_empty:
            # Jobs are received in order: those before a started job are not in the socket.
            waiting = {n for n in self._held if n > self._newest or n in self._exits}
        for number in self._lost.find(self._dispatched - begun, waiting, now):
            run = self._held[number]
            with run.named():
                log.warning(
                    "job %s was lost with a child, and is released", short_id(run.claimed.id)
                )
            run.decide(BEGUN)
            self._end(number)

    def _leave_to_lease(self, number: int, deaths: int) -> None:
        """Leave a job until its lease ends: several jobs died, and the cause is unknown."""
        run = self._held.pop(number)
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

    def _send_notes_soon(self) -> None:
        self._loop.call_later(NOTES_DELAY, self._changed)

    def _end(self, number: int) -> None:
        run = self._held.pop(number)
        self._exits.pop(number, None)
        assert run.decided is not None
        run.ended = True
        outcome, when, data = run.decided
        if run.missing:
            task_of(run)
            run.queue_state.note_task(served=False)
            self.unknown_tasks.note(run)
            if outcome == "snooze":
                when = self.unknown_tasks.next_look(run, -(-self.capacity // 2))
        elif run.claimed.missing_us and outcome not in UNCOUNTED:
            run.queue_state.note_task(served=True)
        if outcome not in UNCOUNTED:
            self.executed += 1
            log_end(run, outcome)
        settle = Settle(run.claimed.id, run.claimed.token, outcome, when, data)
        self._unconfirmed[settle] = run
        run.queue_state.settles.append(settle)
        self._changed()
