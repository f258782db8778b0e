"""The conformance suite: what stands on the server after each verb.

Every test runs on each server, through the blocking and through the asyncio executor; through the
blocking one as a user who has the rights that `bide acl` prints for a worker, and no others. Time
moves by `Probe.move` and by nothing else that a test could notice. Each test ends with a legal
state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from bide.cli.acl import rules
from tests.conformance.probe import Executor, Probe, open_executor
from tests.faults.ear import Ear


@pytest.fixture(params=["sync", "aio"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    """A plain client, for reading keys."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def executor(kind: str, url: str, raw: redis.Redis) -> Iterator[Executor]:
    if kind == "aio":
        executor = open_executor(kind, url)
    else:
        run: Any = raw.execute_command
        run(
            "ACL",
            "SETUSER",
            "worker",
            "reset",
            ">secret",
            *rules("worker", ["mail", "other"], "bide"),
        )
        mark = "&" if "?" in url else "?"
        executor = open_executor(kind, f"{url}{mark}username=worker&password=secret")
    yield executor
    executor.end()


@pytest.fixture
def q(executor: Executor, raw: redis.Redis) -> Iterator[Probe]:
    """A queue that nobody has used yet."""
    probe = Probe(executor, raw)
    yield probe
    probe.check()


@pytest.fixture
def ear(q: Probe) -> Iterator[Ear]:
    """What the scripts of that queue say over its channels."""
    with Ear(q.raw, q.keys) as ear:
        yield ear
