"""A Cluster and Sentinels that tests share: whoever breaks one leaves it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers.producers import Producers
from tests.support.cluster import Cluster, cluster
from tests.support.sentinel import Sentinels, sentinel
from tests.support.worker_pool import WorkerPool

Servers = Cluster | Sentinels
T = TypeVar("T", Cluster, Sentinels)


@pytest.fixture(scope="package")
def shared_cluster() -> Iterator[Cluster]:
    with cluster() as servers:
        yield servers


@pytest.fixture(scope="package")
def shared_sentinels() -> Iterator[Sentinels]:
    with sentinel() as servers:
        yield servers


@pytest.fixture
def nodes(shared_cluster: Cluster) -> Cluster:
    """A Cluster, empty and whole."""
    return _ready(shared_cluster)


@pytest.fixture
def trio(shared_sentinels: Sentinels) -> Sentinels:
    """A master, its replicas and its Sentinels, empty and whole."""
    return _ready(shared_sentinels)


@pytest.fixture(params=["cluster", "sentinel"])
def servers(request: pytest.FixtureRequest) -> Servers:
    """Either."""
    found: Servers = request.getfixturevalue("nodes" if request.param == "cluster" else "trio")
    return found


@pytest.fixture
def worker_pool(tmp_path: Path) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path) as worker_pool:
        yield worker_pool


@pytest.fixture
def producers() -> Iterator[Callable[..., Producers]]:
    """Starts producers, given a URL and the names of queues; they end with the test."""
    started: list[Producers] = []

    def start(url: str, *queues: str) -> Producers:
        started.append(Producers(url, *queues))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def _ready(servers: T) -> T:
    for node in servers.nodes:
        if not node.is_alive:
            node.restart()
    servers.settled()
    servers.flush()
    return servers
