"""A module that the workers of the last deploy do not serve."""

from __future__ import annotations

from tests.support.ledger_jobs import note


async def added() -> int:
    note("begun")
    return note("done")
