"""Tasks that cost nothing themselves: one ends well, the other raises."""

from __future__ import annotations


async def nothing(n: int) -> None: ...


async def fail(n: int) -> None:
    raise ConnectionError("the service is down")
