"""What a test holds: a server of its own, a clock it can move, and a worker it can run."""

from __future__ import annotations

import atexit
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from datetime import datetime
from typing import Final, Self

from bide.client import blocking, config
from bide.embedded import Server
from bide.errors import UsageError
from bide.model.durations import Duration, at_to_us, from_us, is_whole, to_us
from bide.model.job import State
from bide.protocol.scripts import SHARED_CLOCK
from bide.queue.binding import _task_queues
from bide.queue.core import leave_overridden
from bide.queue.schedules import _declared
from bide.tasks.middleware import in_use
from bide.tasks.registry import _resources
from bide.tasks.task import _registered
from bide.testing.expect import JobSeen, Store
from bide.testing.runner import (
    AsyncRunner,
    Everything,
    Runner,
    Work,
    is_in_loop,
    run_job,
)
from bide.testing.schedules import BedSchedules

_server_lock = threading.Lock()
_server: Server | None = None


def url() -> str:
    """The server's address.

    Each process has a server of its own, so that tests may run in several (pytest-xdist).

    Raises:
        ServerNotFound: there is none to start; the message says how to get one.
        ServerError: it did not start.
    """
    global _server
    with _server_lock:
        if _server is None:
            _server = Server.start()
            atexit.register(_server.stop)
        return _server.url


LIMIT: Final = 1_000
"""Runs in one `run()`; more are taken for a task that enqueues itself without end."""

_lock = threading.Lock()
_opened: TestBed | None = None


class TestBed(BedSchedules):
    """While it is open, every queue of the process is on the tests' own server.

    This includes queues that were created before, also queues with their own URL and prefix. Each
    bed has a prefix of its own, so it starts empty. Its clock advances as usual, and also when the
    test moves it. Blocking and async tests may call its methods.
    """

    __test__ = False  # pytest takes classes named Test... for tests

    def __init__(self, url: str) -> None:
        prefix = f"test-{secrets.token_hex(6)}"
        super().__init__(prefix, blocking.Client(url, clock=SHARED_CLOCK), Store(url, prefix))
        self.url: Final = url
        """The server."""
        self._exit = ExitStack()
        self._is_open = False
        self._runs = False

    def __enter__(self) -> Self:
        global _opened
        with _lock:
            if _opened is not None:
                raise UsageError(
                    "A test bed is open in this process already, and two would pull its queues to "
                    "and fro; use the one that is open, or close it first."
                )
            _opened = self
        self._opened_at = time.monotonic()
        self._is_open = True
        override = config.override(url=self.url, prefix=self.prefix, clock=SHARED_CLOCK)
        self._exit.enter_context(override)
        return self

    def __exit__(self, *exc: object) -> None:
        global _opened
        self._exit.close()
        leave_overridden()
        self._is_open = False
        self._client.close()
        self._store.wipe()
        with _lock:
            _opened = None

    # -- the clock

    def now(self) -> datetime:
        """Return the time on the bed's clock."""
        self._check()
        return from_us(self._store.now_us())

    def advance(self, by: Duration) -> None:
        """Move the clock of all queues forward.

        No job runs, but waiting workers wake up. Schedules whose time has come create their jobs,
        and expired jobs are cancelled, as when a worker claims.

        Args:
            by: `"30m"`, seconds, or a `timedelta`.

        Raises:
            UsageError: it is not a duration, or is negative.
        """
        self._check()
        self._store.advance(to_us(by, "by"))
        if not self._runs:
            work = Work(self._client, self._store, self.prefix, None, 0)
            work.look()
            work.leave()

    # -- running

    def run(
        self,
        *,
        until: Duration | datetime | None = None,
        raise_failures: bool = True,
        limit: int = LIMIT,
    ) -> list[JobSeen]:
        """Run all jobs that are due, also those that they enqueue, until none is left.

        Jobs run one at a time, in the order in which they are due: plain functions in the calling
        thread, coroutines in an event loop of this call. Resources are open during the call.
        Meanwhile the bed's clock stands still, so that a job takes no time: an hour after an hour
        is two hours. Jobs that a limit or a pause holds back are not due.

        Args:
            until: also move the clock, from one due time to the next, for this duration or until
                this moment. Without it, delayed jobs stay delayed..
            raise_failures: raise if a job has failed for good. If False, check the returned jobs. A
                job that will be retried has not failed.
            limit: maximum number of runs.

        Returns:
            The jobs that ran, each as it was after its run; a retried job once for each run.

        Raises:
            JobFailed: a job has failed for good; its error is the cause. Jobs that ran before have
                their outcomes, the others are still enqueued.
            UsageError: an event loop runs in this thread, or the limit was reached.
        """
        __tracebackhide__ = True
        if is_in_loop():
            raise UsageError("An event loop runs here: write `await bed.arun()` instead of run().")
        work = self._begin(until, limit)
        runner = Runner()
        try:
            return runner.play(_run_all(work, runner, raise_failures))
        finally:
            runner.close()
            self._end(work)

    async def arun(
        self,
        *,
        until: Duration | datetime | None = None,
        raise_failures: bool = True,
        limit: int = LIMIT,
    ) -> list[JobSeen]:
        """`run`, in the event loop that runs now: coroutines in it, plain functions in threads."""
        __tracebackhide__ = True
        work = self._begin(until, limit)
        runner = AsyncRunner()
        try:
            return await _run_all(work, runner, raise_failures)
        finally:
            await runner.close()
            self._end(work)

    def _begin(self, until: Duration | datetime | None, limit: int) -> Work:
        self._check()
        until_us = None
        if isinstance(until, datetime):
            until_us = at_to_us(until)
        elif until is not None:
            until_us = to_us(until, "until")
        if not is_whole(limit, 1):
            raise UsageError(f"limit must be a whole number, 1 or more, not {limit!r}.")
        if self._runs:
            raise UsageError("run() is under way; what its jobs enqueue runs in it without a call.")
        self._runs = True
        self._store.hold()
        if until_us is not None and not isinstance(until, datetime):
            until_us += self._store.now_us()
        return Work(self._client, self._store, self.prefix, until_us, limit)

    def _end(self, work: Work) -> None:
        self._runs = False
        self._store.release()
        work.leave()

    def _check(self) -> None:
        if not self._is_open:
            raise UsageError(
                "This test bed is not open: `with bide.testing.start() as bed:`, or the fixture "
                "`bide_test`, holds it open for a test."
            )


async def _run_all(work: Work, runner: Runner | AsyncRunner, raise_failures: bool) -> list[JobSeen]:
    __tracebackhide__ = True
    served = Everything()
    while (run := work.next()) is not None:
        if not work.seen:
            await runner.wait(copy_context(), runner.inner.open())
        job_run = await run_job(run, served, runner)
        seen = work.settle(run, job_run)
        if raise_failures and seen is not None and seen.status is State.FAILED:
            raise seen.failure()
    return work.seen


def start() -> TestBed:
    """Return a test bed, to be opened: `with bide.testing.start() as bed:`.

    The first test bed of a process starts a server, which all test beds of the process share. The
    server ends with the process.

    Raises:
        ServerNotFound: there is no server to start; the message says how to get one.
    """
    return TestBed(url())


@contextmanager
def isolated_registry() -> Iterator[None]:
    """Remove at the end the tasks, schedules, resources and middlewares registered inside.

    Earlier registrations can be used inside, and are restored at the end.
    """
    tasks, schedules = dict(_registered), dict(_declared)
    resources, middlewares = list(_resources), list(in_use)
    task_queues = {task_queue: dict(names) for task_queue, names in _task_queues.items()}
    try:
        yield
    finally:
        _registered.clear()
        _registered.update(tasks)
        _declared.clear()
        _declared.update(schedules)
        _task_queues.clear()
        _task_queues.update(task_queues)
        _resources[:] = resources
        in_use[:] = middlewares
