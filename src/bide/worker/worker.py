"""The public class: what a worker serves, how it starts, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bide import aio
from bide.clock import Duration, to_us
from bide.errors import BideError, UsageError
from bide.ids import check_name
from bide.keys import PREFIX, keys_of
from bide.ops.consume import leave
from bide.ops.registry import About, heartbeat, register
from bide.queue import AsyncQueue, Queue
from bide.script import SERVER_CLOCK
from bide.task import Served
from bide.version import VERSION
from bide.worker import eventloop
from bide.worker.heartbeat import beat
from bide.worker.leases import Leases
from bide.worker.loop import Loop
from bide.worker.running import Running
from bide.worker.station import Station

log = logging.getLogger("bide.worker")

LEASE: Final = 10.0
"""Seconds for which a job is held without being renewed; it is renewed every third of it."""

GRACE: Final = 30.0
"""Seconds that running jobs get to end after the first signal."""

_SHORTEST_LEASE_US: Final = 300_000
_GOODBYE: Final = 1.0


class Worker:
    """Runs the jobs of some queues in this process until it is told to stop."""

    def __init__(
        self,
        queues: Iterable[Queue | AsyncQueue | str],
        *,
        url: str | None = None,
        prefix: str = PREFIX,
        modules: Sequence[str] = (),
        concurrency: int = 100,
        lease: Duration = LEASE,
        grace: Duration = GRACE,
        name: str | None = None,
        clock: str = SERVER_CLOCK,
    ) -> None:
        """Set up; nothing is sent before `work`.

        Args:
            queues: in the order in which they are claimed from.
            url: the server; by default that of the first queue, else `$BIDE_URL`.
            prefix: of the keys; by default that of the first queue.
            modules: modules to import and serve; functions of others are not run, unless a
                decorator registered them.
            concurrency: jobs at once, on the event loop and in threads together.
            lease: how long a job stays this worker's if it is not renewed.
            grace: how long running jobs may take after the first signal to stop.
            name: unique; by default made from host and process id.
            clock: which clock the scripts are built for.

        Raises:
            UsageError: an argument cannot be meant.
            TaskNotFound: a module cannot be imported.
        """
        given = [queues] if isinstance(queues, str | Queue | AsyncQueue) else list(queues)
        if not given:
            raise UsageError("A worker needs at least one queue.")
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise UsageError(f"concurrency must be 1 or more, not {concurrency!r}.")
        first = next((queue for queue in given if not isinstance(queue, str)), None)
        if first is not None:
            url, prefix, clock = url or first.url, first.prefix, first.clock
        own = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(3)}"
        self.name = check_name(name or own, "worker name")
        self.queues: Final = [q if isinstance(q, str) else q.name for q in given]
        self.concurrency: Final = concurrency
        self._lease_us = to_us(lease, "lease")
        if self._lease_us < _SHORTEST_LEASE_US:
            raise UsageError(f"lease={lease!r} is too short to be renewed; use 300ms or more.")
        self._grace = to_us(grace, "grace") / 1e6
        self._clock = clock
        self._served = Served(modules)
        self._url = url
        self._keys = [keys_of(queue, prefix) for queue in dict.fromkeys(self.queues)]
        self._global_keys = keys_of(None, prefix)
        self._loop: Loop | None = None
        self._running: Running | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._signals = 0

    def work(self, burst: bool = False) -> int:
        """Work until SIGINT or SIGTERM; with `burst`, until nothing is due.

        The first signal lets running jobs finish; the second, or the end of the grace, gives them
        back without using an attempt.

        Returns:
            How many jobs this worker executed.

        Raises:
            ServerUnavailable: the server could not be reached at the start.
        """
        # What is imported by now lives as long as the process: the collector, which would stop all
        # jobs for some 20 ms to look at it again, need not.
        gc.collect()
        gc.freeze()
        try:
            return eventloop.run(self.run(burst))
        finally:
            gc.unfreeze()

    async def run(self, burst: bool = False) -> int:
        """`work`, in the event loop that runs now."""
        client = aio.Client(self._url, patience=0, clock=self._clock)
        # A process that had the same name before may be remembered with a later claim.
        forget = [leave(keys, self.name) for keys in self._keys]
        await client.run_many([register(self._global_keys, self.queues), *forget])
        stations = [Station(keys, self.name, self._lease_us) for keys in self._keys]
        self._event_loop = asyncio.get_running_loop()
        self._signals = 0
        self._loop = loop = Loop(client, stations, self.concurrency, burst)
        self._running = running = Running(self.name, self._served, loop.ring)
        leases = Leases(client.url, self._clock, self._lease_us / 1e6, running.held)
        leases.start()
        pulse = asyncio.create_task(beat(client, self._global_keys, self.name, self._about()))
        log.info("worker %s serves %s, %d at once", self.name, _list(self.queues), self.concurrency)
        try:
            with self._signal_handlers():
                await loop.run(running)
        finally:
            leases.stop()
            running.close()
            pulse.cancel()
            await asyncio.gather(pulse, return_exceptions=True)
            if not loop.cut_off:
                await self._say_goodbye(client)
            await client.close()
            log.info("worker %s stopped after %d jobs", self.name, running.executed)
        return running.executed

    async def _say_goodbye(self, client: aio.Client) -> None:
        """Drop what the server remembers of this worker; if it cannot be said, it is forgotten."""
        goodbye = [leave(keys, self.name) for keys in self._keys]
        with contextlib.suppress(BideError, TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await client.run_many([*goodbye, heartbeat(self._global_keys, self.name, None)])

    def stop(self) -> None:
        """Ask it to stop, as a signal would; the second call does not wait. Any thread may call."""
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._asked_to_stop)

    def _asked_to_stop(self) -> None:
        assert self._loop is not None
        assert self._running is not None
        self._signals += 1
        if self._signals == 1:
            count = len(self._running)
            log.info("worker %s stops: %d jobs may finish", self.name, count)
            self._loop.stop()
            asyncio.get_running_loop().call_later(self._grace, self._abort)
        else:
            self._abort()

    def _abort(self) -> None:
        assert self._loop is not None
        assert self._running is not None
        if len(self._running):
            log.warning("worker %s gives %d running jobs back", self.name, len(self._running))
        self._running.abandon()
        self._loop.abort()

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for sig in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sig, self._asked_to_stop)
        try:
            yield
        finally:
            for sig in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(sig)

    def _about(self) -> About:
        return About(
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            executor="auto",
            concurrency=self.concurrency,
            started_us=time.time_ns() // 1000,
            version=VERSION,
        )


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
