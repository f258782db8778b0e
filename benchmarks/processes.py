"""Processes that are watched from outside, by what Linux says of them in /proc."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

LONGEST_S = 30.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Processes:
    """A process and all that have come of it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def find(self) -> list[int]:
        """The ids of those that live."""
        return [pid for pid, _ in self._stats()]

    def stop(self) -> None:
        """Have all of them stand still; those, too, that they make meanwhile."""
        stopped: set[int] = set()
        while found := set(self.find()) - stopped:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= found

    def go_on(self) -> None:
        """Have all of them go on."""
        for pid in self.find():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Signal the one that was started."""
        os.kill(self._pid, number)

    def wait_end(self, seconds: float) -> None:
        """Wait until all have ended, at most so long."""
        end = time.monotonic() + seconds
        while any(map(_is_alive, self.find())) and time.monotonic() < end:
            time.sleep(0.05)

    def kill(self) -> None:
        """End all of them; none gets to make another, and no connection of theirs is left."""
        self.stop()
        pids = self.find()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(_is_alive(pid) for pid in pids):
            time.sleep(0.005)

    def cpu_s(self) -> float:
        """The processor time of all of them, and of those among them that have ended."""
        return sum(sum(map(int, stat[11:15])) for _, stat in self._stats()) * _TICK_S

    def wait_idle(self) -> None:
        """Wait until they have done next to nothing for a third of a second.

        Raises:
            RuntimeError: there is no end to it.
        """
        end, before = time.monotonic() + LONGEST_S, -1.0
        while True:
            now, busy = self.cpu_s(), any(stat[0] in "RD" for _, stat in self._stats())
            if not busy and now - before <= 3 * _TICK_S:
                return
            if time.monotonic() > end:
                raise RuntimeError("a worker that has no jobs does not become idle")
            before = now
            time.sleep(0.33)

    def _stats(self) -> list[tuple[int, list[str]]]:
        """Each process and what is said of it."""
        stats: dict[int, list[str]] = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal():
                with suppress(OSError):
                    stats[int(entry.name)] = _stat(int(entry.name))
        ours = [self._pid] if self._pid in stats else []
        for pid in ours:
            ours += [child for child, stat in stats.items() if int(stat[1]) == pid]
        return [(pid, stats[pid]) for pid in ours]


def _stat(pid: int) -> list[str]:
    """What /proc/PID/stat says, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _is_alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False
