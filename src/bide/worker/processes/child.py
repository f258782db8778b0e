"""A child: runs jobs in its main thread, one after another, until it is told or due to end.

It takes a job when it is free to, so nothing waits behind another. Before anything of the job's own
happens, its row of the table says which it is and when its time is over. A signal ends a job that
takes too long, or that was asked to end, by an exception in it; where that does not help, the
worker kills the child.

The row is cleared only when the worker has been told how the job ended: whenever a child dies, its
job has been answered for, or stands in its row.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from contextvars import copy_context
from types import FrameType
from typing import Any, Final, NoReturn

from bide.current import enter
from bide.errors import JobCancelled, JobTimeout
from bide.middleware import used
from bide.ops.consume import Said as Note
from bide.resource import resources
from bide.task import Served
from bide.worker import eventloop, judging
from bide.worker.calling import Call, call_back, prepare
from bide.worker.judging import Judged
from bide.worker.leases import GRACE
from bide.worker.lifespan import Lifespan
from bide.worker.processes import kin
from bide.worker.processes.table import Row
from bide.worker.processes.wire import (
    Broken,
    Decided,
    Done,
    Order,
    Reader,
    Ready,
    Reply,
    Said,
    Setting,
    decode_order,
    encode,
    send,
)
from bide.worker.reading import current, read
from bide.worker.run import Run
from bide.worker.title import set_title

log = logging.getLogger("bide.worker")

ENDED: Final = 0
"""How a child ends whose worker has no more jobs."""

RETIRED: Final = 75
"""How a child ends that has had enough of them, and is to be replaced."""

IDLE: Final = "bide child: idle"
"""Its title while it waits."""

ASKED: Final = signal.SIGUSR1
"""Tells a child to look whether its job was asked to end."""

_BURY_EVERY: Final = 64
_LONGEST_ALARM: Final = 1e8


class Mouth:
    """The station of a child's jobs: what they say goes to the worker at once."""

    def __init__(self, queue: str, child: Child, number: int) -> None:
        self.queue = queue
        self.said = self
        self._child = child
        self._number = number

    def add(self, note: Note) -> bool:
        """Pass a note on."""
        self._child.tell(Said(self._number, note.kind, note.text))
        return False


class Child:
    """One process that runs jobs."""

    def __init__(
        self, orders: socket.socket, replies: socket.socket, served: Served, setting: Setting
    ) -> None:
        """Set up, in the nursery: all children are made of this one."""
        self._orders = Reader(orders)
        self._replies = replies
        self._served = served
        self._setting = setting
        self._lifespan = Lifespan()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run: Run | None = None
        self._number = 0
        self._interruptible = False
        self._task: asyncio.Task[Any] | None = None
        self._ran = 0
        self._dead: set[int] = set()
        self._pid = 0
        self._lines = [(line.fileno(), _inode(line.fileno())) for line in (orders, replies)]

    def live(self, slot: int, row: Row) -> int:
        """Take jobs until there are none for this child any more; how it ends."""
        self._slot, self._row, self._pid = slot, row, os.getpid()
        if resources():
            try:
                self._wait(self._lifespan.open())
            except BaseException as error:
                log.exception("a child cannot begin")
                self.tell(Broken(self._slot, f"{type(error).__name__}: {error}"))
                os._exit(1)
        self.tell(Ready(self._slot, self._pid))
        try:
            while not self._has_had_enough():
                message = self._orders.read()
                if message is None:
                    return ENDED
                self.serve(decode_order(message))
            return RETIRED
        finally:
            if self._loop is not None:
                self._wait(self._lifespan.close())
                with contextlib.suppress(Exception):
                    eventloop.end(self._loop)

    def tell(self, reply: Reply) -> None:
        """Say something to the worker; without one, there is nothing left to do."""
        try:
            send(self._replies, encode(reply))
        except OSError:
            os._exit(1)

    def _has_had_enough(self) -> bool:
        setting = self._setting
        if setting.executor == "fork":
            return self._ran > 0
        if setting.max_jobs is not None and self._ran >= setting.max_jobs:
            return True
        if setting.max_rss is None or self._ran == 0:
            return False
        return kin.rss(os.getpid()) > setting.max_rss

    def serve(self, order: Order) -> None:
        """Run a job, and say how it ended."""
        now = time.monotonic()
        self._row.begin(order.number, now, now if order.overran else 0.0)
        self._number = order.number
        if self._ran:
            self.listen()
        mouth: Any = Mouth(order.queue, self, order.number)
        self._run = run = Run(mouth, order.claimed, order.claimed_at, lambda: None)
        judged = self._judge(order, run)
        self._check_self(run)
        run.decide(judged.ended)
        if judged.callback is not None:
            self._row.limit(max(run.deadline, time.monotonic()))
            self.tell(Decided(order.number, judged.ended))
            copy_context().run(self._call_back, judged, run)
            self._check_self(run)
        self._ran += 1
        flush()
        if not self._has_had_enough():
            set_title(IDLE)
        self._run = None
        self.tell(Done(order.number, judged.ended, time.monotonic() - now))
        self._row.end()
        if self._ran % _BURY_EVERY == 0:
            self._dead = kin.bury(self._dead)

    def _judge(self, order: Order, run: Run) -> Judged:
        """Run a job to its end, and find out what that means."""
        allow_pickle = order.queue in self._setting.pickled
        try:
            target, body = read(run, self._setting.worker, self._served, allow_pickle=allow_pickle)
            assert run.job is not None
            if order.overran:
                run.timed_out = True
                raise JobTimeout(f"{judging.overrun(run)} {order.overran}")
            call = prepare(body, target, self._lifespan, used())
            set_title(f"bide child: {run.task_name} (job {run.claimed.id})")
            run.deadline = time.monotonic() + run.policy.timeout
            self._row.limit(run.deadline)
            if target.is_async:
                result = self._wait(self._await(call, run))
            else:
                result = copy_context().run(self._call, call, run)
            return judging.completed(run, result)
        except BaseException as error:
            return judging.raised(run, error, self._served)

    def _call(self, call: Call, run: Run) -> Any:
        """Call a plain function; a signal may end it by an exception."""
        job = run.job
        assert job is not None
        enter(job)
        try:
            signal.setitimer(signal.ITIMER_REAL, min(run.policy.timeout, _LONGEST_ALARM))
            self._interruptible = True
            if self._row.asked == self._number:
                self._asked(ASKED, None)
            return call.run(job, self._wait)
        finally:
            self._interruptible = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    async def _await(self, call: Call, run: Run) -> Any:
        """Await a coroutine function; a signal may cancel it."""
        job = run.job
        assert job is not None
        enter(job)
        self._task = asyncio.current_task()
        limit = asyncio.timeout(run.policy.timeout)
        try:
            async with limit:
                if self._row.asked == self._number:
                    self._asked(ASKED, None)
                return await call.run_async(job)
        except BaseException:  # whatever it makes of being ended
            run.timed_out = limit.expired()
            raise
        finally:
            self._task = None

    def _call_back(self, judged: Judged, run: Run) -> None:
        assert judged.callback is not None
        job = run.job or current(run, self._setting.worker)
        enter(job)
        call_back(judged.callback, self._served, job, judged.value, self._wait)

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine; the event loop is made for the first, and stays.

        `asyncio.Runner` does the same, and takes as long as a small job for it.
        """
        if self._loop is None:
            self._loop = eventloop.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        finally:
            if not task.done():  # a signal has ended the wait: not to be gone on with in the next
                task.cancel()
                with contextlib.suppress(BaseException):
                    self._loop.run_until_complete(asyncio.wait([task], timeout=GRACE))

    def listen(self) -> None:
        """Hear signals; jobs may have blocked them, or listened themselves."""
        signal.signal(signal.SIGALRM, self._time_is_over)
        signal.signal(ASKED, self._asked)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _check_self(self, run: Run) -> None:
        """End here if this process can no longer answer for its job."""
        if os.getpid() != self._pid:  # the job forked, and its copy has come back from it too
            os._exit(0)
        if any(_inode(fd) != inode for fd, inode in self._lines):
            with contextlib.suppress(Exception):
                log.error("job %s closed descriptors that are not its own", run.claimed.id)
            os._exit(1)

    def _time_is_over(self, number: int, frame: FrameType | None) -> None:
        run = self._run
        if self._interruptible and run is not None:
            self._interruptible = False
            run.timed_out = True
            raise judging.overrun(run)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        run = self._run
        if run is None or self._row.asked != self._number:
            return
        run.asked = True
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        elif self._interruptible:
            self._interruptible = False
            raise JobCancelled("The job was cancelled while it ran.")


def settle_in(parent: int) -> None:
    """Become a process of its own: a session to be killed with all that was started in it.

    What leaves the session is adopted here, so that nobody takes it for what a dead child has left.
    """
    os.setsid()
    kin.adopt_orphans()
    kin.die_with_parent()
    if os.getppid() != parent:  # it had died before
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, it would be in what it runs
    set_title(IDLE)


def _inode(fd: int) -> int:
    """What a descriptor is of; 0 for nothing."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


def flush() -> None:
    """Write out what this process has printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def be(child: Child, slot: int, row: Row) -> NoReturn:
    """Live as a child, and end without what the parent would do at its end."""
    code = 1
    try:
        code = child.live(slot, row)
    except BaseException:
        log.exception("a child broke")
    finally:
        flush()
        os._exit(code)
