"""How a process ended that has died."""

from __future__ import annotations

import os
import signal

from bide.worker.processes.wire import Died


def signal_name(number: int) -> str:
    """What a signal is called; real-time signals have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def obituary(died: Died) -> str:
    """How a process ended, in a sentence."""
    code = os.waitstatus_to_exitcode(died.status)
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    memory = f"; it had used up to {died.rss / 1e6:.1f} MB" if died.rss else ""
    return f"Its process {how}{memory}."
