"""The conformance suite: what stands on the server after each verb.

Every test runs on each server that the other tests have, through the blocking and through the
asyncio executor; and on a Cluster, behind Sentinels and on Redis 6.2, there through one of both
(`BIDE_TEST_EVERYWHERE=1`: through both, and on servers that were fetched through one). Time moves
by `Probe.move` and by nothing else that a test could notice. Each test ends with a legal state.

On a single server the executor is a user who has the permissions that `bide acl` prints for a
worker, and no others; with `BIDE_TEST_EVERYWHERE=1`, on all servers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
import redis

from bide.embedded import Server
from tests.conftest import BINARIES, EVERYWHERE, ServerFor
from tests.support.cluster import cluster
from tests.support.listener import ChannelListener
from tests.support.plain import client_of
from tests.support.probe import Executor, Probe, open_executor
from tests.support.programs import old_server
from tests.support.sentinel import sentinel
from tests.support.users import as_role


class Place(NamedTuple):
    """Where a test runs, and through which executor."""

    server: str
    kind: str


def _places() -> list[Place]:
    first, *more = BINARIES
    alone = [Place(first, "sync"), *(Place(server, "aio") for server in (first, *more))]
    others = {"cluster": "aio", "sentinel": "sync", "redis6": "aio"}
    if old_server() is None:
        del others["redis6"]
    if "BIDE_TEST_SERVERS" in os.environ:
        return alone
    kinds = ("sync", "aio") if EVERYWHERE else ()
    return alone + [Place(server, kind) for server in others for kind in kinds or [others[server]]]


@pytest.fixture(scope="session")
def url_of(server_for: ServerFor) -> Iterator[Callable[[str], str]]:
    """From a server's name to its URL; what is started runs for the whole session."""
    with contextlib.ExitStack() as stack:

        @cache
        def start(name: str) -> str:
            if name == "cluster":
                return stack.enter_context(cluster()).url
            if name == "sentinel":
                return stack.enter_context(sentinel()).url
            if name == "redis6":
                return stack.enter_context(Server.start(binary=old_server())).url
            return server_for(name).url

        yield start


def _is_slow(place: Place) -> bool:
    """Whether only `make test-all` runs the tests there."""
    return place.server != next(iter(BINARIES))


_PARAMS = [
    pytest.param(place, id="-".join(place), marks=pytest.mark.slow if _is_slow(place) else ())
    for place in _places()
]


@pytest.fixture(params=_PARAMS)
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.param
    return found


@pytest.fixture
def kind(place: Place) -> str:
    return place.kind


@pytest.fixture(scope="session")
def client_at(url_of: Callable[[str], str]) -> Iterator[Callable[[str], Any]]:
    """From a server's name to a plain client; tests share it, as a Cluster's asks much first."""
    with contextlib.ExitStack() as stack:

        @cache
        def connect(name: str) -> Any:
            return stack.enter_context(contextlib.closing(client_of(url_of(name))))

        yield connect


@pytest.fixture
def url(place: Place, url_of: Callable[[str], str], client_at: Callable[[str], Any]) -> str:
    client_at(place.server).flushall()
    return url_of(place.server)


@pytest.fixture
def raw(url: str, place: Place, client_at: Callable[[str], Any]) -> Any:
    """A plain client, for reading keys."""
    return client_at(place.server)


@pytest.fixture
def executor(place: Place, url: str, raw: Any) -> Iterator[Executor]:
    if EVERYWHERE or place.server in BINARIES:
        url = as_role(url, raw, "worker", "mail", "other")
    executor = open_executor(place.kind, url)
    yield executor
    executor.end()


@pytest.fixture
def q(executor: Executor, raw: redis.Redis) -> Iterator[Probe]:
    """A queue that nobody has used yet."""
    probe = Probe(executor, raw)
    yield probe
    probe.check()


@pytest.fixture
def listener(q: Probe) -> Iterator[ChannelListener]:
    """What the scripts of that queue say over its channels."""
    with ChannelListener(q.raw, q.keys) as listener:
        yield listener
