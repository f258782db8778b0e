"""The worker's side of jobs in processes: hands them out, hears how they end, and sees who dies.

It stands where `bide.worker.executors.local` stands for jobs in the worker itself, and does none of
their work: no body is decoded here and no function of theirs is called. A
job's child says how it ended;
where it cannot any more, the table says which job it was, and the system how it died.
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
from bide.worker.executors.local import SAY_AFTER
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
"""Seconds between looks at what runs for how long, while something does."""

MOST_AHEAD: Final = 50
"""Jobs per child that may wait, however quick they are."""


class _Death(NamedTuple):
    """What is known of the child that a job has cost."""

    how: str
    overran: bool
    """It was killed because the job ran too long."""


_ALIVE: Final = _Death("", False)


def _crash(how: str) -> Ended:
    """What becomes of a job that has crashed, where no child says so."""
    return "crash", "", encode_error(WorkerCrashed(how))


class ProcessExecutor:
    """All jobs that a worker has its children run."""

    def __init__(self, house: ProcessPool, changed: Callable[[], None]) -> None:
        """Set up, in the event loop that will hear the children.

        Args:
            house: the children.
            changed: called in the loop's thread when there is something to send, or to claim for.
        """
        self._pool = house
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._held: dict[int, RunningJob] = {}
        self._unsent: deque[int] = deque()
        self._reports: deque[Assign] = deque()
        """What children are to tell hooks of jobs that are not held here."""
        self._unconfirmed: dict[Settle, RunningJob] = {}
        self._pace = Prefetch()
        self._last_reply_at = 0.0
        self._newest = 0
        self._checking = False
        self._timer = self._loop.call_later(0, self._check_later)
        self._exits: dict[int, _Death] = {}
        self._lost = LostJobs()
        self.executed = 0
        self.unserved: Final = UnknownTasks()
        self.has_callbacks = False
        self.is_spent = False
        house.on_messages(self._on_replies, self._on_exit, self._on_ready)

    def __len__(self) -> int:
        """How many jobs take up what there is for jobs: those of stopped children do not."""
        slots = self._pool.slots
        return len(self._held) - sum(s.stopped_at > 0 and s.row.job in self._held for s in slots)

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        return len(self._held)

    @property
    def capacity(self) -> int:
        """How many jobs may be held: one for each child, and more where they are quick."""
        able = sum(slot.takes_jobs for slot in self._pool.slots)
        return able * (1 + self._pace.ahead(MOST_AHEAD))

    def snapshot(self) -> list[RunningTask]:
        """What runs."""
        running = [self._held.get(slot.row.job) for slot in self._pool.slots]
        for run in running:
            if run is not None:
                task_of(run)
        return [run.snapshot() for run in running if run is not None]

    def rss(self) -> int:
        """Bytes of memory of the processes that run jobs."""
        return sum(linux.rss(slot.pid) for slot in self._pool.slots if slot.pid)

    def held_jobs(self) -> list[RunningJob]:
        """What must not lose its lease; safe to call in any thread.

        A job whose process is stopped does nothing, and its lease goes to one that can do it.
        """
        held = dict(self._held)
        if held:
            for slot in self._pool.slots:
                pid, number = slot.pid, slot.row.job
                if pid and number in held and linux.is_idle(pid):
                    del held[number]
        return [*held.values(), *self._unconfirmed.values()]

    def mark_recorded(self, settles: Sequence[Settle]) -> list[RunningJob | None]:
        """The server has taken note of these outcomes; return their runs."""
        return [self._unconfirmed.pop(settle, None) for settle in settles]

    def submit(self, station: QueueState, jobs: Sequence[Claimed], claimed_at: float) -> None:
        """Take jobs over, and hand them out."""
        if not self._held:
            self._last_reply_at = time.monotonic()
        for claimed in jobs:
            number = next(self._numbers)
            self._held[number] = RunningJob(station, claimed, claimed_at, self._send_notes_soon)
            self._unsent.append(number)
        self._dispatch()

    def request_cancel(self, channel: str, id: str) -> None:
        """Someone wants a job to end.

        Args:
            channel: that of the job's queue, because another queue may have a job of the same id.
            id: the job.
        """
        for run in self._held.values():
            if run.claimed.id == id and run.station.keys["asked"] == channel and not run.asked:
                run.asked = True
                break
        else:
            return
        self._reclaim()
        self._dispatch()
        self._check()

    def release_all(self) -> None:
        """Give all jobs back without using an attempt, and kill the children that run them.

        A job that has come to its end, and only its callback has not, has ended.
        """
        self._pool.read_messages()
        self._reclaim()
        running = {slot.row.job for slot in self._pool.slots}
        astray = self._held.keys() - running - set(self._unsent)
        for slot in self._pool.slots:
            if slot.row.job or astray:  # taken this very moment: there is no telling by which
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
        """Make the children; whatever keeps them from beginning stops the worker."""
        await self._pool.open()

    async def close(self) -> None:
        """Let the children end."""
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
            order = Assign(number, run.station.queue, run.claimed, run.claimed_at, *death)
            if not self._pool.send(encode_assign(order)):
                break
            self._unsent.popleft()
        while self._reports and self._pool.send(encode_assign(self._reports[0])):
            self._reports.popleft()
        self._check_later()

    def report(self, run: RunningJob, how: str, has_failed: bool) -> None:
        """Have a child tell hooks of an attempt that ended with another worker."""
        number, queue = next(self._numbers), run.station.queue
        order = Assign(number, queue, run.claimed, run.claimed_at, how, False, True, has_failed)
        self._reports.append(order)
        self._dispatch()

    def _on_replies(self, replies: list[Reply]) -> None:
        """What children say."""
        for reply in replies:
            run = self._held.get(reply.number)  # type: ignore[union-attr]
            if isinstance(reply, Done):
                self._last_reply_at = time.monotonic()
                if run is not None:  # a report to hooks may overtake jobs that are not yet sent
                    self._pace.note_run(reply.took)
                    self._newest = max(self._newest, reply.number)
                    run.decide(reply.ended)
                    if run.station.figures is not None:
                        run.station.figures.note_run(reply.took)
                    run.missing = reply.missing
                    self._end(reply.number)
            elif isinstance(reply, NoteAdded) and run is not None:
                run.add_note(reply.kind, reply.text)
            elif isinstance(reply, Decided) and run is not None:
                run.decide(reply.ended)
        self._dispatch()

    def _on_exit(self, slot: Slot, died: Exited, among: int) -> None:
        """A child has died; what it said before has been heard."""
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
        elif number in self._exits:  # and who was to say what becomes of that has died too
            death = self._exits[number]
            run.decide(_crash(describe_exit(died) if death.overran else death.how))
            self._end(number)
        elif run.timed_out or among == 1:
            # What becomes of it is for a child to say, with the policy and the callback.
            self._exits[number] = death = _Death(describe_exit(died), run.timed_out)
            if not death.overran:
                with run.named():
                    log.error(
                        "%s (job %s) crashed. %s", task_of(run), short_id(run.claimed.id), death.how
                    )
            run.deadline = time.monotonic() + DEFAULT_TIMEOUT
            self._unsent.appendleft(number)
        else:
            self._leave_to_lease(number, among)
        self._dispatch()

    def _on_ready(self) -> None:
        """There is another child that takes jobs."""
        self._check_later()
        self._changed()

    def _check_later(self) -> None:
        """Look on while something is held, or a child may begin or be let go on."""
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
        """See what runs too long, or was asked to end; and take back what waits too long."""
        now = time.monotonic()
        longest, could, can = 0.0, self.capacity - len(self), False
        begun = set()
        for slot in self._pool.slots:
            slot.check()
            can = can or slot.is_free
            number = slot.row.job
            run = self._held.get(number)
            if run is None:
                if number and 0 < slot.row.deadline < now - GRACE:  # it tells hooks, for too long
                    slot.kill()
                continue
            begun.add(number)
            if slot.stopped_at:
                if now - slot.stopped_at > 2 * run.station.lease:
                    slot.kill()  # another has had its lease since; what it came to would be refused
                continue
            longest = max(longest, now - slot.row.begun)
            self._enforce_deadline(slot, number, run, now)
        self._pace.note_running(longest)
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
        """Hold a job to its time and a grace; a callback, or who judges, has a grace alone."""
        run.deadline = slot.row.deadline or run.deadline
        if now > run.deadline + GRACE:
            run.timed_out = run.timed_out or run.decided is None
            slot.kill()
        elif run.asked and run.decided is None:
            slot.ask(number, now)

    def _reclaim(self) -> None:
        """Have what no child has begun here again."""
        orders = [decode_assign(message) for message in self._pool.reclaim()]
        self._reports.extend(order for order in orders if order.lost)
        numbers = [order.number for order in orders if order.number in self._held]
        self._unsent.extendleft(reversed(numbers))

    def _release_unstarted(self) -> None:
        """Give back what no child has begun; not one claim of it is used."""
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
        """Give back what a child took that died, or was stopped, before it could say so.

        That is what is neither waiting, nor in a row, nor answered, for longer than a child takes
        from the one to the other.
        """
        waiting: set[int] = set()
        if not self._pool.is_line_empty:
            # What was handed out before another that has begun is not in the line.
            waiting = {n for n in self._held if n > self._newest or n in self._exits}
        for number in self._lost.find(self._dispatched - begun, waiting, now):
            run = self._held[number]
            with run.named():
                log.warning(
                    "job %s was lost with a child, and is given back", short_id(run.claimed.id)
                )
            run.decide(BEGUN)
            self._end(number)

    def _leave_to_lease(self, number: int, among: int) -> None:
        """Leave a job to its lease: nothing says under which of several their processes died."""
        run = self._held.pop(number)
        run.ended = True
        with run.named():
            log.error(
                "%s (job %s) died with the %d jobs that ran here; it is run again when its lease "
                "ends",
                task_of(run),
                short_id(run.claimed.id),
                among,
            )
        self._changed()

    def _send_notes_soon(self) -> None:
        self._loop.call_later(SAY_AFTER, self._changed)

    def _end(self, number: int) -> None:
        run = self._held.pop(number)
        self._exits.pop(number, None)
        assert run.decided is not None
        run.ended = True
        outcome, when, data = run.decided
        if run.missing:
            task_of(run)
            run.station.note_task(served=False)
            self.unserved.note(run)
            if outcome == "snooze":
                when = self.unserved.next_look(run, -(-self.capacity // 2))
        elif run.claimed.missing_us and outcome not in UNCOUNTED:
            run.station.note_task(served=True)
        if outcome not in UNCOUNTED:
            self.executed += 1
            log_end(run, outcome)
        settle = Settle(run.claimed.id, run.claimed.token, outcome, when, data)
        self._unconfirmed[settle] = run
        run.station.settles.append(settle)
        self._changed()
