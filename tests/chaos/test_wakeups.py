"""Wake-up messages: one at a bad moment is not forgotten, and nobody wakes for nothing."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
import redis

from bide import Queue
from bide.protocol.keys import keys_of
from tests.support.cpu_waits import now_us
from tests.support.eventually import eventually
from tests.support.proxy import Proxy
from tests.support.server_state import calls, scores
from tests.support.worker_pool import JOBS, WorkerPool

pytestmark = pytest.mark.slow

KEYS = keys_of("mail")
HORIZON_US = 2_000_000
"""How long an idle worker waits at most if it hears nothing."""


def test_a_wakeup_that_comes_while_a_claim_is_under_way_is_acted_upon(
    one_url: str, proxy: Proxy, worker_pool: WorkerPool
) -> None:
    """The claim ran before the second job was there: its reply says nothing of it."""
    queue = Queue("mail", url=one_url)
    worker_pool.workers_at_work(1, proxy.url, "-q", "mail")
    proxy.delay_reply(
        f"{JOBS}:quick".encode(), 0.2, then=lambda: queue.enqueue(f"{JOBS}:quick", job_id="second")
    )
    queue.enqueue(f"{JOBS}:quick", job_id="first")
    worker_pool.ledger.wait("done", 2)
    (line,) = worker_pool.ledger.lines("begun", "second")
    print(f"{(line.token - line.due_us) / 1e3:.1f} ms late")
    assert worker_pool.late_us(line) < HORIZON_US / 2
    queue.close()


def test_a_lone_worker_does_not_call_itself_for_ever(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """One that was killed is still written down as a sleeper, whom a timekeeper would call."""
    worker_pool.workers_at_work(1, one_url, "-q", "mail")
    direct.zadd(KEYS["park"], {"killed": time.time_ns() // 1000 + 60_000_000})
    before, started = calls(direct), time.monotonic()
    (deadline,) = eventually(lambda: scores(direct, KEYS["keep"]).values())
    eventually(lambda: max(scores(direct, KEYS["keep"]).values()) > deadline + HORIZON_US)
    claims, took = calls(direct) - before, time.monotonic() - started
    print(f"{claims} calls in {took:.1f} s")
    assert claims < 10 + 10 * took


def test_where_the_line_breaks_a_wakeup_may_have_been_lost(
    proxy: Proxy, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    """So the worker looks, though its deadline was later."""
    worker_pool.workers_at_work(1, proxy.url, "-q", "mail")
    eventually(lambda: cast("Any", direct.info("clients"))["blocked_clients"])  # it listens

    def fresh() -> int | None:
        """Its deadline, if it was just set, so that it would not look for long."""
        (deadline,) = [*scores(direct, KEYS["keep"]).values()] or [0]
        return deadline if deadline > now_us() + HORIZON_US * 3 // 4 else None

    deadline = eventually(fresh)
    assert deadline is not None
    since_us = now_us()
    proxy.cut()
    eventually(lambda: [*scores(direct, KEYS["keep"]).values()] not in ([], [deadline]))
    looked_us = now_us()
    assert looked_us - worker_pool.witness.waited_us(since_us, looked_us) < deadline
