"""What a test holds: a server of its own, a clock it can move, and a worker it can run."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Final, Self

from bide import config, sync
from bide.clock import Duration, at_to_us, from_us, to_us
from bide.errors import UsageError
from bide.keys import Keys, keys_of
from bide.naming import task_name
from bide.ops import inspect, registry
from bide.payload.signing import Seal
from bide.queue import AsyncQueue, Queue
from bide.queue.core import leave_overridden
from bide.script import SHARED_CLOCK
from bide.states import State
from bide.task import Function
from bide.testing import server
from bide.testing.expect import Due, Expected, listing, words_for
from bide.testing.perform import Everything, perform
from bide.testing.seen import JobSeen
from bide.testing.stage import AsyncStage, Stage, is_in_loop
from bide.testing.store import Store
from bide.testing.work import Work

LIMIT: Final = 1_000
"""Runs in one `run()`; more are taken for a task that enqueues itself without end."""

_lock = threading.Lock()
_opened: TestBed | None = None


class TestBed:
    """While it is open, every queue of the process is on a server of the tests' own.

    That holds for queues made before, also for those with a URL and a prefix of their own. The bed
    has a prefix of its own, so each begins empty, and a clock that moves when the test says so, and
    besides goes on as clocks do. Its methods may be called in blocking and in async tests alike.
    """

    __test__ = False  # pytest takes classes named Test... for tests

    def __init__(self, url: str) -> None:
        self.url: Final = url
        """The server."""
        self.prefix: Final = f"test-{secrets.token_hex(6)}"
        """What all keys begin with."""
        self._store = Store(url, self.prefix)
        self._client = sync.Client(url, clock=SHARED_CLOCK)
        self._exit = ExitStack()
        self._opened_at = 0.0
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
        """What time it is on the bed's clock."""
        self._check()
        return from_us(self._store.now_us())

    def advance(self, by: Duration) -> None:
        """Move the clock of all queues forward; it runs nothing, but workers that wait notice.

        Args:
            by: `"30m"`, seconds, or a `timedelta`.

        Raises:
            UsageError: it is not a duration; time does not run backward.
        """
        self._check()
        self._store.advance(to_us(by, "by"))

    # -- running

    def run(
        self,
        *,
        until: Duration | datetime | None = None,
        raise_failures: bool = True,
        limit: int = LIMIT,
    ) -> list[JobSeen]:
        """Run all jobs that are due, also those that they enqueue, until none is left.

        Jobs run one at a time, in the order in which they are due; plain functions in the calling
        thread, coroutines in an event loop that lasts as long as this call. Resources are open
        that long, too. Meanwhile the bed's clock stands still, so that a job takes no time: an
        hour after an hour is two hours.

        Args:
            until: move the clock on as well, from one due time to the next, for this long or until
                this moment; without it, what is delayed stays.
            raise_failures: raise when a job has failed for good; else look at what is returned. A
                job that will be retried has not failed.
            limit: how many runs at most.

        Returns:
            The jobs that ran, each as it was after its run; one that was retried, once a run.

        Raises:
            JobFailed: a job has failed for good; what it raised is the cause. What had been run is
                settled, the rest is still enqueued.
            UsageError: an event loop runs in this thread; or there was more to do than the limit.
        """
        __tracebackhide__ = True
        if is_in_loop():
            raise UsageError("An event loop runs here: write `await bed.arun()` instead of run().")
        work = self._begin(until, limit)
        stage, served = Stage(), Everything()
        try:
            while (run := work.next()) is not None:
                if not work.seen:
                    stage.open()
                performed = stage.play(perform(run, served, stage))
                self._judge(work.settle(run, performed), raise_failures)
            return work.seen
        finally:
            stage.close()
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
        stage, served = AsyncStage(), Everything()
        try:
            while (run := work.next()) is not None:
                if not work.seen:
                    await stage.open()
                performed = await stage.play(perform(run, served, stage))
                self._judge(work.settle(run, performed), raise_failures)
            return work.seen
        finally:
            await stage.close()
            self._end(work)

    def _begin(self, until: Duration | datetime | None, limit: int) -> Work:
        self._check()
        until_us = None
        if isinstance(until, datetime):
            until_us = at_to_us(until)
        elif until is not None:
            until_us = to_us(until, "until")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise UsageError(f"limit must be a whole number, 1 or more, not {limit!r}.")
        if self._runs:
            raise UsageError("run() is under way; what its jobs enqueue runs in it without a call.")
        self._runs = True
        self._store.hold()
        if until_us is not None and not isinstance(until, datetime):
            until_us += self._store.now_us()
        return Work(self._client, self._store, self.prefix, until_us, limit)

    def _judge(self, seen: JobSeen | None, raise_failures: bool) -> None:
        __tracebackhide__ = True
        if raise_failures and seen is not None and seen.status is State.FAILED:
            raise seen.failure()

    def _end(self, work: Work) -> None:
        self._runs = False
        self._store.release()
        work.leave()

    # -- looking

    def enqueued(self, task: Function | str | None = None) -> list[JobSeen]:
        """The jobs that are delayed or waiting, in the order in which they are due.

        Args:
            task: only those of this task, given as to `enqueue`.
        """
        self._check()
        name = None if task is None else task_name(task)
        found: list[JobSeen] = []
        for queue in self._client.run(registry.queues(keys_of(None, self.prefix))):
            keys = keys_of(queue, self.prefix)
            seal = Seal(config.signing_keys(), keys)
            # In this order, one that becomes due meanwhile is seen twice rather than never.
            ids = [*self._ids(keys, State.DELAYED), *self._ids(keys, State.WAITING)]
            ids = list(dict.fromkeys(ids))
            for snapshots in self._client.run_many(inspect.fetch_many(keys, ids)):
                found += [JobSeen(seal, snapshot) for snapshot in snapshots if snapshot]
        jobs = [job for job in found if name is None or job.task == name]
        return sorted(jobs, key=lambda job: (job.due_us, job.id))

    def _ids(self, keys: Keys, state: State) -> list[str]:
        ids: list[str] = []
        while len(ids) % inspect.MAX_PAGE == 0:
            page = self._client.run(inspect.listing(keys, state, len(ids), inspect.MAX_PAGE))
            if not page:
                break
            ids += page
        return ids

    def assert_enqueued(
        self,
        task: Function | str,
        /,
        *args: Any,
        delay: Duration | None = None,
        at: datetime | None = None,
        within: Duration = 1,
        queue: Queue | AsyncQueue | str | None = None,
        count: int | None = None,
        **kwargs: Any,
    ) -> JobSeen:
        """See that a job is delayed or waiting.

        Args:
            task: the task, given as to `enqueue`.
            args: its arguments; with none at all, whatever they are.
            delay: how long from now it is due, on the bed's clock.
            at: when it is due.
            within: how far off the due time may be. The time that the test has taken so far is
                made allowance for.
            queue: the queue, or its name.
            count: how many such jobs there must be; without it, at least one.
            kwargs: its arguments by name.

        Returns:
            The job; of several, the one that is due first.

        Raises:
            AssertionError: there is none, or not so many; the message shows what there is.
            UsageError: there can be no such job.
        """
        __tracebackhide__ = True
        if count is not None and (isinstance(count, bool) or count < 1):
            raise UsageError(
                f"count must be 1 or more, not {count!r}; none is asserted by assert_not_enqueued."
            )
        expected, found = self._find(task, args, kwargs, delay, at, within, queue)
        if not found or count not in (None, len(found)):
            what = f"No job {expected} is enqueued"
            if found:
                are = "job is" if len(found) == 1 else "jobs are"
                what = f"{len(found)} {are} {expected} where there should be {count}"
            raise AssertionError(f"{what}.\n{self._listing()}")
        return found[0]

    def assert_not_enqueued(
        self,
        task: Function | str,
        /,
        *args: Any,
        delay: Duration | None = None,
        at: datetime | None = None,
        within: Duration = 1,
        queue: Queue | AsyncQueue | str | None = None,
        **kwargs: Any,
    ) -> None:
        """See that no such job is delayed or waiting; arguments as for `assert_enqueued`.

        Raises:
            AssertionError: there is one; the message shows what there is.
            UsageError: there can be no such job.
        """
        __tracebackhide__ = True
        expected, found = self._find(task, args, kwargs, delay, at, within, queue)
        if found:
            raise AssertionError(f"{expected} is enqueued.\n{self._listing()}")

    def _find(
        self,
        task: Function | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        delay: Duration | None,
        at: datetime | None,
        within: Duration,
        queue: Queue | AsyncQueue | str | None,
    ) -> tuple[Expected, list[JobSeen]]:
        name = queue.name if isinstance(queue, Queue | AsyncQueue) else queue
        jobs = self.enqueued(task)
        expected = Expected(task, args, kwargs, self._due(delay, at, within), name)
        return expected, [job for job in jobs if expected.fits(job)]

    def _due(self, delay: Duration | None, at: datetime | None, within: Duration) -> Due | None:
        within_us = to_us(within, "within")
        if delay is not None and at is not None:
            raise UsageError("Give either delay= or at=, not both.")
        if at is not None:
            at_us = at_to_us(at)
            return Due(at_us - within_us, at_us + within_us, f"due at {at.isoformat()}")
        if delay is None:
            return None
        delay_us = to_us(delay)
        due_us = self._store.now_us() + delay_us
        first_us = due_us - within_us - self._taken_us()
        return Due(first_us, due_us + within_us, words_for(delay_us))

    def _taken_us(self) -> int:
        """How long this test has taken so far, as other clocks have it."""
        return round((time.monotonic() - self._opened_at) * 1e6)

    def _listing(self) -> str:
        return listing(self.enqueued(), self._store.now_us())

    def _check(self) -> None:
        if not self._is_open:
            raise UsageError(
                "This test bed is not open: `with bide.testing.start() as bed:`, or the fixture "
                "`bide_test`, holds it open for a test."
            )


def start() -> TestBed:
    """A test bed, to be opened: `with bide.testing.start() as bed:`.

    The first of a process starts the server, the same one for all, which ends with the process.

    Raises:
        ServerNotFound: there is no server to start; the message says how to get one.
    """
    return TestBed(server.url())
