"""The groups of a queue, for code that blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack, cast

from bide.ids import check_name
from bide.ops import groups
from bide.ops.groups import GroupCounts
from bide.options import GroupSettings
from bide.queue.group_settings import settings_call

if TYPE_CHECKING:
    from bide.queue.blocking import Queue


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
        self.queue._run(groups.configure(self.queue.keys, self.name, paused=True))

    def resume(self) -> None:
        """Let jobs of the group begin again."""
        self.queue._run(groups.configure(self.queue.keys, self.name, paused=False))

    def counts(self) -> GroupCounts:
        """How many of its jobs wait or run, and how they may run."""
        return self.queue._run(groups.counts(self.queue.keys, self.name))


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
        while cursor != groups.BEGIN:
            page = queue._run(groups.page(queue.keys, cursor or groups.BEGIN))
            cursor = page.cursor
            found |= {one.name: one for one in page.groups}
        return [found[name] for name in sorted(found)]
