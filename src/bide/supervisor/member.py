"""A member: a worker that reports to a supervisor, and stops when that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Callable
from typing import Final

from bide import logs
from bide.errors import AccessDenied, BideError, ServerUnavailable, TooOld, UsageError
from bide.logs import printable
from bide.supervisor.plan import Farewell, News, Vitals, decode_plan, encode
from bide.worker import Worker
from bide.worker.leftovers import leave_threads_behind
from bide.worker.processes.wire import Reader, send

EVERY: Final = 1.0
SOON: Final = 0.05
"""Seconds between two reports; until it has begun, others wait for that."""

_MEANT_WRONG: Final = (UsageError, LookupError, TooOld)
_NOT_LET_IN: Final = (AccessDenied, ServerUnavailable)
"""Errors that another member would meet, too. A worker waits for a server that is down: that it
cannot be reached is an error only in a burst, or where waiting does not help."""

_WRONG: Final = 2
"""The exit code of a command line that cannot be meant."""


def main() -> None:
    """Be a member: the program that a supervisor starts."""
    line = socket.socket(fileno=int(sys.argv[-1]))
    line.setblocking(True)  # whatever a module makes of the default
    line.set_inheritable(False)
    told = Reader(line).read()
    if told is None:
        return
    plan = decode_plan(told)
    logs.setup(*plan.log)
    try:
        worker = Worker(**plan.options)
        worker.figures = {} if plan.counts else None
        worker.work(plan.burst, beside=lambda: report(worker, line))
    except BideError as error:
        sys.stderr.write(f"Error: {printable(str(error))}\n")
        if isinstance(error, _MEANT_WRONG + _NOT_LET_IN):
            _say(line, Farewell("unusable"))
        sys.exit(_WRONG if isinstance(error, _MEANT_WRONG) else 1)
    _say(line, _vitals(worker))
    _say(line, Farewell("replace" if worker.replaceable else "ended"))
    leave_threads_behind()


def _say(line: socket.socket, news: News) -> None:
    with contextlib.suppress(OSError):
        send(line, encode(news))


def _vitals(worker: Worker) -> Vitals:
    return Vitals(time.monotonic(), worker.polled, worker.figures)


async def report(worker: Worker, line: socket.socket) -> None:
    """Say how the worker is until cancelled; if nobody listens, stop it."""
    line.setblocking(False)
    loop = asyncio.get_running_loop()
    loop.add_reader(line, _orphaned, loop, line, worker.stop)
    try:
        while True:
            _say(line, _vitals(worker))
            await asyncio.sleep(EVERY if worker.polled else SOON)
    finally:
        loop.remove_reader(line)
        line.setblocking(True)


def _orphaned(
    loop: asyncio.AbstractEventLoop, line: socket.socket, stop: Callable[[], None]
) -> None:
    loop.remove_reader(line)
    stop()
