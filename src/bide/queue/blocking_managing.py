"""What a queue does with jobs that are there, for code that blocks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from bide import sync
from bide.clock import Duration
from bide.command import Command
from bide.ids import new_id
from bide.ops import manage, produce
from bide.ops.manage import Moved
from bide.queue.core import QueueCore, chunks, read_cancel


class Managing(QueueCore[sync.Client]):
    """What a queue does with jobs that are there, and with itself."""

    def cancel(self, id: str, running: bool = True) -> bool:
        """Take a job back before it runs; one that runs is asked to end, unless `running=False`.

        Asked to end, a coroutine is cancelled; a plain function goes on until it looks at
        `current_job().cancelled`.

        Returns:
            Whether it is cancelled, now or before, or asked to end; False if it has ended in
            another way, does not exist, or runs and is not to be asked.
        """
        return read_cancel(self.cancel_many([id], running))

    def cancel_many(self, ids: Sequence[str], running: bool = True) -> list[str]:
        """`cancel` for many; for each `ok`, `asked`, the state it is in instead, or `gone`."""
        commands = [manage.cancel(self.keys, some, running) for some in chunks(ids)]
        return [word for words in self._client.run_many(commands) for word in words]

    def reschedule_many(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Give jobs another due time; for each `ok`, the state it is in instead, or `gone`."""
        when = produce.when(delay, at)
        return self._move([manage.reschedule(self.keys, some, when) for some in chunks(ids)])

    def promote_many(self, ids: Sequence[str]) -> list[str]:
        """Make jobs due now; for each `ok`, the state it is in instead, or `gone`."""
        return self._move([manage.promote(self.keys, some) for some in chunks(ids)])

    def retry_many(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Run jobs that have ended once more; for each `ok`, its state instead, or `gone`."""
        when = produce.when(delay, at)
        return self._move([manage.retry(self.keys, some, when) for some in chunks(ids)])

    def delete_many(self, ids: Sequence[str]) -> list[str]:
        """Remove every trace of jobs; for each `ok`, `active` (nothing was removed) or `gone`."""
        commands = [manage.delete(self.keys, some) for some in chunks(ids)]
        return [word for words in self._client.run_many(commands) for word in words]

    def pause(self) -> None:
        """Let no job be claimed; those that run go on."""
        self._client.run(manage.pause(self.keys))

    def resume(self) -> None:
        """Let jobs be claimed again."""
        self._client.run(manage.resume(self.keys))

    def empty(self) -> int:
        """Remove all delayed, waiting and blocked jobs, in bounded steps; how many there were."""
        begin = new_id()
        step = self._client.run(manage.empty(self.keys, begin))
        while step.busy:
            step = self._client.run(manage.empty(self.keys, begin))
        removed = step.aside
        while step.more:
            step = self._client.run(manage.empty(self.keys, None))
        return removed

    def _move(self, commands: Sequence[Command[list[Moved]]]) -> list[str]:
        return [moved.word for page in self._client.run_many(commands) for moved in page]
