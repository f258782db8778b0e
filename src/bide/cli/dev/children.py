"""The worker of `bide dev`: it serves the queues that the application has, and tells what is wrong.

It is told its plan over a line, says there whether it ends by a mistake in the source, and stops
when the line ends, because then `dev` is dead.

`dev` listens, so that the address is known, and taken, before the page has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import socket
import sys
import traceback
from typing import Any, Final

import msgspec

from bide import logs
from bide.errors import BideError
from bide.logs import printable
from bide.worker import Worker
from bide.worker.lifespan import leave_threads_behind
from bide.worker.processes.ipc import Reader
from bide.worker.run.outcome import from_application

SHOWN: Final = b"!"
"""What it says when it ends because of a mistake, which it has shown: another would end so too."""


class DevPlan(msgspec.Struct, frozen=True):
    """What a worker of `bide dev` does."""

    module: str
    path: list[str]
    """Where modules are looked for first."""
    url: str
    options: dict[str, Any]
    """Of `bide.Worker`; without `queues`, those that the application has are served."""
    log: logs.Settings


def run_worker() -> None:
    """Run the worker: the program that `dev` starts."""
    line = socket.socket(fileno=int(sys.argv[-1]))
    line.setblocking(True)
    line.set_inheritable(False)
    told = Reader(line).read()
    if told is None:
        return
    plan = msgspec.json.decode(told, type=DevPlan)
    logs.setup(*plan.log)
    sys.path[:0] = [place for place in plan.path if place not in sys.path]
    try:
        _work(plan, line)
    except BaseException as error:
        if isinstance(error, BideError):
            sys.stderr.write(f"Error: {printable(str(error))}\n")
        else:
            sys.stderr.write(explain(error))
        with contextlib.suppress(OSError):
            line.send(SHOWN)
        sys.exit(1)
    leave_threads_behind()


def _work(plan: DevPlan, line: socket.socket) -> None:
    """Import the module, and run jobs until the worker must stop; raise errors of the source."""
    importlib.import_module(plan.module)
    worker = Worker(url=plan.url, modules=[plan.module], **plan.options)
    worker.run(beside=lambda: _stop_with(line, worker))


def explain(error: BaseException) -> str:
    """What was raised: the traceback, from the application's own first line on."""
    lines = traceback.format_exception(type(error), error, from_application(error.__traceback__))
    return "".join(f"{printable(line)}\n" for line in "".join(lines).splitlines())


async def _stop_with(line: socket.socket, worker: Worker) -> None:
    """Stop the worker when the line ends."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    line.setblocking(False)
    loop.add_reader(line, ended.set)
    try:
        await ended.wait()
        worker.stop()
    finally:
        loop.remove_reader(line)


PORT: Final = 8484
"""The port of the dashboard, unless another program uses it."""

_NEEDS: Final = ("jinja2", "starlette", "uvicorn")


def is_installed() -> bool:
    """Whether the packages that the dashboard needs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDS)


def listening() -> socket.socket:
    """Listen on 127.0.0.1: on the usual port if it is free, otherwise on any free port."""
    try:
        return socket.create_server(("127.0.0.1", PORT))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


def serve_page() -> None:
    """Run the dashboard: the program that `dev` starts.

    Requests from this machine may change things.
    """
    from bide.web import app
    from bide.web.application import serve

    listener = socket.socket(fileno=int(sys.argv[-1]))
    serve(app(url=os.environ["BIDE_URL"], local_role="operator"), listener)
