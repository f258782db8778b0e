"""The desk's jobs. Each says in the journal that it has begun, and that it is done.

They are served by `bide worker bide.cli.demo.tasks`; a worker of the demo ends with the demo,
however that ends: its standard input is a pipe that the demo holds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from bide import current_job
from bide.cli.demo.journal import CANCEL, NOTIFY, Begun, Finished, Journal, Kind, now_us, to_us

JOURNAL: Final = "BIDE_DEMO_JOURNAL"
"""The environment variable with the journal's path, set for the demo's workers."""


async def notify(order: str) -> None:
    """Tell a customer about an order; this takes as long as a mail server might: 100 to 300 ms."""
    with journaled(NOTIFY, order):
        await asyncio.sleep(0.1 + zlib.crc32(order.encode()) % 200 / 1000)


def cancel_unpaid(order: str) -> None:
    """Cancel an order whose payment deadline has passed."""
    with journaled(CANCEL, order):
        pass  # here a shop would put the goods back on the shelf


@contextmanager
def journaled(kind: Kind, order: str) -> Iterator[None]:
    """Note the begin and the end of a job."""
    started_us = now_us()
    job = current_job()
    run = (order, kind, job.id, job.attempt, job.token, os.getpid())
    _journal().write(Begun(*run, due_us=to_us(job.due), started_us=started_us))
    yield
    _journal().write(Finished(*run, done_us=now_us()))


@cache
def _journal() -> Journal:
    return Journal(Path(os.environ[JOURNAL]))


def _end_with_the_demo() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if JOURNAL in os.environ:
    threading.Thread(target=_end_with_the_demo, name="bide-demo-leash", daemon=True).start()
