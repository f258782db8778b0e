"""What `ps` and `top` show of a worker: its queues, and what runs.

Only where setproctitle is installed (the extra `title`), and only for a process that is a worker
and nothing else: `Worker.run` inside somebody's program leaves that program's title alone.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

from bide.ops.registry import Doing

EVERY: Final = 1.0
"""Seconds."""

_NAMES: Final = 3
_NO_ENVIRONMENT: Final = "SPT_NOENV"


def title(queues: Sequence[str], running: Iterable[str]) -> str:
    """`bide worker mail, low: 3 shop:send, shop:bill`; or `… : idle`.

    Args:
        queues: those that are served.
        running: the task of each job that runs.
    """
    names = Counter(running).most_common()
    shown = [f"{count} {name}" if count > 1 else name for name, count in names[:_NAMES]]
    if len(names) > _NAMES:
        shown.append(f"{sum(count for _, count in names[_NAMES:])} more")
    return f"bide worker {', '.join(queues)}: {', '.join(shown) or 'idle'}"


def set_title(text: str) -> None:
    """Say what this process does, where setproctitle is installed."""
    if (process := _process()) is not None:
        process.setproctitle(text)


@contextmanager
def titled(text: str) -> Iterator[None]:
    """Say what this process does, for as long as the context lasts."""
    process = _process()
    if process is None:
        yield
        return
    before: str = process.getproctitle()
    process.setproctitle(text)
    try:
        yield
    finally:
        process.setproctitle(before)


async def keep(queues: Sequence[str], doing: Callable[[], Iterable[Doing]]) -> None:
    """Keep this process's title true, to a second, until cancelled; then it is as it was."""
    if _process() is None:
        return
    said = title(queues, ())
    with titled(said):
        while True:
            if (now := title(queues, [job.task for job in doing()])) != said:
                set_title(said := now)
            await asyncio.sleep(EVERY)


@cache
def _process() -> Any:
    """The library, which reads this variable once: a title is not written over the environment.

    So it may be as long as the command line was, and what others read there stays true.
    """
    before = os.environ.get(_NO_ENVIRONMENT)
    os.environ[_NO_ENVIRONMENT] = "1"
    try:
        process = import_module("setproctitle")
        process.getproctitle()
        return process
    except ImportError:
        return None
    finally:
        if before is None:
            del os.environ[_NO_ENVIRONMENT]
