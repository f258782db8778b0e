"""What a test bed does with schedules: sets those that are declared, lists them, asserts them.

Workers set the schedules that decorators declare when they start. The bed does so when a test asks,
or the schedules of all modules would fire in every test that moves the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from bide.client import config
from bide.errors import PayloadError, UsageError
from bide.model.durations import Duration, describe
from bide.model.payload.body import Body, decode_body
from bide.model.payload.signing import Seal
from bide.model.schedule import Schedule, Timing, id_of, timing_of
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.schedules import read_page, set_schedule
from bide.protocol.keys import keys_of
from bide.queue import AsyncQueue, Queue
from bide.queue.schedules import ScheduleSpec, by_name, declared
from bide.tasks.registry import task_name
from bide.tasks.task import Function
from bide.testing.expect import (
    ExpectedCall,
    Looking,
    first_of,
    in_a_row,
    known_task,
    write_call,
)


class KnownSchedule(NamedTuple):
    """A schedule: stored on the bed's server, or declared."""

    queue: str
    schedule: Schedule
    seal: Seal
    raw_body: bytes
    """Of its jobs."""
    is_stored: bool

    def body(self) -> Body:
        """The task and the arguments of its jobs.

        Raises:
            PayloadError: they cannot be read.
        """
        signed = self.seal.check("job", id_of(self.schedule.name, 0), self.raw_body)
        return decode_body(self.raw_body, allow_pickle=signed)

    def line(self, now_us: int) -> str:
        """The schedule, for people."""
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
    """What a test bed does with schedules."""

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
        """A schedule that is declared, as it would be if it were set now."""
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
    """When a schedule is to fire, if that is said, and how to say it.

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
