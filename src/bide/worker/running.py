"""From a claimed job to its outcome: decode, find the function, run it, judge how it ended.

A coroutine function runs as a task on the event loop, a plain function in a thread. Whatever goes
wrong inside ends this job and no other: a body that cannot be decoded, a task that is not served,
a result that does not fit, any exception, a time-out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context

from bide.codec import DEFAULT_TIMEOUT, Body, decode_body, encode_error, encode_result
from bide.current import CurrentJob, enter
from bide.errors import BideError, JobTimeout, PayloadError
from bide.job import Claimed
from bide.ops.consume import Outcome, Settle
from bide.retry import NO_RETRY, as_retry
from bide.task import Function, Served
from bide.worker.deadlines import Deadlines
from bide.worker.station import Station
from bide.worker.threads import Threads

log = logging.getLogger("bide.worker")

_A_LITTLE = "+1000000"
_Ended = tuple[Outcome, str, bytes]


class Run:
    """One job while this worker holds it."""

    __slots__ = (
        "abandoned",
        "claimed",
        "claimed_at",
        "deadline",
        "ended",
        "lost",
        "retry",
        "station",
        "task",
        "task_name",
        "timed_out",
        "timeout",
    )

    def __init__(self, station: Station, claimed: Claimed, claimed_at: float) -> None:
        self.station = station
        self.claimed = claimed
        self.claimed_at = claimed_at
        self.timeout = DEFAULT_TIMEOUT
        self.deadline = claimed_at + DEFAULT_TIMEOUT
        self.retry = NO_RETRY
        self.task_name = "?"
        self.task: asyncio.Task[None] | None = None
        self.ended = False
        self.lost = False
        self.timed_out = False
        self.abandoned = False


class Running:
    """All jobs that a worker runs."""

    def __init__(self, worker: str, served: Served, changed: Callable[[], None]) -> None:
        """Set up, in the event loop that will run the jobs.

        Args:
            worker: the worker's name.
            served: the tasks it runs.
            changed: called in the loop's thread when a job has ended.
        """
        self._worker = worker
        self._served = served
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(f"bide-{worker}")
        self._deadlines: Deadlines[Run] = Deadlines(self._loop, self._expire)
        self._held: dict[int, Run] = {}
        self._accepted: list[Run] = []
        self._unconfirmed: dict[Settle, Run] = {}
        self._stuck = 0
        self._from_threads: deque[tuple[Run, _Ended]] = deque()
        self._collecting = False
        self.executed = 0

    def __len__(self) -> int:
        """How many slots are taken: held jobs, and threads that outlast their time-out."""
        return len(self._held) + self._stuck

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        return len(self._held)

    def leased(self) -> list[Run]:
        """What must not lose its lease; safe to call in any thread.

        That is all that is held, and what has ended for as long as the server has not confirmed it.
        """
        return [*self._held.values(), *self._unconfirmed.values()]

    def confirmed(self, settles: Sequence[Settle]) -> None:
        """The server has taken note of these outcomes."""
        for settle in settles:
            self._unconfirmed.pop(settle, None)

    def accept(self, station: Station, jobs: Sequence[Claimed], claimed_at: float) -> None:
        """Take jobs over; they start in the next turn of the loop.

        By then the next round trip has been sent, so the server works while they run.
        """
        for claimed in jobs:
            run = Run(station, claimed, claimed_at)
            self._held[id(run)] = run
            self._accepted.append(run)
        if jobs:
            self._loop.call_soon(self._start_accepted)

    def _start_accepted(self) -> None:
        accepted, self._accepted = self._accepted, []
        for run in accepted:
            if run.ended:  # given back in the meantime
                continue
            try:
                self._start(run)
            except Exception:
                # Not the job's fault: no thread is to be had, for one.
                log.exception("job %s could not be started, and waits a little", run.claimed.id)
                self._end(run, ("snooze", _A_LITTLE, b""))

    def _start(self, run: Run) -> None:
        try:
            body = decode_body(run.claimed.body)
            run.task_name = body.task if body.task.isprintable() else repr(body.task)
            run.retry = as_retry(body.retry)
            function, is_async = self._served.find(body.task)
        except BideError as error:
            self._end(run, self._judge(run, error))
            return
        run.timeout = DEFAULT_TIMEOUT if body.timeout is None else body.timeout
        run.deadline = time.monotonic() + run.timeout
        self._deadlines.add(run)
        if is_async:
            run.task = self._loop.create_task(self._run_async(run, function, body))
        else:
            # A context of its own, as each task has: what one job sets, the next must not see.
            context = copy_context()
            self._threads.submit(lambda: context.run(self._run_in_thread, run, function, body))

    def abandon(self) -> None:
        """Give all jobs back without using an attempt; cancel those that can be."""
        for run in list(self._held.values()):
            run.abandoned = True
            self._end(run, ("release", "", b""))
            if run.task is not None:
                run.task.cancel()

    def close(self) -> None:
        """Let idle threads end."""
        self._deadlines.close()
        self._threads.close()

    async def _run_async(self, run: Run, function: Function, body: Body) -> None:
        enter(self._context(run))
        try:
            result = await function(*body.args, **body.kwargs)
        except BaseException as error:
            self._end(run, self._judge(run, error))
        else:
            self._end(run, _completed(body, result))

    def _run_in_thread(self, run: Run, function: Function, body: Body) -> None:
        enter(self._context(run))
        try:
            result = function(*body.args, **body.kwargs)
        except BaseException as error:
            ended = self._judge(run, error)
        else:
            ended = _completed(body, result)
        self._from_threads.append((run, ended))
        if not self._collecting:
            self._collecting = True
            with suppress(RuntimeError):  # the loop has closed: nobody waits for this any more
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._collecting = False  # before looking, so that what comes later is collected again
        while self._from_threads:
            run, ended = self._from_threads.popleft()
            if run.ended and run.timed_out:
                self._stuck -= 1
                self._changed()
            self._end(run, ended)

    def _context(self, run: Run) -> CurrentJob:
        return CurrentJob(run.claimed.id, run.station.queue, self._worker, run.claimed)

    def _judge(self, run: Run, error: BaseException) -> _Ended:
        """What an exception means: another attempt, or the end."""
        if run.timed_out:
            error = _timeout(run)
        attempt = run.claimed.attempt
        delay = run.retry.decide(attempt, error)
        data = encode_error(error)
        what = f"{run.task_name} (job {run.claimed.id}) attempt {attempt}"
        if run.abandoned:
            pass
        elif delay is None:
            log.error("%s failed: %r", what, error)
        else:
            log.warning("%s raised %r; again in %.3g s", what, error, delay)
        if delay is None:
            return "fail", "", data
        return "retry", f"+{round(delay * 1e6)}", data

    def _expire(self, run: Run) -> None:
        run.timed_out = True
        if run.task is not None:
            run.task.cancel()
            # A task that is cancelled before its first step (uvloop does so) runs none of ours.
            run.task.add_done_callback(lambda _: self._end_unless_ended(run))
        else:
            # A thread cannot be stopped: its job ends here, its slot only when it returns.
            self._stuck += 1
            log.warning("%d slots are held by threads past their time-out", self._stuck)
            self._end(run, self._overdue(run))

    def _end_unless_ended(self, run: Run) -> None:
        if not run.ended:
            self._end(run, self._overdue(run))

    def _overdue(self, run: Run) -> _Ended:
        return self._judge(run, _timeout(run))

    def _end(self, run: Run, ended: _Ended) -> None:
        if run.ended:
            return
        run.ended = True
        del self._held[id(run)]
        outcome, when, data = ended
        if outcome not in ("release", "snooze"):
            self.executed += 1
            log.debug("%s (job %s): %s", run.task_name, run.claimed.id, outcome)
        settle = Settle(run.claimed.id, run.claimed.token, outcome, when, data)
        self._unconfirmed[settle] = run
        run.station.settles.append(settle)
        self._changed()


def _completed(body: Body, result: object) -> _Ended:
    try:
        return "complete", "", encode_result(body.task, result, body.codec)
    except PayloadError as error:
        log.error("%s", error)
        return "fail", "", encode_error(error)


def _timeout(run: Run) -> JobTimeout:
    return JobTimeout(f"{run.task_name} ran longer than its time-out of {run.timeout:g} s.")
