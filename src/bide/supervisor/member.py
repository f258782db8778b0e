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
from bide.errors import BideError, TooOld, UsageError
from bide.logs import printable
from bide.supervisor.plan import ENDED, RETIRED, UNUSABLE, Plan, Vitals, decode_plan, encode
from bide.worker import Worker
from bide.worker.leftovers import leave_threads_behind
from bide.worker.processes.wire import Reader

EVERY: Final = 1.0
SOON: Final = 0.05
"""Seconds between two reports; until the server has answered, others wait for that."""


def main() -> None:
    """Be a member: the program that a supervisor starts."""
    line = socket.socket(fileno=int(sys.argv[1]))
    told = Reader(line).read()
    if told is None:
        return
    plan = decode_plan(told)
    sys.path[:] = plan.path
    logs.setup(*plan.log)
    try:
        sys.exit(_serve(plan, line))
    except BideError as error:
        sys.stderr.write(f"Error: {printable(str(error))}\n")
        sys.exit(UNUSABLE if isinstance(error, UsageError | LookupError | TooOld) else 1)


def _serve(plan: Plan, line: socket.socket) -> int:
    worker = Worker(**plan.options)
    worker.work(plan.burst, beside=lambda: report(worker, line))
    code = RETIRED if worker.retired else ENDED
    leave_threads_behind(code)
    return code


async def report(worker: Worker, line: socket.socket) -> None:
    """Say how the worker is until cancelled; if nobody listens, stop it."""
    line.setblocking(False)
    loop = asyncio.get_running_loop()
    loop.add_reader(line, _orphaned, loop, line, worker.stop)
    try:
        while True:
            with contextlib.suppress(OSError):
                line.send(encode(Vitals(time.monotonic(), worker.answered)))
            await asyncio.sleep(EVERY if worker.answered else SOON)
    finally:
        loop.remove_reader(line)


def _orphaned(
    loop: asyncio.AbstractEventLoop, line: socket.socket, stop: Callable[[], None]
) -> None:
    loop.remove_reader(line)
    stop()


if __name__ == "__main__":
    main()
