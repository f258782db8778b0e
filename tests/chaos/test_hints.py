"""Wake hints: one that comes at a bad moment is not forgotten, and nobody wakes for nothing."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
import redis

from bide import Queue
from bide.protocol.keys import keys_of
from tests.support.cpu_waits import now_us
from tests.support.crew import JOBS, Crew
from tests.support.eventually import eventually
from tests.support.proxy import Proxy
from tests.support.server_state import calls, scores

pytestmark = pytest.mark.slow

KEYS = keys_of("mail")
HORIZON_US = 2_000_000
"""How long an idle worker waits at most if it hears nothing."""


def test_a_hint_that_comes_while_a_claim_is_under_way_is_acted_upon(
    one_url: str, proxy: Proxy, crew: Crew
) -> None:
    """The claim ran before the second job was there: its reply says nothing of it."""
    queue = Queue("mail", url=one_url)
    crew.workers_at_work(1, proxy.url, "-q", "mail")
    proxy.delay_reply(
        f"{JOBS}:quick".encode(), 0.2, then=lambda: queue.enqueue(f"{JOBS}:quick", job_id="second")
    )
    queue.enqueue(f"{JOBS}:quick", job_id="first")
    crew.ledger.wait("done", 2)
    (line,) = crew.ledger.lines("begun", "second")
    print(f"{(line.token - line.due_us) / 1e3:.1f} ms late")
    assert crew.late_us(line) < HORIZON_US / 2
    queue.close()


def test_a_lone_worker_does_not_call_itself_for_ever(
    one_url: str, direct: redis.Redis, crew: Crew
) -> None:
    """One that was killed is still written down as a sleeper, whom a keeper would call."""
    crew.workers_at_work(1, one_url, "-q", "mail")
    direct.zadd(KEYS["park"], {"killed": time.time_ns() // 1000 + 60_000_000})
    before, started = calls(direct), time.monotonic()
    (promise,) = eventually(lambda: scores(direct, KEYS["keep"]).values())
    eventually(lambda: max(scores(direct, KEYS["keep"]).values()) > promise + HORIZON_US)
    claims, took = calls(direct) - before, time.monotonic() - started
    print(f"{claims} calls in {took:.1f} s")
    assert claims < 10 + 10 * took


def test_where_the_line_breaks_a_hint_may_have_been_lost(
    proxy: Proxy, direct: redis.Redis, crew: Crew
) -> None:
    """So the worker looks, though it had promised to look only later."""
    crew.workers_at_work(1, proxy.url, "-q", "mail")
    eventually(lambda: cast("Any", direct.info("clients"))["blocked_clients"])  # it listens

    def fresh() -> int | None:
        """What it has just promised, so that it would not look for long."""
        (promise,) = [*scores(direct, KEYS["keep"]).values()] or [0]
        return promise if promise > now_us() + HORIZON_US * 3 // 4 else None

    promise = eventually(fresh)
    assert promise is not None
    since_us = now_us()
    proxy.cut()
    eventually(lambda: [*scores(direct, KEYS["keep"]).values()] not in ([], [promise]))
    looked_us = now_us()
    assert looked_us - crew.witness.waited_us(since_us, looked_us) < promise
