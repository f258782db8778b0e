"""A child that was forked in advance, and waits until there is a slot for it.

So no job waits for a fork. The child waits at a pipe of its own, from which it reads its slot.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple


class Spare(NamedTuple):
    """A child that waits, as the nursery sees it."""

    pid: int
    gate: int
    """Where it is told its slot: the end to write to."""

    def begin(self, slot: int) -> None:
        """Tell it its slot; one that has died meanwhile is reaped like any other."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.gate, slot.to_bytes(4))
        os.close(self.gate)


def fork() -> tuple[int, int]:
    """Fork a child that is to wait: its number, and where to tell it its slot.

    In the child, the number is 0, and it can be told there.

    Raises:
        OSError: no process is to be had.
    """
    outlet, gate = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(outlet)
        os.close(gate)
        raise
    mine, other = (gate, outlet) if pid else (outlet, gate)
    os.close(other)
    return pid, mine


def wait_at(gate: int) -> int:
    """Wait for a slot; without a nursery there will be none, and this process ends."""
    told = os.read(gate, 4)
    os.close(gate)
    if not told:
        os._exit(0)
    return int.from_bytes(told)
