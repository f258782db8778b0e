"""The groups of a queue, for code on an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack, cast

from bide.ids import check_name
from bide.ops import groups
from bide.ops.groups import GroupCounts
from bide.options import GroupSettings
from bide.queue.group_settings import settings_call

if TYPE_CHECKING:
    from bide.queue.awaited import AsyncQueue


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
        await self.queue._run(groups.configure(self.queue.keys, self.name, paused=True))

    async def resume(self) -> None:
        """Let jobs of the group begin again."""
        await self.queue._run(groups.configure(self.queue.keys, self.name, paused=False))

    async def counts(self) -> GroupCounts:
        """How many of its jobs wait or run, and how they may run."""
        return await self.queue._run(groups.counts(self.queue.keys, self.name))


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
        while cursor != groups.BEGIN:
            page = await queue._run(groups.page(queue.keys, cursor or groups.BEGIN))
            cursor = page.cursor
            found |= {one.name: one for one in page.groups}
        return [found[name] for name in sorted(found)]
