"""A child: runs jobs in its main thread, one after another, until it is told or due to end.

It takes a job when it is free to, so nothing waits behind another. Before anything of the job's own
happens, its row of the table says which it is and when its time is over. A signal ends a job that
takes too long, or that was asked to end, by an exception in it; where that does not help, the
worker kills the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from contextvars import copy_context
from types import FrameType
from typing import Any, Final, NoReturn

from bide.current import enter
from bide.errors import BideError, JobCancelled
from bide.middleware import used
from bide.ops.consume import Said as Note
from bide.resource import resources
from bide.task import Served
from bide.worker import eventloop, judging
from bide.worker.calling import Call, call_back, prepare
from bide.worker.judging import Judged
from bide.worker.leases import GRACE
from bide.worker.lifespan import Lifespan
from bide.worker.processes.kin import die_with_parent, rss
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

ASKED: Final = signal.SIGUSR1
"""Tells a child to look whether its job was asked to end."""

_LOOK_EVERY: Final = 64


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
        self,
        slot: int,
        row: Row,
        orders: socket.socket,
        replies: socket.socket,
        served: Served,
        setting: Setting,
        parent: int,
    ) -> None:
        self._slot = slot
        self._parent = parent
        self._row = row
        self._orders = Reader(orders)
        self._replies = replies
        self._served = served
        self._setting = setting
        self._lifespan = Lifespan()
        self._runner: asyncio.Runner | None = None
        self._run: Run | None = None
        self._number = 0
        self._interruptible = False
        self._task: asyncio.Task[Any] | None = None
        self._ran = 0

    def live(self) -> int:
        """Take jobs until there are none for this child any more; how it ends."""
        _settle_in(self._parent)
        set_title("bide child: idle")
        signal.signal(signal.SIGALRM, self._time_is_over)
        signal.signal(ASKED, self._asked)
        if resources():
            try:
                self._wait(self._lifespan.open())
            except BaseException as error:
                log.exception("a child cannot begin")
                self.tell(Broken(self._slot, f"{type(error).__name__}: {error}"))
                os._exit(1)
        self.tell(Ready(self._slot))
        try:
            while not self._has_had_enough():
                message = self._orders.read()
                if message is None:
                    return ENDED
                self._serve(decode_order(message))
            return RETIRED
        finally:
            if self._runner is not None:
                self._wait(self._lifespan.close())
                with contextlib.suppress(Exception):
                    self._runner.close()

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
        return setting.max_rss is not None and self._ran > 0 and rss(os.getpid()) > setting.max_rss

    def _serve(self, order: Order) -> None:
        now = time.monotonic()
        self._row.begin(order.number, now)
        self._number = order.number
        mouth: Any = Mouth(order.queue, self, order.number)
        self._run = run = Run(mouth, order.claimed, order.claimed_at, lambda: None)
        judged = self._judge(order, run)
        run.decide(judged.ended)
        if judged.callback is not None:
            self.tell(Decided(order.number, judged.ended))
            self._row.limit(max(run.deadline, time.monotonic()) + GRACE)
            job = run.job or current(run, self._setting.worker)
            call_back(judged.callback, self._served, job, judged.value, self._wait)
        self._ran += 1
        _flush()
        set_title("bide child: idle")
        self._run = None
        self._row.end()
        self.tell(Done(order.number, judged.ended, time.monotonic() - now))

    def _judge(self, order: Order, run: Run) -> Judged:
        """Run a job to its end, and find out what that means."""
        pickled = self._setting.pickled
        try:
            target, body = read(
                run,
                self._setting.worker,
                self._served,
                allow_pickle=pickled is None or order.queue in pickled,
            )
            if order.overran:
                run.timed_out = True
                raise judging.overrun(run)
            call = prepare(body, target, self._lifespan, used())
        except BideError as error:
            return judging.raised(run, error, self._served)
        assert run.job is not None
        set_title(f"bide child: {run.task_name} (job {run.claimed.id})")
        run.deadline = time.monotonic() + run.policy.timeout
        self._row.limit(run.deadline)
        try:
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
            signal.setitimer(signal.ITIMER_REAL, run.policy.timeout)
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
        try:
            async with asyncio.timeout(run.policy.timeout) as limit:
                if self._row.asked == self._number:
                    self._asked(ASKED, None)
                return await call.run_async(job)
        except TimeoutError:
            run.timed_out = limit.expired()
            raise
        finally:
            self._task = None

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine; the event loop is made for the first, and stays."""
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=eventloop.new_event_loop)
        return self._runner.run(coroutine)

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


def _settle_in(parent: int) -> None:
    """Become a process of its own: a session to be killed with all that was started in it."""
    os.setsid()
    die_with_parent()
    if os.getppid() != parent:  # it had died before
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    random.seed()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def be(child: Child) -> NoReturn:
    """Live as a child, and end without what the parent would do at its end."""
    code = 1
    try:
        code = child.live()
    except BaseException:
        log.exception("a child broke")
    finally:
        _flush()
        os._exit(code)
