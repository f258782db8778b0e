"""The groups of a queue, for code on an event loop."""

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
from bide.queue._async.job import AsyncJob
from bide.queue.core import settings_call
from bide.queue.schedules import Declaring, by_name, found, plan, ran
from bide.queue.task import AsyncTask, AsyncTaskDecorator
from bide.tasks.task import Function

if TYPE_CHECKING:
    from bide.queue._async.queue import AsyncQueue


class AsyncGroup:
    """One group of a queue's jobs, which run one at a time; `queue.group(name)`."""

    def __init__(self, queue: AsyncQueue, name: str) -> None:
        """Name a group; nothing is sent.

        Raises:
            UsageError: nothing can have that name.
        """
        self.queue: Final = queue
        self.name: Final = check_name(name, "group")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.queue.name}>"

    async def configure(self, **settings: Unpack[GroupSettings]) -> None:
        """Say how the group's jobs run, whatever they ask for; what is not given stays as it is.

        Args:
            settings: see `bide.GroupSettings`.

        Raises:
            UsageError: one cannot be meant, or none is given.
        """
        await self.queue._run(settings_call(self.queue.keys, self.name, settings))

    async def pause(self) -> None:
        """Let no job of the group begin; those that run go on."""
        await self.queue._run(queue_commands.configure(self.queue.keys, self.name, paused=True))

    async def resume(self) -> None:
        """Let jobs of the group begin again."""
        await self.queue._run(queue_commands.configure(self.queue.keys, self.name, paused=False))

    async def counts(self) -> GroupCounts:
        """How many of its jobs wait or run, and how they may run."""
        return await self.queue._run(queue_commands.counts(self.queue.keys, self.name))


class AsyncGrouping:
    """What a queue does with groups."""

    def group(self, name: str) -> AsyncGroup:
        """The group of that name, whether it has jobs or not.

        Raises:
            UsageError: nothing can have that name.
        """
        return AsyncGroup(cast("AsyncQueue", self), name)

    async def groups(self) -> list[GroupCounts]:
        """The groups that have jobs, or are configured or paused, by name."""
        queue = cast("AsyncQueue", self)
        found: dict[str, GroupCounts] = {}
        cursor = None
        while cursor != queue_commands.BEGIN:
            page = await queue._run(queue_commands.page(queue.keys, cursor or queue_commands.BEGIN))
            cursor = page.cursor
            found |= {one.name: one for one in page.groups}
        return [found[name] for name in sorted(found)]


class AsyncSchedules:
    """The schedules of a queue, stored on its server; `queue.schedules`."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue

    async def upsert(
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
        """Set a schedule; arguments and errors as for `Schedules.upsert`."""
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
        reply = await here.client.run(ops.set_schedule(here.keys, draft))
        if here.makes_known:
            await here.client.run(
                queue_commands.register_queues(here.everywhere, [self._queue.name])
            )
            here.made_known(True)
        return found(reply.schedule, name, self._queue.name)

    async def fetch(self, name: str) -> Schedule:
        """The schedule of this name.

        Raises:
            ScheduleNotFound: there is none.
        """
        name = check_schedule_name(name)
        page = await self._queue._run(ops.read_schedules(self._queue.keys, [name]))
        return found(next(iter(page.schedules), None), name, self._queue.name)

    async def all(self) -> list[Schedule]:
        """All schedules of the queue, by their names."""
        pages = [await self._queue._run(ops.read_page(self._queue.keys, "0"))]
        while pages[-1].cursor != "0":
            pages.append(await self._queue._run(ops.read_page(self._queue.keys, pages[-1].cursor)))
        return by_name(pages)

    async def next(self, name: str, count: int = 5) -> list[datetime]:
        """The times that a schedule fires next, `count` at most; raises as `fetch` does."""
        return (await self.fetch(name)).upcoming(count)

    async def run(self, name: str) -> AsyncJob[Any]:
        """Make a job of a schedule now, paused or not, beside those that it makes at its times.

        Raises:
            ScheduleNotFound: there is none of this name.
        """
        id = id_of(check_schedule_name(name), new_id())
        receipt = await self._queue._run(ops.run_schedule(self._queue.keys, name, id))
        receipt = ran(receipt, name, self._queue.name)
        return AsyncJob(self._queue, receipt.id, receipt=receipt)

    async def pause(self, name: str) -> Schedule:
        """Let a schedule fire no more until it is resumed; raises as `fetch` does."""
        return await self._pause(name, True)

    async def resume(self, name: str) -> Schedule:
        """Let a schedule fire again, from its next time on; raises as `fetch` does."""
        return await self._pause(name, False)

    async def remove(self, name: str) -> bool:
        """Remove a schedule; whether it was there. Jobs that it has made stay."""
        name = check_schedule_name(name)
        words = await self._queue._run(ops.remove_schedules(self._queue.keys, [name]))
        return words == ["ok"]

    async def _pause(self, name: str, paused: bool) -> Schedule:
        name = check_schedule_name(name)
        schedule = await self._queue._run(ops.pause_schedule(self._queue.keys, name, paused))
        return found(schedule, name, self._queue.name)


class AsyncScheduling(Declaring[AsyncTaskDecorator]):
    """What a queue does with schedules."""

    _task_class = AsyncTask

    @property
    def schedules(self) -> AsyncSchedules:
        """The queue's schedules."""
        return AsyncSchedules(cast("AsyncQueue", self))
