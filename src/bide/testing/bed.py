"""The test bed: a server for tests, a clock that a test moves, and a worker that it runs.

Workers set declared schedules when they start. The bed sets them only when a test asks for it.
Otherwise the schedules of all modules would fire in every test that moves the clock.
"""

from __future__ import annotations

import atexit
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

from bide.client import blocking, config
from bide.embedded import Server
from bide.errors import PayloadError, UsageError
from bide.model.durations import (
    SECOND_US,
    Duration,
    at_to_us,
    describe,
    from_us,
    is_whole,
    to_us,
)
from bide.model.job import State
from bide.model.payload.body import Body, decode_body
from bide.model.payload.signing import Seal
from bide.model.schedule import Schedule, Timing, id_of, timing_of
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.schedules import read_page, set_schedule
from bide.protocol.keys import keys_of
from bide.protocol.scripts import SHARED_CLOCK
from bide.queue import AsyncQueue, Queue
from bide.queue.binding import _task_queues, leave_overridden
from bide.queue.schedules import ScheduleSpec, _declared, by_name, declared
from bide.tasks.middleware import in_use
from bide.tasks.registry import _resources, task_name
from bide.tasks.task import Function, _registered
from bide.testing.expect import (
    ExpectedCall,
    JobSeen,
    Looking,
    Store,
    first_of,
    in_a_row,
    known_task,
    write_call,
)
from bide.testing.runner import (
    AsyncRunner,
    Everything,
    Runner,
    Work,
    is_in_loop,
    run_job,
)


class KnownSchedule(NamedTuple):
    """A schedule: stored on the bed's server, or declared."""

    queue: str
    schedule: Schedule
    seal: Seal
    raw_body: bytes
    """The stored body of its jobs."""
    is_stored: bool

    def body(self) -> Body:
        """Decode the task and the arguments of its jobs.

        Raises:
            PayloadError: they cannot be read.
        """
        signed = self.seal.check("job", id_of(self.schedule.name, 0), self.raw_body)
        return decode_body(self.raw_body, allow_pickle=signed)

    def line(self, now_us: int) -> str:
        """Describe the schedule for people."""
        schedule = self.schedule
        try:
            call = write_call(self.body())
        except PayloadError:
            call = f"{schedule.task}, unreadable"
        if schedule.paused or schedule.over:
            stands = "paused" if schedule.paused else "over"
        else:
            next_us = next(schedule.firing(), now_us)
            stands = f"next in {describe(max(0, next_us - now_us) / 1e6)}"
        stored = "stored" if self.is_stored else "declared"
        return f"  {schedule.name}: {call}, {schedule.when}, {stands}, on {self.queue}, {stored}"


class BedSchedules(Looking):
    """The methods of a test bed for schedules."""

    def set_schedules(self, *tasks: Function | str) -> list[Schedule]:
        """Set the schedules that decorators declare, as a worker does when it starts.

        From then on they fire when the clock passes their times: `run(until=...)`.

        Args:
            tasks: only the schedules of these tasks; without any, all schedules of the modules
                that this process has imported.

        Returns:
            The schedules, sorted by name.

        Raises:
            UsageError: a task has no declared schedule, or no schedule is declared at all.
            PayloadError: the arguments of a schedule cannot be stored.
        """
        self._check()
        names = [task_name(known_task(task)) for task in tasks]
        plans = declared()
        known = {task_name(plan.task) for plan in plans}
        for name in names:
            if name not in known:
                raise UsageError(
                    f"No @queue.cron or @queue.every declares a schedule of {name} (declared: "
                    f"{', '.join(sorted(known)) or 'none'}); decorate it, or call "
                    "queue.schedules.upsert() in the test."
                )
        if not plans:
            raise UsageError(
                "No module that is imported here declares a schedule; import the module that has "
                "the @queue.cron or @queue.every."
            )
        wanted = [plan for plan in plans if not names or task_name(plan.task) in names]
        return self._set(wanted)

    def schedules(self, task: Function | str | None = None) -> list[Schedule]:
        """Return the stored schedules and the schedules that decorators declare, sorted by name.

        A schedule that is declared and not set is returned as if it were set now.

        Args:
            task: only the schedules of this task.
        """
        return [seen.schedule for seen in self._schedules(task)]

    def assert_scheduled(
        self,
        task: Function | str,
        /,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        at: Sequence[datetime] | None = None,
        name: str | None = None,
        queue: Queue | AsyncQueue | str | None = None,
    ) -> Schedule:
        """Assert that a schedule of a task is stored, or that a decorator declares one.

        Args:
            task: the task, as `enqueue` takes it.
            args: the arguments of its jobs; without `args` and `kwargs`, all arguments match.
            kwargs: the arguments by name.
            cron: the expression.
            tz: the time zone of the expression; by default all time zones match.
            every: the interval.
            at: the moments.
            name: the schedule's name.
            queue: the queue, or its name.

        Returns:
            The schedule; `upcoming()` returns its next times. If there are several, the first by
            name.

        Raises:
            AssertionError: there is no such schedule; the message lists all schedules.
            UsageError: no such schedule can exist.
        """
        __tracebackhide__ = True
        words, found = self._find_schedules(task, args, kwargs, (cron, tz, every, at), name, queue)
        if not found:
            raise AssertionError(f"No schedule of {words} is there.\n{self._all_schedules()}")
        return found[0].schedule

    def assert_not_scheduled(
        self,
        task: Function | str,
        /,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        at: Sequence[datetime] | None = None,
        name: str | None = None,
        queue: Queue | AsyncQueue | str | None = None,
    ) -> None:
        """Assert that there is no such schedule; arguments as for `assert_scheduled`.

        Raises:
            AssertionError: there is such a schedule; the message lists all schedules.
            UsageError: no such schedule can exist.
        """
        __tracebackhide__ = True
        words, found = self._find_schedules(task, args, kwargs, (cron, tz, every, at), name, queue)
        if found:
            raise AssertionError(f"A schedule of {words} is there.\n{self._all_schedules()}")

    def _find_schedules(
        self,
        task: Function | str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        when: tuple[str | None, str | None, Duration | None, Sequence[datetime] | None],
        name: str | None,
        queue: Queue | AsyncQueue | str | None,
    ) -> tuple[str, list[KnownSchedule]]:
        if isinstance(args, str | bytes):
            raise UsageError(f"args must be a list or tuple, not {args!r}; write args=[{args!r}].")
        is_any = args is None and kwargs is None
        call = ExpectedCall(known_task(task), args or (), kwargs or {}, is_any)
        on = queue.name if isinstance(queue, Queue | AsyncQueue) else queue
        timing, words = _timing(*when)
        found = [
            seen
            for seen in self._schedules(task)
            if name in (None, seen.schedule.name)
            and on in (None, seen.queue)
            and _fits(seen.schedule.timing, timing, when[1])
            and call.fits(seen.body)
        ]
        named = f"named {name!r}" if name is not None else ""
        return in_a_row(str(call), words, named, f"on {on}" if on is not None else ""), found

    def _schedules(self, task: Function | str | None = None) -> list[KnownSchedule]:
        self._check()
        name = None if task is None else task_name(known_task(task))
        found = self._stored()
        known = {(seen.queue, seen.schedule.name) for seen in found}
        found += [
            self._foreseen(plan)
            for plan in declared()
            if (plan.queue.name, plan.name) not in known and name in (None, task_name(plan.task))
        ]
        wanted = [seen for seen in found if name in (None, seen.schedule.task)]
        return sorted(wanted, key=lambda seen: (seen.schedule.name, seen.queue))

    def _stored(self) -> list[KnownSchedule]:
        found = []
        for keys in self._queues():
            pages = [self._client.run(read_page(keys, "0"))]
            while pages[-1].cursor != "0":
                pages.append(self._client.run(read_page(keys, pages[-1].cursor)))
            seal = Seal(config.signing_keys(), keys)
            for schedule in by_name(pages):
                body = self._store.scheduled(keys, schedule.name)
                found.append(KnownSchedule(keys.queue or "", schedule, seal, body, True))
        return found

    def _foreseen(self, plan: ScheduleSpec) -> KnownSchedule:
        """Return a declared schedule as if it were set now."""
        keys = keys_of(plan.queue.name, self.prefix)
        seal = Seal(config.signing_keys(), keys)
        draft = plan.draft(keys, seal)
        schedule = Schedule(
            name=draft.name,
            task=draft.task,
            timing=Timing(),
            priority=draft.priority,
            jitter_us=draft.jitter_us,
            missed=draft.missed,
            paused=False,
            fired=0,
            last_us=0,
            times=(),
            seen_us=0,
            version=0,
            closed=False,
        ).foreseen(draft.timing, self._store.now_us())
        return KnownSchedule(plan.queue.name, schedule, seal, draft.body, False)

    def _set(self, plans: Sequence[ScheduleSpec]) -> list[Schedule]:
        found = []
        for plan in plans:
            keys = keys_of(plan.queue.name, self.prefix)
            draft = plan.draft(keys, Seal(config.signing_keys(), keys))
            found.append(self._client.run(set_schedule(keys, draft)).schedule)
        queues = list(dict.fromkeys(plan.queue.name for plan in plans))
        self._client.run(queue_commands.register_queues(keys_of(None, self.prefix), queues))
        schedules = [schedule for schedule in found if schedule is not None]
        return sorted(schedules, key=lambda schedule: schedule.name)

    def _all_schedules(self) -> str:
        schedules, now_us = self._schedules(), self._store.now_us()
        if not schedules:
            return "No schedule is declared or stored."
        return "\n".join(["Schedules:", *first_of(schedules, lambda seen: seen.line(now_us))])


def _timing(
    cron: str | None, tz: str | None, every: Duration | None, at: Sequence[datetime] | None
) -> tuple[Timing | None, str]:
    """Return the expected times of a schedule, if any, and their description.

    Raises:
        UsageError: two of `cron`, `every` and `at` are given, or one of them is invalid.
    """
    if (cron, tz, every, at) == (None, None, None, None):
        return None, ""
    timing = timing_of(cron, every, at, tz, None, None, None)
    if timing.cron:
        return timing, timing.cron if tz is None else f"{timing.cron} {timing.tz}"
    if timing.every_us:
        return timing, f"every {describe(timing.every_us / 1e6)}"
    return timing, f"at {len(timing.at_us)} moment{'s'[: len(timing.at_us) != 1]}"


def _fits(timing: Timing, wanted: Timing | None, tz: str | None) -> bool:
    if wanted is None:
        return True
    if (timing.cron, timing.every_us, timing.at_us) != (wanted.cron, wanted.every_us, wanted.at_us):
        return False
    return tz is None or timing.tz == wanted.tz


_server_lock = threading.Lock()
_server: Server | None = None


def url() -> str:
    """Return the URL of the tests' server.

    Each process has a server of its own, so that tests may run in several (pytest-xdist).

    Raises:
        ServerNotFound: there is no server to start; the message says how to get one.
        ServerError: it did not start.
    """
    global _server
    with _server_lock:
        if _server is None or _server._has_died:
            _server = Server.start()
            atexit.register(_server.stop)
        return _server.url


LIMIT: Final = 1_000
"""Maximum runs in one `run()`, to detect a task that enqueues itself without end."""

_lock = threading.Lock()
_opened: TestBed | None = None


class TestBed(BedSchedules):
    """A test bed: while it is open, every queue of the process uses the tests' own server.

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
                    "A test bed is open in this process already, and two would compete for its "
                    "queues; use the one that is open, or close it first."
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
        try:
            self._client.close()
            self._store.wipe()
        finally:
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
                this moment. Without it, delayed jobs stay delayed.
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
            until_us = at_to_us(until, "until")
            if until_us < self._store.now_us() - 60 * SECOND_US:
                raise UsageError(
                    f"until={until.isoformat()} has passed: it is {self.now().isoformat()} on the "
                    "bed's clock, which only moves forward."
                )
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
        try:
            if not work.seen:
                await runner.wait(copy_context(), runner.inner.open())
            job_run = await run_job(run, served, runner)
        except Exception:  # a resource cannot be opened
            work.release(run)
            raise
        seen = work.settle(run, job_run)
        if raise_failures and seen is not None and seen.state is State.FAILED:
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
