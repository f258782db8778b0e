"""Queues of RQ's on each server, and the tests' own workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from bide.contrib.rq import DelayQueue, timer
from tests.contrib.rq.rqs import like_rq

Make = Callable[..., DelayQueue]


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Timer does not look by itself: what it moves in time, it has heard of."""
    monkeypatch.setattr(timer, "LONGEST_SLEEP", 3600.0)


@pytest.fixture
def connection(url: str) -> Iterator[redis.Redis]:
    with like_rq(url) as client:
        yield client


@pytest.fixture
def one_connection(one_url: str) -> Iterator[redis.Redis]:
    with like_rq(one_url) as client:
        yield client


@pytest.fixture
def queue(connection: redis.Redis) -> DelayQueue:
    return DelayQueue("mail", connection)


@pytest.fixture
def one_queue(one_connection: redis.Redis) -> DelayQueue:
    return DelayQueue("mail", one_connection)
