"""Telling hooks of attempts whose worker has died: nobody else can, once it is dead.

A claim finds that a lease has ended, and returns the job to the queue, or has it fail. It says so
in its reply, once: if that is lost, or this worker dies before the hooks have run, none is told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from bide import aio
from bide.errors import BideError
from bide.logs import Log, printable
from bide.ops import inspect
from bide.ops.consume import Lost
from bide.worker.run import Run
from bide.worker.station import Station

log = Log("bide.worker")

Report = Callable[[Run, str, bool], None]
"""Tells hooks of a run: how it ended, and whether the job has failed by that."""


class Crashes:
    """Reads the jobs, beside what else the worker does, and has them reported."""

    def __init__(self, client: aio.Client, report: Report, changed: Callable[[], None]) -> None:
        """Set up.

        Args:
            client: of the server.
            report: called for each attempt.
            changed: called when all of a claim have been reported.
        """
        self._client = client
        self._report = report
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether some are still to be reported."""
        return bool(self._tasks)

    def found(self, station: Station, lost: Sequence[Lost]) -> None:
        """Have attempts reported that a claim has found to have ended."""
        task = asyncio.create_task(self._read(station, lost))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Wait for what is being read."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed()

    async def _read(self, station: Station, lost: Sequence[Lost]) -> None:
        ids = [one.claimed.id for one in lost]
        bodies = [b""] * len(ids)
        try:
            found = await self._client.run(inspect.fetch(station.keys, ids))
            bodies = [job.raw_body if job else b"" for job in found]
        except BideError as error:
            log.warning(
                "queue %s: hooks do not get the arguments of crashed jobs: %s", station.queue, error
            )
        for one, body in zip(lost, bodies, strict=True):
            now = time.monotonic()
            run = Run(station, one.claimed._replace(body=body), now, lambda: None)
            run.deadline = now
            self._report(run, _how(one), one.has_failed)


def _how(lost: Lost) -> str:
    """Say how an attempt ended, in a sentence."""
    worker = printable(lost.worker)  # as another program may have written it
    if not lost.has_failed:
        return (
            f"Its worker {worker} died or stopped while it held this job; the job may have started."
        )
    claimed = lost.claimed
    return (
        f"Its worker died or stopped {claimed.reclaims} times under this job, {claimed.crashes} "
        f"of them while it ran alone; the last was {worker}."
    )
