"""Tasks of the tests of a worker with several queues; they note which queue they came from."""

from __future__ import annotations

import asyncio

import bide
from tests.support.eventually import PATIENCE
from tests.support.jobs import changed, gate, note, seen


async def mark() -> None:
    note(bide.current_job().queue)


async def mark_slowly() -> None:
    await asyncio.sleep(0.002)
    note(bide.current_job().queue)


def hold() -> None:
    """Keep its slot until the gate opens."""
    note("held")
    gate.wait(PATIENCE)


def call(url: str) -> None:
    """Add a job to the higher queue."""
    with_url = bide.Queue("high", url=url)
    with_url.enqueue(mark)
    with_url.close()
    note("called")


def again() -> None:
    """Fail, once another slot is held."""
    with changed:
        assert changed.wait_for(lambda: "held" in seen, PATIENCE)
    note(f"attempt {bide.current_job().attempt}")
    raise ValueError("once more")


def alone() -> None:
    """Keep its slot for so long that others would be seen, if any were begun."""
    note("alone")
    gate.wait(0.3)
    note("over")
