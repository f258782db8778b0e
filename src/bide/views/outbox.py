"""Outboxes that the dashboard was given: their rows that have not been sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from bide.errors import BideError, UsageError
from bide.views._async import AsyncSite
from bide.views.params import NotFound, Params, moment_json
from bide.worker.outbox import OutboxLike, OutboxRow, explained

T = TypeVar("T")

MOST_ROWS: Final = 50
"""Refused rows, and waiting rows, of each outbox."""


async def outboxes(site: AsyncSite, params: Params) -> dict[str, Any]:
    """The outboxes: how many rows wait, for how long, and the oldest rows."""
    found = [await _outbox(name, outbox) for name, outbox in site.outboxes.items()]
    return {"now": moment_json(site.now), "outboxes": found}


def outbox_of(site: AsyncSite, name: str) -> OutboxLike:
    """Return an outbox by its name.

    Raises:
        NotFound: the dashboard was not given it.
    """
    if name not in site.outboxes:
        raise NotFound(f"There is no outbox {name[:60]!r} here; start with --outbox to show it.")
    return site.outboxes[name]


async def in_thread(call: Callable[[], T]) -> T:
    """Call the database, which blocks; its error becomes one of bide's."""

    def called() -> T:
        with explained():
            return call()

    return await asyncio.to_thread(called)


async def repair_rows(site: AsyncSite, params: Params, verb: str) -> int:
    """Retry or delete the row that a form names, or retry all refused rows; return how many.

    Raises:
        NotFound: there is no such row any more.
        UsageError: the form names no row.
    """
    outbox = outbox_of(site, params.text("outbox"))
    if verb == "retry-rows":
        return await in_thread(outbox.retry_rows)
    number = params.number("row", 0, 2**63 - 1)
    if not number:
        raise UsageError("Which row? Give its number as row=.")
    change = outbox.retry_rows if verb == "retry-row" else outbox.delete_rows
    done = await in_thread(lambda: change([number]))
    if not done:
        kind = "refused row" if verb == "retry-row" else "row"
        raise NotFound(f"There is no {kind} {number} any more; it was sent, retried or deleted.")
    return done


async def _outbox(name: str, outbox: OutboxLike) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        stats = outbox.stats()
        refused = outbox.list_rows(MOST_ROWS, refused=True) if stats.refused else []
        # Refused rows may be the oldest ones, so as many more are read.
        oldest = outbox.list_rows(MOST_ROWS + min(stats.refused, 1_000)) if stats.waiting else []
        waiting = [row for row in oldest if not row.refused][:MOST_ROWS]
        return {
            **stats._asdict(),
            "refused_rows": [_report(row) for row in refused],
            "waiting_rows": [_report(row) for row in waiting],
        }

    try:
        return {"name": name, "problem": None, **await in_thread(read)}
    except BideError as error:  # the others are shown
        return {"name": name, "problem": str(error)}


def _report(row: OutboxRow) -> dict[str, Any]:
    return {**row._asdict(), "written": moment_json(row.written)}
