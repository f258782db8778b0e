"""Stopping a worker that has had nothing to do for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from bide.logs import Log

log = Log("bide.worker")

_LOOK_EVERY: Final = 1.0


class Busy(Protocol):
    """What shows whether there was anything to do."""

    executed: int

    @property
    def busy(self) -> int:
        """How many jobs are held."""
        ...


async def watch(running: Busy, max_idle: float, stop: Callable[[], None]) -> None:
    """Stop the worker once it has held no job for `max_idle` seconds."""
    last, seen = time.monotonic(), 0
    while True:
        now = time.monotonic()
        if running.busy or running.executed != seen:
            last, seen = now, running.executed
        left = last + max_idle - now
        if left <= 0:
            log.info("had nothing to do for %g s", max_idle)
            stop()
            return
        await asyncio.sleep(min(left, _LOOK_EVERY))
