"""A worker reports every ten seconds that it is alive. Nothing depends on this for correctness.

The report is for viewers, and the reply contains requests to stop or pause. With each report, the
worker registers its queues again, in case the list of queues was removed. If the server has lost
its scripts, the worker loads the scripts that viewers call: viewers have no permission to load
them. The report contains the running jobs for older releases and for users who may not read all
queues: see `bide.protocol.commands.queues`.

Leases are renewed in a thread, so that no job loses its lease because another job blocks the event
loop or a reply is slow. A job that holds the GIL for longer than a lease minus a renewal interval
does lose it. No lease is renewed past the job's time-out and grace, so a job that hangs is not held
without end.

Claims fire schedules, so no worker has a special role. But a script cannot evaluate a cron
expression. So if few times of a schedule are left, the reply to a claim names the schedule, and the
worker that receives the reply sends more times.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from bide.client import aio, blocking
from bide.client.acl import SCRIPTS
from bide.client.execute import RETRY_FOR
from bide.client.url import GOODBYE, REPLY_TIMEOUT
from bide.errors import BideError, ServerFull, ServerReadOnly
from bide.logs import Log
from bide.model.ids import short_id
from bide.model.options import QueueSettings
from bide.model.payload.signing import Keyring, Seal
from bide.protocol.commands import Command
from bide.protocol.commands.jobs import declare
from bide.protocol.commands.queues import EVERY, WorkerReport, heartbeat, register_queues
from bide.protocol.commands.schedules import read_schedules, refills, set_schedule
from bide.protocol.commands.worker import MAX_SETTLES, Renewal, extend, worker_leave
from bide.protocol.keys import Keys
from bide.queue.core import declared_of
from bide.queue.schedules import declared
from bide.worker.queue_state import QueueState
from bide.worker.running_job import RunningJob

log = Log("bide.worker")

AGAIN: Final = 1.0
"""Seconds before a heartbeat that failed is sent again."""


class Heartbeat:
    """Reports that a worker is alive, until it leaves."""

    def __init__(
        self,
        client: aio.AsyncClient,
        keys: Keys,
        queues: Sequence[Keys],
        worker: str,
        about: Callable[[float | None], WorkerReport],
        stop: Callable[[], None],
        pause: Callable[[bool], None],
        declared: Mapping[Keys, QueueSettings] | None = None,
    ) -> None:
        """Start to send heartbeats, in the running event loop.

        `about` returns the report, given how many seconds this clock is ahead of the server's.
        `stop` is called once, when a request to stop the worker arrives, and `pause` with each
        reply, which says whether someone wants the worker to claim nothing. Settings that are
        `declared` go with each heartbeat, in case the last worker that declared others has gone.
        """
        self._client = client
        self._keys = keys
        self._queues = queues
        self._worker = worker
        self._about = about
        self._stop = stop
        self._pause = pause
        self._declared = [
            declare(each, declared_of(its), starts=False) for each, its in (declared or {}).items()
        ]
        self._over = False
        self._soon = asyncio.Event()
        self._task = asyncio.create_task(self._send_all())
        self.accepted_at = 0.0
        """When the server last accepted a heartbeat (`time.monotonic()`); 0 for never."""

    async def _send_all(self) -> None:
        """Send heartbeats until the worker leaves and the server has answered the last one."""
        skew: float | None = None
        has_stopped = False
        missed = -1
        names = [str(each.queue) for each in self._queues]
        while not self._over:
            pause = AGAIN
            self._soon.clear()
            try:
                before = time.time()
                beat = heartbeat(self._keys, self._worker, self._about(skew))
                calls: list[Command[Any]] = [beat, register_queues(self._keys, names)]
                pulse, *_ = await self._client.attempt_many([*calls, *self._declared])
                if isinstance(pulse, BideError):
                    raise pulse
                self.accepted_at = time.monotonic()
                pause = EVERY
                skew = (before + time.time()) / 2 - pulse.now_us / 1e6
                self._pause(pulse.pause)
                if pulse.stop and not has_stopped:
                    has_stopped = True
                    self._stop()
                if self._client.missed_scripts != missed:
                    before_load = self._client.missed_scripts
                    await self._client.load_everywhere(SCRIPTS["viewer"])
                    missed = before_load
            except BideError:  # the next one may reach the server
                pass
            except Exception:  # no error may end all heartbeats
                log.exception("A heartbeat failed; the next one follows in %g s", EVERY)
                pause = EVERY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._soon.wait()

    def hurry(self) -> None:
        """Send the next heartbeat now, because the report has changed."""
        self._soon.set()

    async def close(self, *, leaves: bool) -> None:
        """Send no more heartbeats; if the worker `leaves`, remove its record from the server.

        If that fails, the record expires. A heartbeat has a connection of its own. So the worker
        waits for the last one, because it could arrive after the record was removed.
        """
        self._over = True
        self._soon.set()
        if leaves:
            goodbye = [worker_leave(each, self._worker) for each in self._queues]
            with contextlib.suppress(BideError, TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await asyncio.wait([self._task])
                    last = heartbeat(self._keys, self._worker, None)
                    await self._client.run_many([*goodbye, last])
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


GRACE: Final = 5.0
"""Seconds that a job may take to end after its time-out, before its lease is no longer renewed."""


class Leases(threading.Thread):
    """Renews the leases of all held jobs every quarter of a lease."""

    def __init__(
        self,
        url: str,
        clock: str,
        lease: float,
        held: Callable[[], Iterable[RunningJob]],
        cancel: Callable[[str, str], None],
    ) -> None:
        """Set up; the thread calls `cancel` with the channel and the id of a job to cancel."""
        super().__init__(name="bide-leases", daemon=True)
        self._interval = lease / 4
        self._client = blocking.Client(
            url,
            clock=clock,
            retry_for=min(self._interval / 2, RETRY_FOR),
            reply_timeout=min(max(0.5, self._interval), REPLY_TIMEOUT),
        )
        self._lease_us = round(lease * 1e6)
        self._held = held
        self._cancel = cancel
        self._ended = threading.Event()

    def run(self) -> None:
        """Renew leases until stopped."""
        while not self._ended.wait(self._interval):
            try:
                self._renew()
            except Exception:  # this thread must survive any error
                log.exception("The leases could not be renewed; it will be tried again")
        self._client.close()

    def stop(self) -> None:
        """Stop renewing leases."""
        self._ended.set()

    def _renew(self) -> None:
        now = time.monotonic()
        by_queue: dict[QueueState, list[RunningJob]] = {}
        for job in self._held():
            if now - job.claimed_at >= self._interval / 2 and now < job.deadline + GRACE:
                by_queue.setdefault(job.queue_state, []).append(job)
        held = [
            (queue_state, jobs[i : i + MAX_SETTLES])
            for queue_state, jobs in by_queue.items()
            for i in range(0, len(jobs), MAX_SETTLES)
        ]
        # All in one call, so that a node that hangs delays no renewal on another node.
        commands = [self._extend(queue_state, jobs) for queue_state, jobs in held]
        replies: Sequence[list[Renewal] | BideError]
        try:
            replies = self._client.attempt_many(commands)
        except BideError as error:  # no node has answered
            replies = [error] * len(commands)
        failed: dict[QueueState, BideError] = {}
        for (queue_state, jobs), reply in zip(held, replies, strict=True):
            if isinstance(reply, BideError):
                failed[queue_state] = reply
            else:
                self._read(queue_state, jobs, reply)
        for queue_state, problem in failed.items():
            log.warning(
                "The leases of queue %s could not be renewed: %s", queue_state.queue, problem
            )

    def _extend(
        self, queue_state: QueueState, jobs: Sequence[RunningJob]
    ) -> Command[list[Renewal]]:
        tokens = [(job.claimed.id, job.claimed.token) for job in jobs]
        return extend(queue_state.keys, self._lease_us, tokens, queue_state.lateness.take())

    def _read(
        self, queue_state: QueueState, jobs: Sequence[RunningJob], verdicts: Sequence[Renewal]
    ) -> None:
        for job, verdict in zip(jobs, verdicts, strict=True):
            if verdict == "asked":
                self._cancel(queue_state.keys["asked"], job.claimed.id)
            if verdict == "lost" and not job.ended and not job.lost:
                job.lost = True
                with job.named():
                    log.warning(
                        "job %s: its lease has passed to another worker; the outcome of this run "
                        "will be refused",
                        short_id(job.claimed.id),
                    )


async def set_declared(
    client: aio.AsyncClient, queues: Sequence[Keys], keyring: Keyring | None
) -> None:
    """Set the schedules that modules of this process have declared for these queues.

    Raises:
        BideError: the server could not be reached, or a schedule cannot be set.
    """
    drafts = [
        (keys, plan.draft(keys, Seal(keyring, keys)))
        for keys in queues
        for plan in declared(keys.queue or "")
    ]
    replies = await client.attempt_many([set_schedule(keys, draft) for keys, draft in drafts])
    for (keys, draft), reply in zip(drafts, replies, strict=True):
        if isinstance(reply, ServerFull | ServerReadOnly):  # an existing schedule stays as it is
            log.warning("schedule %s of queue %s: %s", draft.name, keys.queue, reply)
        elif isinstance(reply, BideError):
            raise reply
        elif reply.is_changed and reply.schedule is not None:
            next_at = reply.schedule.next
            first = f"next at {next_at:%F %T} UTC" if next_at else "not to fire"
            log.info("schedule %s of queue %s is set, %s", draft.name, keys.queue, first)


class ScheduleRefills:
    """Sends more times to schedules, in background tasks."""

    def __init__(self, client: aio.AsyncClient) -> None:
        self._client = client
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._logged: Final[set[str]] = set()

    def send(self, keys: Keys, names: Sequence[str]) -> None:
        """Start to send more times to these schedules, unless that is under way."""
        for name in names:
            where = (keys["meta"], name)
            if where not in self._tasks:
                self._tasks[where] = task = asyncio.create_task(self._send(keys, name))
                task.add_done_callback(partial(self._sent, where))

    async def close(self) -> None:
        """Wait for the refills under way."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _send(self, keys: Keys, name: str) -> None:
        try:
            page = await self._client.run(read_schedules(keys, [name]))
            await self._client.run_many(refills(keys, page))
        except BideError as error:  # a later claim reports the schedule again
            text = f"schedule {name} of queue {keys.queue} gets no more times: {error}"
            if text not in self._logged:
                self._logged.add(text)
                log.warning("%s", text)

    def _sent(self, where: tuple[str, str], task: asyncio.Task[None]) -> None:
        del self._tasks[where]
