"""What `ps` and `top` show of a worker: its queues, and what runs.

Only where setproctitle is installed (the extra `title`), and only for a process that is a worker
and nothing else: `Worker.run` inside somebody's program leaves that program's title alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Final

EVERY: Final = 1.0
"""Seconds."""

_NAMES: Final = 3


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


async def keep(queues: Sequence[str], running: Callable[[], Iterable[str]]) -> None:
    """Keep this process's title true, to a second, until cancelled; then it is as it was."""
    try:
        process = import_module("setproctitle")
    except ImportError:
        return
    before: str = process.getproctitle()
    said = ""
    try:
        while True:
            if (now := title(queues, running())) != said:
                process.setproctitle(said := now)
            await asyncio.sleep(EVERY)
    finally:
        process.setproctitle(before)
