"""What is known of a job whose process has died: which it was, and how the process ended."""

from __future__ import annotations

import os
import signal

from bide.errors import BideError
from bide.payload.codec import decode_envelope
from bide.worker.processes.wire import Died
from bide.worker.run import Run


def task_of(run: Run) -> str:
    """The task of a job, which the worker has no need to read while all goes well."""
    if run.task_name == "?":
        try:
            task = decode_envelope(run.claimed.body).body.task
        except BideError:
            return "?"
        run.task_name = task if task.isprintable() else repr(task)
    return run.task_name


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
