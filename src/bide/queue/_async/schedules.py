"""The groups and the schedules of a queue, for code on an event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Unpack

from bide.model.durations import Duration
from bide.model.ids import check_name, new_id
from bide.model.options import GroupSettings, ScheduleOptions
from bide.model.schedule import Schedule, check_schedule_name, id_of
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as ops
from bide.protocol.commands.queues import GroupCounts
from bide.queue._async.job import AsyncJob
from bide.queue.core import settings_call
from bide.queue.schedules import by_name, found, plan, ran
from bide.tasks.task import Function

if TYPE_CHECKING:
    from bide.queue._async.queue import AsyncQueue


class AsyncGroup:
    """A group of a queue's jobs, which run one at a time by default; `queue.group(name)`."""

    def __init__(self, queue: AsyncQueue, name: str) -> None:
        """Name a group; nothing is sent.

        Raises:
            UsageError: the name is invalid.
        """
        self.queue: Final = queue
        self.name: Final = check_name(name, "group")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.queue.name}>"

    async def configure(self, **settings: Unpack[GroupSettings]) -> None:
        """Change settings of the group; they override the options of its jobs.

        Args:
            settings: see `bide.GroupSettings`; other settings stay as they are.

        Raises:
            UsageError: a setting is invalid, or none is given.
        """
        await self.queue._run(settings_call(self.queue.keys, self.name, settings))

    async def pause(self) -> None:
        """Start no more jobs of the group; running jobs continue."""
        await self.queue._run(queue_commands.configure(self.queue.keys, self.name, paused=True))

    async def resume(self) -> None:
        """Start jobs of the group again."""
        await self.queue._run(queue_commands.configure(self.queue.keys, self.name, paused=False))

    async def counts(self) -> GroupCounts:
        """Return how many of its jobs wait or run, and its settings."""
        return await self.queue._run(queue_commands.counts(self.queue.keys, self.name))


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
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Create a schedule, or change the schedule of this name.

        If its times do not change, an existing schedule keeps its next time and its count, so a
        program can set its schedules at each start. If they change, the schedule starts again
        from zero. Times that have already passed do not fire.

        Args:
            name: the schedule's name, at most 100 bytes.
            task: the task of its jobs, as for `enqueue_call`.
            args: positional arguments.
            kwargs: keyword arguments.
            cron: an expression of five fields, such as `"0 9 * * 1-5"`.
            every: an interval of 10 ms or more. The first time is `start`, or one interval from
                now.
            at: a list of at most 100 moments.
            tz: the time zone of `cron`, such as `"Europe/Paris"`; UTC by default.
            options: `start`, `end`, `limit`, `missed`, `jitter` and options of its jobs, see
                `bide.ScheduleOptions`.

        Raises:
            UsageError: an argument is invalid: none or two of `cron`, `every` and `at` are given,
                the expression never fires, or this is a delay queue.
            PayloadError: the serializer cannot encode the arguments, or they take more than 1 MB.
            ServerFull: the server has reached its memory limit; nothing was changed.
        """
        binding = self._queue._binding
        times = {"cron": cron, "every": every, "at": at, "tz": tz}
        planned = plan(self._queue, name, task, args, kwargs, options, **times)
        draft = planned.draft(binding.keys, binding.seal)
        reply = await binding.client.run(ops.set_schedule(binding.keys, draft))
        if binding.makes_known:
            await binding.client.run(
                queue_commands.register_queues(binding.everywhere, [self._queue.name])
            )
            binding.made_known(True)
        return found(reply.schedule, name, self._queue.name)

    async def fetch(self, name: str) -> Schedule:
        """Return the schedule of this name.

        Raises:
            ScheduleNotFound: it does not exist.
        """
        name = check_schedule_name(name)
        page = await self._queue._run(ops.read_schedules(self._queue.keys, [name]))
        return found(next(iter(page.schedules), None), name, self._queue.name)

    async def all(self) -> list[Schedule]:
        """Return all schedules of the queue, sorted by name."""
        pages = [await self._queue._run(ops.read_page(self._queue.keys, "0"))]
        while pages[-1].cursor != "0":
            pages.append(await self._queue._run(ops.read_page(self._queue.keys, pages[-1].cursor)))
        return by_name(pages)

    async def next(self, name: str, count: int = 5) -> list[datetime]:
        """Return up to `count` of the next times of a schedule; raises as `fetch` does."""
        return (await self.fetch(name)).upcoming(count)

    async def run(self, name: str) -> AsyncJob[Any]:
        """Enqueue a job of a schedule now, even if it is paused; its own times do not change.

        If its jobs are `unique`, another job may hold the key. Then this returns that job, with
        another `enqueue_result`.

        Raises:
            ScheduleNotFound: it does not exist.
            DuplicateJob: another job holds the key, and `on_conflict="reject"`.
        """
        id = id_of(check_schedule_name(name), new_id())
        receipt = await self._queue._run(ops.run_schedule(self._queue.keys, name, id))
        receipt = ran(receipt, name, self._queue.name, id)
        return AsyncJob(self._queue, receipt.id, receipt=receipt)

    async def pause(self, name: str) -> Schedule:
        """Stop a schedule from firing until it is resumed; raises as `fetch` does."""
        return await self._pause(name, True)

    async def resume(self, name: str) -> Schedule:
        """Let a schedule fire again, from its next time; raises as `fetch` does."""
        return await self._pause(name, False)

    async def delete(self, name: str) -> bool:
        """Delete a schedule, but not its jobs; return whether it existed."""
        name = check_schedule_name(name)
        words = await self._queue._run(ops.remove_schedules(self._queue.keys, [name]))
        return words == ["ok"]

    async def _pause(self, name: str, paused: bool) -> Schedule:
        name = check_schedule_name(name)
        schedule = await self._queue._run(ops.pause_schedule(self._queue.keys, name, paused))
        return found(schedule, name, self._queue.name)
