"""The worker's own event loop: uvloop's where it is installed, and an end that is not waited for.

`asyncio.run` cancels what is left and waits for it without bound: a job that is deaf to being
cancelled would keep the process for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from bide.errors import UsageError
from bide.logs import Log

log = Log("bide.worker")

T = TypeVar("T")

LAST_WORDS: Final = 1.0
"""Seconds for cancelled tasks to end."""


def check_none_runs() -> None:
    """Refuse to go on in a thread that runs an event loop, where another could never run.

    Raises:
        UsageError: this thread runs one.
    """
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError(
            "This thread runs an event loop already, in which `work` could never begin; call "
            "`await worker.run()` there, or `work` in a thread of its own."
        )


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own, and leave whatever does not end."""
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(main)
    try:
        while True:
            try:
                return loop.run_until_complete(task)
            except BaseException as error:
                if task.done():
                    raise
                # A task that a job has left running, or stopped the loop: no reason to end.
                log.error("something that a job started would end the worker: %r", error)
    finally:
        end(loop)
        asyncio.set_event_loop(None)
        loop.close()


def end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what an event loop still runs, and leave what does not end by that."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _, deaf = loop.run_until_complete(asyncio.wait(tasks, timeout=LAST_WORDS))
        if deaf:
            log.warning("%d tasks do not end though they were cancelled; left behind", len(deaf))
    loop.run_until_complete(loop.shutdown_asyncgens())


def preload() -> None:
    """Import what an event loop needs, for who will fork and have many children need it."""
    with contextlib.suppress(ImportError):
        importlib.import_module("uvloop")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Uvloop's event loop where it is installed (the extra `fast`), else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
