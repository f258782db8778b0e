"""The groups of a queue, for code that blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from bide.model.durations import Duration
from bide.model.ids import check_name, new_id
from bide.model.options import GroupSettings, ScheduleOptions
from bide.model.schedule import Missed, Schedule, check_schedule_name, id_of
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as ops
from bide.protocol.commands.queues import GroupCounts
from bide.queue._sync.job import Job
from bide.queue.core import settings_call
from bide.queue.schedules import Declaring, by_name, found, plan, ran
from bide.queue.task import Task, TaskDecorator
from bide.tasks.task import Function

if TYPE_CHECKING:
    from bide.queue._sync.queue import Queue


class Group:
    """One group of a queue's jobs, which run one at a time; `queue.group(name)`."""

    def __init__(self, queue: Queue, name: str) -> None:
        """Name a group; nothing is sent.

        Raises:
            UsageError: nothing can have that name.
        """
        self.queue: Final = queue
        self.name: Final = check_name(name, "group")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.queue.name}>"

    def configure(self, **settings: Unpack[GroupSettings]) -> None:
        """Say how the group's jobs run, whatever they ask for; what is not given stays as it is.

        Args:
            settings: see `bide.GroupSettings`.

        Raises:
            UsageError: one cannot be meant, or none is given.
        """
        self.queue._run(settings_call(self.queue.keys, self.name, settings))

    def pause(self) -> None:
        """Let no job of the group begin; those that run go on."""
        self.queue._run(queue_commands.configure(self.queue.keys, self.name, paused=True))

    def resume(self) -> None:
        """Let jobs of the group begin again."""
        self.queue._run(queue_commands.configure(self.queue.keys, self.name, paused=False))

    def counts(self) -> GroupCounts:
        """How many of its jobs wait or run, and how they may run."""
        return self.queue._run(queue_commands.counts(self.queue.keys, self.name))


class Grouping:
    """What a queue does with groups."""

    def group(self, name: str) -> Group:
        """The group of that name, whether it has jobs or not.

        Raises:
            UsageError: nothing can have that name.
        """
        return Group(cast("Queue", self), name)

    def groups(self) -> list[GroupCounts]:
        """The groups that have jobs, or are configured or paused, by name."""
        queue = cast("Queue", self)
        found: dict[str, GroupCounts] = {}
        cursor = None
        while cursor != queue_commands.BEGIN:
            page = queue._run(queue_commands.page(queue.keys, cursor or queue_commands.BEGIN))
            cursor = page.cursor
            found |= {one.name: one for one in page.groups}
        return [found[name] for name in sorted(found)]


class Schedules:
    """The schedules of a queue, stored on its server; `queue.schedules`."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def upsert(
        self,
        name: str,
        task: Function | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        at: Sequence[datetime] | None = None,
        tz: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        missed: Missed = "once",
        jitter: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Set a schedule: the one of this name, whether it is there or not.

        One that fires when it did before keeps its next time, and how often it has fired, whatever
        else is said of it now; so a program may set its schedules each time it starts. One that
        fires at other times begins anew. Times that have passed by now are not made up for.

        Args:
            name: of the schedule, of 100 bytes at most.
            task: what its jobs call, as for `enqueue_call`.
            args: positional arguments.
            kwargs: keyword arguments.
            cron: an expression of five fields, such as `"0 9 * * 1-5"`.
            every: an interval, of 10 ms or more; the first time is one from now, or `start`.
            at: a list of moments, 100 at most.
            tz: the time zone of `cron`, such as `"Europe/Paris"`; UTC by default.
            start: before which it does not fire.
            end: after which it does not fire.
            limit: how often it fires at most.
            missed: what becomes of times that pass while no worker looks: `"once"`: the last of
                them is made up for; `"all"`: each is; `"skip"`: none that passed more than a minute
                ago.
            jitter: how much later than its time a job may be due at most; how much it is, follows
                from the schedule's name and the time.
            options: of its jobs, see `bide.ScheduleOptions`.

        Raises:
            UsageError: something cannot be meant: no or two of `cron`, `every` and `at`, an
                expression that never fires, a delay queue.
            PayloadError: the arguments do not fit the serializer, or take more than a megabyte.
            ServerFull: the server takes no more; nothing was changed.
        """
        here = self._queue._binding
        planned = plan(
            self._queue,
            name,
            task,
            args,
            kwargs,
            options,
            cron=cron,
            every=every,
            at=at,
            tz=tz,
            start=start,
            end=end,
            limit=limit,
            missed=missed,
            jitter=jitter,
        )
        draft = planned.draft(here.keys, here.seal)
        reply = here.client.run(ops.set_schedule(here.keys, draft))
        if here.makes_known:
            here.client.run(queue_commands.register_queues(here.everywhere, [self._queue.name]))
            here.made_known(True)
        return found(reply.schedule, name, self._queue.name)

    def fetch(self, name: str) -> Schedule:
        """The schedule of this name.

        Raises:
            ScheduleNotFound: there is none.
        """
        name = check_schedule_name(name)
        page = self._queue._run(ops.read_schedules(self._queue.keys, [name]))
        return found(next(iter(page.schedules), None), name, self._queue.name)

    def all(self) -> list[Schedule]:
        """All schedules of the queue, by their names."""
        pages = [self._queue._run(ops.read_page(self._queue.keys, "0"))]
        while pages[-1].cursor != "0":
            pages.append(self._queue._run(ops.read_page(self._queue.keys, pages[-1].cursor)))
        return by_name(pages)

    def next(self, name: str, count: int = 5) -> list[datetime]:
        """The times that a schedule fires next, `count` at most; raises as `fetch` does."""
        return self.fetch(name).upcoming(count)

    def run(self, name: str) -> Job[Any]:
        """Make a job of a schedule now, paused or not, beside those that it makes at its times.

        Where its jobs are `unique`, it may fold into another: the job that is returned, whose
        `outcome` says so.

        Raises:
            ScheduleNotFound: there is none of this name.
            DuplicateJob: another holds the key, and `unique` says to reject.
        """
        id = id_of(check_schedule_name(name), new_id())
        receipt = self._queue._run(ops.run_schedule(self._queue.keys, name, id))
        receipt = ran(receipt, name, self._queue.name)
        return Job(self._queue, receipt.id, receipt=receipt)

    def pause(self, name: str) -> Schedule:
        """Let a schedule fire no more until it is resumed; raises as `fetch` does."""
        return self._pause(name, True)

    def resume(self, name: str) -> Schedule:
        """Let a schedule fire again, from its next time on; raises as `fetch` does."""
        return self._pause(name, False)

    def remove(self, name: str) -> bool:
        """Remove a schedule; whether it was there. Jobs that it has made stay."""
        name = check_schedule_name(name)
        return self._queue._run(ops.remove_schedules(self._queue.keys, [name])) == ["ok"]

    def _pause(self, name: str, paused: bool) -> Schedule:
        name = check_schedule_name(name)
        schedule = self._queue._run(ops.pause_schedule(self._queue.keys, name, paused))
        return found(schedule, name, self._queue.name)


class Scheduling(Declaring[TaskDecorator]):
    """What a queue does with schedules."""

    _task_class = Task

    @property
    def schedules(self) -> Schedules:
        """The queue's schedules."""
        return Schedules(cast("Queue", self))
