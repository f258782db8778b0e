"""How long scripts take the server, whatever else the machine does meanwhile.

A server's SLOWLOG goes by the clock, and so counts the time in which other programs had the
processor. The system counts how long the server itself had one, for all that it does. A script took
at most the smaller of the two: what SLOWLOG says, and what the server ran from the call to its
reply. So that the latter is that of one script, calls of one round trip are sent one by one, except
those that a client sends behind others that are under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import redis

from bide.client import blocking
from bide.client.blocking import Connections
from bide.client.execute import Call
from bide.protocol.scripts import load, names

SLOW_US: Final = 500
"""Scripts that take less are not in the log."""

YARDSTICK: Final = "for i = 1, 2000 do local text = tostring(i) .. 'x' end"
"""A script whose work never changes."""
YARDSTICK_US: Final = 900
"""What the yardstick takes of a processor that does nothing else, on the machine for which bounds
in microseconds are meant. A processor that is shared, or slower, takes more for each script."""


def processor_of(pid: int) -> int:
    """The clock that counts how long a process has had a processor (Linux: clock_getcpuclockid)."""
    return ~pid << 3 | 2


class Stopwatch:
    """Times the scripts that clients run on a server which has nothing else to do."""

    def __init__(self, direct: redis.Redis, pid: int) -> None:
        """Set up.

        Args:
            direct: a client of the server, which is not timed itself.
            pid: the server's process.
        """
        self._direct = direct
        self._direct.config_set("slowlog-log-slower-than", SLOW_US)
        self._processor = processor_of(pid)
        self._names = {load(name).sha: name for name in names()}
        self._called: list[str] = []
        self._began = 0
        self._trips: dict[str, list[int]] = {}

    def look_at(self, client: blocking.Client) -> None:
        """Time what this client runs from now on; it has not run anything yet."""
        pool = client._redis.connection_pool
        client._connections[client.url] = _Timed(
            self, lambda: pool.connection_class(**pool.connection_kwargs)
        )

    def time(self, do: Callable[[], object]) -> dict[str, list[int]]:
        """The longest run of each script in each exchange that has it, in microseconds.

        If the yardstick takes longer than it should, before and after, times shrink accordingly.
        """
        self._trips = {}
        before = self._slowness()
        do()
        slowness = min(before, self._slowness())
        return {name: [round(us / slowness) for us in took] for name, took in self._trips.items()}

    def _slowness(self) -> float:
        """How much longer than it should the yardstick takes just now; 1 at least."""
        began = time.clock_gettime_ns(self._processor)
        self._direct.eval(YARDSTICK, 0)
        return max(1.0, (time.clock_gettime_ns(self._processor) - began) / 1000 / YARDSTICK_US)

    def begin(self) -> None:
        """Round trips begin, and none was under way."""
        self._direct.slowlog_reset()
        self._called = []
        self._began = time.clock_gettime_ns(self._processor)

    def call(self, calls: Sequence[Call]) -> None:
        """These are sent."""
        self._called += [str(call[1]) for call in calls if call[0] == "EVALSHA"]

    def end(self) -> None:
        """All that was sent has been answered."""
        ran = (time.clock_gettime_ns(self._processor) - self._began) // 1000
        took = dict.fromkeys(self._called, SLOW_US)
        for entry in self._direct.slowlog_get(1000):
            words = entry["command"].split(b" ", 2)
            if words[0].upper() == b"EVALSHA":
                sha = words[1].decode()
                took[sha] = max(took[sha], entry["duration"])
        for sha, us in took.items():
            self._trips.setdefault(self._names[sha], []).append(min(us, ran))


class _Timed(Connections):
    def __init__(self, stopwatch: Stopwatch, make: Callable[[], Any]) -> None:
        super().__init__(make)
        self._stopwatch = stopwatch

    def exchange(
        self, calls: Sequence[Call], behind: Any = None, *, pauses: bool = False
    ) -> Generator[Any, None, None]:
        # Of scripts in one round trip, nobody knows whose the server's time was.
        if len(calls) > 1 and behind is None and not pauses:
            replies: list[Any] = []
            for call in calls:
                for some in self.exchange([call]):
                    replies += some
            yield replies
            return
        if not self._busy:
            self._stopwatch.begin()
        self._stopwatch.call(calls)
        for step in super().exchange(calls, behind, pauses=pauses):
            if not self._busy:
                self._stopwatch.end()
            yield step
