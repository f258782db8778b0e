"""A worker that starts while the server is down waits for it; a burst does not."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from bide import AccessDenied, Queue, ServerUnavailable, Worker
from bide.embedded import Server
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy
from tests.support.worker_pool import JOBS, WorkerPool
from tests.support.workers import Later

WAITS = "Trying again until it works"
CUT_SHORT = "stopped before it had started"


@pytest.fixture
def late(tmp_server: Callable[..., Server]) -> Server:
    """A server that is down."""
    server = tmp_server(persist=True)
    server.kill()
    return server


@pytest.fixture
def locked(one_url: str, direct: redis.Redis) -> Iterator[str]:
    """A server whose password the URL does not have."""
    direct.config_set("requirepass", "secret")
    yield one_url
    direct.config_set("requirepass", "")


@pytest.mark.slow
def test_it_says_that_it_waits_and_serves_when_the_server_is_there(
    late: Server, worker_pool: WorkerPool
) -> None:
    worker = worker_pool.worker(late.url, "-q", "mail")
    worker.says(WAITS)
    assert "Cannot reach the server at unix://" in worker.log
    late.restart()
    with closing(Queue("mail", url=late.url)) as queue:
        job = queue.enqueue(f"{JOBS}:quick")
        with redis.Redis.from_url(late.url) as at:
            eventually(lambda: job.id in assert_legal(at, "mail").sets["completed"])
    worker.terminate()
    assert worker.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once(late: Server, worker_pool: WorkerPool, number: int) -> None:
    worker = worker_pool.worker(late.url, "-q", "mail")
    worker.says(WAITS)
    worker.process.send_signal(number)
    assert worker.wait() == 0
    assert CUT_SHORT in worker.log


@pytest.mark.slow
def test_also_where_it_waits_for_a_reply(
    proxy: Proxy, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    def connections() -> int:
        told: Any = direct.info("stats")
        return int(told["total_connections_received"])

    proxy.hold()
    before = connections()
    worker = worker_pool.worker(proxy.url, "-q", "mail")
    eventually(lambda: connections() > before)
    worker.terminate()
    assert worker.wait() == 0
    assert CUT_SHORT in worker.log


def test_another_thread_stops_it(late: Server, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("mail", url=late.url)
    with caplog.at_level(logging.INFO, "bide"):
        working = Later(worker.run)
        eventually(lambda: WAITS in caplog.text)
        worker.stop()
        assert working.result() == 0
    assert CUT_SHORT in caplog.text


def test_one_that_was_stopped_before_does_not_begin_to_wait(late: Server) -> None:
    worker = Worker("mail", url=late.url)
    worker.stop()
    assert Later(worker.run).result() == 0


def test_it_waits_in_an_event_loop_beside_others(late: Server) -> None:
    async def wait() -> int:
        worker = Worker("mail", url=late.url)
        running = asyncio.create_task(worker.arun())
        await asyncio.sleep(0)
        worker.stop()
        return await running

    assert asyncio.run(wait()) == 0


@pytest.mark.slow
def test_a_burst_does_not_wait(late: Server, worker_pool: WorkerPool) -> None:
    working = Later(lambda: Worker("mail", url=late.url).run(burst=True))
    with pytest.raises(ServerUnavailable, match="Cannot reach"):
        working.result()
    worker = worker_pool.worker(late.url, "-q", "mail", "--burst")
    assert worker.wait() == 1
    assert "Error: Cannot reach the server" in worker.log
    assert WAITS not in worker.log


def test_a_burst_does_not_wait_for_a_replica_to_take_changes(
    tmp_server: Callable[..., Server],
) -> None:
    master = tmp_server(tcp=True)
    follows = ("--replicaof", f"127.0.0.1 {urlsplit(master.url).port}")
    replica = tmp_server(tcp=True, extra=follows)
    working = Later(lambda: Worker("mail", url=replica.url).run(burst=True))
    with pytest.raises(ServerUnavailable, match="is a replica, which takes no changes"):
        working.result()


def test_a_wrong_password_ends_it(locked: str) -> None:
    working = Later(Worker("mail", url=locked).run)
    with pytest.raises(AccessDenied, match="refuses access"):
        working.result()
