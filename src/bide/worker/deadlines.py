"""One heap of deadlines for all running jobs, rather than a timer for each."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """Something that must end by `deadline`, a time of the loop's clock."""

    deadline: float
    ended: bool


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """Calls back for each entry that has not ended by its deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[T], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._context = copy_context()
        """A context of no job: all jobs share the timer."""
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0  # uvloop's timer handle has no `when` once its time has passed
        self._compact_at = 1024

    def add(self, entry: T) -> None:
        """Watch an entry until its `ended` is true."""
        self._count += 1
        heapq.heappush(self._heap, (entry.deadline, self._count, entry))
        if len(self._heap) > self._compact_at:
            self._compact()
        if self._timer is None or entry.deadline < self._armed_for:
            self._arm()

    def close(self) -> None:
        """Stop watching all entries."""
        self._heap.clear()
        self._arm()

    def _compact(self) -> None:
        """Drop ended entries. The bound is twice the rest, so the cost is O(1) an entry."""
        self._heap = [item for item in self._heap if not item[2].ended]
        heapq.heapify(self._heap)
        self._compact_at = max(1024, 2 * len(self._heap))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._armed_for = self._heap[0][0]
            self._timer = self._loop.call_at(self._armed_for, self._fire, context=self._context)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        try:
            while self._heap and (self._heap[0][2].ended or self._heap[0][0] <= now):
                entry = heapq.heappop(self._heap)[2]
                if not entry.ended:
                    self._expire(entry)
        finally:  # the other entries stay watched, even if one callback raised
            self._arm()
