"""The worker's side of jobs in processes: hands them out, hears how they end, and sees who dies.

It stands where `bide.worker.running` stands for jobs in the worker itself, and does none of their
work: no body is decoded here and no function of theirs is called. A job's child says how it ended;
where it cannot any more, the table says which job it was, and the system how it died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from bide.errors import WorkerCrashed
from bide.job import Claimed
from bide.ops.consume import Settle
from bide.ops.registry import Doing
from bide.payload.codec import encode_error
from bide.worker.leases import GRACE
from bide.worker.processes import kin
from bide.worker.processes.house import House, Slot
from bide.worker.processes.wire import (
    Decided,
    Died,
    Done,
    Order,
    Reply,
    Said,
    decode_order,
    encode,
)
from bide.worker.run import Run
from bide.worker.running import SAY_AFTER
from bide.worker.station import Station

log = logging.getLogger("bide.worker")

LOOK_EVERY: Final = 0.1
"""Seconds between looks at what runs for how long, while something does."""

AHEAD: Final = 0.005
"""Seconds of work that may wait for children, so that quick jobs do not wait for round trips."""

MOST_AHEAD: Final = 50
"""Jobs per child that may wait, however quick they are."""

STALE: Final = 0.05
"""Seconds after which what waits is given back: other workers may have a child that is free."""


class Crew:
    """All jobs that a worker has its children run."""

    def __init__(self, house: House, concurrency: int, changed: Callable[[], None]) -> None:
        """Set up, in the event loop that will hear the children.

        Args:
            house: the children.
            concurrency: how many there are.
            changed: called in the loop's thread when there is something to send.
        """
        self._house = house
        self._concurrency = concurrency
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._held: dict[int, Run] = {}
        self._unsent: deque[tuple[int, Run]] = deque()
        self._unconfirmed: dict[Settle, Run] = {}
        self._mean = 1.0
        self._looking = False
        self._judging: set[int] = set()
        self.executed = 0
        self.calls_back = False
        self.has_had_enough = False
        house.hear(self._heard, self._learned)

    def __len__(self) -> int:
        """How many jobs are held."""
        return len(self._held)

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        return len(self._held)

    @property
    def capacity(self) -> int:
        """How many jobs may be held: one for each child, and more where they are quick."""
        ahead = min(MOST_AHEAD, int(AHEAD / max(self._mean, 1e-6)))
        return self._concurrency * (1 + ahead)

    def doing(self) -> list[Doing]:
        """What runs."""
        running = (self._held.get(slot.row.job) for slot in self._house.slots)
        return [run.doing() for run in running if run is not None]

    def rss(self) -> int:
        """Bytes of memory of the processes that run jobs."""
        return sum(kin.rss(slot.pid) for slot in self._house.slots if slot.pid)

    def leased(self) -> list[Run]:
        """What must not lose its lease; safe to call in any thread.

        A job whose process is stopped does nothing, and its lease goes to one that can do it.
        """
        held = dict(self._held)
        for slot in self._house.slots:
            if slot.pid and kin.is_stopped(slot.pid):
                held.pop(slot.row.job, None)
        return [*held.values(), *self._unconfirmed.values()]

    def confirmed(self, settles: Sequence[Settle]) -> None:
        """The server has taken note of these outcomes."""
        for settle in settles:
            self._unconfirmed.pop(settle, None)

    def accept(self, station: Station, jobs: Sequence[Claimed], claimed_at: float) -> None:
        """Take jobs over, and hand them out."""
        for claimed in jobs:
            number = next(self._numbers)
            run = Run(station, claimed, claimed_at, self._say_soon)
            self._held[number] = run
            self._unsent.append((number, run))
        self._hand_out()

    def ask(self, channel: str, id: str) -> None:
        """Someone wants a job to end.

        Args:
            channel: that of the job's queue, because another queue may have a job of the same id.
            id: the job.
        """
        for run in self._held.values():
            if run.claimed.id == id and run.station.keys["asked"] == channel and not run.asked:
                run.asked = True
                self._look()

    def abandon(self) -> None:
        """Give all jobs back without using an attempt, and kill the children that run them."""
        for slot in self._house.slots:
            if slot.row.job in self._held:
                slot.kill()
        for number, run in list(self._held.items()):
            run.decide(("release", "", b""))
            self._end(number)

    async def open(self) -> None:
        """Make the children; whatever keeps them from beginning stops the worker."""
        await self._house.open()

    async def close(self) -> None:
        """Let the children end."""
        await self._house.close()

    def _hand_out(self) -> None:
        while self._unsent:
            number, run = self._unsent[0]
            if run.asked:
                run.decide(("cancel", "", b""))
                self._unsent.popleft()
                self._end(number)
                continue
            order = Order(number, run.station.queue, run.claimed, run.claimed_at, run.timed_out)
            if not self._house.send(encode(order)):
                break
            self._unsent.popleft()
        if self._held and not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_EVERY, self._look_on)

    def _heard(self, replies: list[Reply]) -> None:
        """What children say."""
        for reply in replies:
            if isinstance(reply, Done):
                self._mean += 0.1 * (reply.took - self._mean)
                run = self._held.get(reply.number)
                if run is not None:
                    run.decide(reply.ended)
                    self._end(reply.number)
            elif isinstance(reply, Said):
                run = self._held.get(reply.number)
                if run is not None:
                    run.say(reply.kind, reply.text)
            elif isinstance(reply, Decided):
                run = self._held.get(reply.number)
                if run is not None:
                    run.decide(reply.ended)
        self._hand_out()

    def _learned(self, slot: Slot, died: Died) -> None:
        """A child has died; what it said before has been heard."""
        number = slot.row.job
        run = self._held.get(number)
        slot.row.end()
        if run is None:
            return
        if run.decided is None and run.timed_out and number not in self._judging:
            # What becomes of it is for a child to say, with the policy and the callback.
            self._judging.add(number)
            self._unsent.append((number, run))
            self._hand_out()
            return
        if run.asked and slot.killed:
            run.decide(("cancel", "", b""))
        error = WorkerCrashed(_obituary(died))
        if run.decide(("crash", "", encode_error(error))):
            log.error("%s (job %s): %s", run.task_name, run.claimed.id, error)
        self._end(number)

    def _look_on(self) -> None:
        self._looking = False
        self._look()
        if self._held and not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_EVERY, self._look_on)

    def _look(self) -> None:
        """See what runs too long, or was asked to end; and take back what waits too long."""
        now = time.monotonic()
        longest, free = 0.0, False
        for slot in self._house.slots:
            number = slot.row.job
            run = self._held.get(number)
            if number == 0:
                free = True
            if run is None:
                continue
            longest = max(longest, now - slot.row.begun)
            deadline = slot.row.deadline
            run.deadline = deadline or run.deadline
            if now > run.deadline + GRACE and run.decided is None:
                run.timed_out = True
                slot.kill()
            elif now > run.deadline + 2 * GRACE:
                slot.kill()
            elif run.asked:
                slot.ask(number, now)
        self._mean = max(self._mean, longest)
        if not free and longest > STALE:
            self._take_back()

    def _take_back(self) -> None:
        """Give back what no child has begun; not one claim of it is used."""
        numbers = [number for number, _ in self._unsent]
        self._unsent.clear()
        numbers += [decode_order(message).number for message in self._house.take_back()]
        for number in numbers:
            run = self._held.get(number)
            if run is None:
                continue
            if run.timed_out:
                self._unsent.append((number, run))
                continue
            run.decide(("cancel", "", b"") if run.asked else ("release", "", b""))
            self._end(number)

    def _say_soon(self) -> None:
        self._loop.call_later(SAY_AFTER, self._changed)

    def _end(self, number: int) -> None:
        run = self._held.pop(number)
        self._judging.discard(number)
        assert run.decided is not None
        run.ended = True
        outcome, when, data = run.decided
        if outcome not in ("release", "snooze"):
            self.executed += 1
        settle = Settle(run.claimed.id, run.claimed.token, outcome, when, data)
        self._unconfirmed[settle] = run
        run.station.settles.append(settle)
        self._changed()


def _obituary(died: Died) -> str:
    """How a process ended, in a sentence."""
    code = os.waitstatus_to_exitcode(died.status)
    how = f"exited with code {code}"
    if code < 0:
        try:
            how = f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was killed by signal {-code}"
    memory = f"; it had used up to {died.rss / 1e6:.0f} MB" if died.rss else ""
    return f"Its process {how}{memory}."
