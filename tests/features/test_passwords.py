"""Servers that ask for a password, and clients that have none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from bide import AccessDenied, AsyncQueue, Queue


@pytest.fixture
def locked(url: str) -> Iterator[str]:
    """A server whose password the URL does not have."""
    with redis.Redis.from_url(url) as client:
        client.config_set("requirepass", "secret")
        yield url
        client.config_set("requirepass", "")


def test_a_blocking_client_is_told_that_it_may_not_come_in(locked: str) -> None:
    """Its first call is so long that the server cuts strangers off without a word."""
    with pytest.raises(AccessDenied, match="refuses access"):
        Queue("mail", url=locked).enqueue("app:send", 42)


def test_and_so_is_one_on_an_event_loop(locked: str) -> None:
    async def enqueue() -> None:
        await AsyncQueue("mail", url=locked).enqueue("app:send", 42)

    with pytest.raises(AccessDenied, match="refuses access"):
        asyncio.run(enqueue())
