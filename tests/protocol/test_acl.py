"""A user who may run scripts on the queue's keys, but not use channels: messages may be lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from bide.model.job import Claimed
from bide.protocol.commands.worker import Settle
from tests.support.probe import LEASE, Executor, Probe, open_executor


def allow(raw: redis.Redis, *rules: str) -> None:
    run: Any = raw.execute_command
    run("ACL", "SETUSER", "limited", *rules)


@pytest.fixture
def executor(kind: str, url: str, raw: redis.Redis) -> Iterator[Executor]:
    """Newer servers give a new user no channel; older ones, all of them."""
    allow(raw, "reset", "on", ">secret", "~bide:*", "resetchannels", "+@all", "-@admin")
    mark = "&" if "?" in url else "?"
    executor = open_executor(kind, f"{url}{mark}username=limited&password=secret")
    yield executor
    executor.end()
    raw.acl_deluser("limited")


def watched(q: Probe, id: str = "a") -> Claimed:
    job = q.take(id)
    assert q.watch(id) == "active"
    return job


def test_outcomes_are_taken_though_nobody_can_be_told(q: Probe) -> None:
    job = watched(q)
    assert q.settle(job, "complete", data=b"42") == "ok"
    holding = q.holding()
    assert holding.where("a") == "completed"
    assert (holding.waiters, holding.total("completed")) == ({}, 1)


def test_a_job_that_is_to_run_again_beside_it_wakes_someone(q: Probe) -> None:
    """The wake-up message comes after the message about the end."""
    q.add("a", "b")
    a, b = q.claim().jobs
    q.watch("a")
    q.hear()
    settles = [Settle(a.id, a.token, "complete"), Settle(b.id, b.token, "retry", "+0")]
    assert q.settle_many(*settles) == ["ok", "ok"]
    assert q.hear() == "-"


def test_a_running_job_is_asked_to_stop_and_learns_it_with_its_lease(q: Probe) -> None:
    q.add("a", "b")
    a, b = q.claim().jobs
    assert q.cancel("a", "b") == ["asked", "asked"]
    assert q.extend(a, b) == ["asked", "asked"]


def test_a_waiting_job_is_cancelled(q: Probe) -> None:
    q.add("a", "b")
    q.watch("a")
    assert q.cancel("a", "b") == ["ok", "ok"]
    assert q.holding().total("cancelled") == 2


def test_claims_go_on_where_a_watched_job_has_ended_by_its_workers_death(q: Probe) -> None:
    watched(q)
    q.cancel("a")
    q.add("b")
    q.move(LEASE + 1)
    q.watch("a")
    assert q.taken("w2") == ["b"]
    assert q.where("a") == "cancelled"


def test_who_may_not_write_events_can_end_jobs_and_the_gap_shows(
    q: Probe, raw: redis.Redis
) -> None:
    start = q.listen()
    q.add("a", "b")
    allow(raw, "-xadd")
    for job in q.claim().jobs:
        assert q.settle(job, "complete") == "ok"
    assert q.where("b") == "completed"
    assert q.listen(start.after) == start, "there are some to be read before it"
    assert q.listen(q.told()[-1].id).gap


def test_a_listener_that_is_refused_asks_less_and_less_often(
    kind: str, q: Probe, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would connect for ever, of every worker five times a second."""
    monkeypatch.setattr("bide.client.pubsub.RECONNECT_PAUSE", 0.001)
    monkeypatch.setattr("bide.client.pubsub.LONGEST_RECONNECT_PAUSE", 0.004)

    def is_over(pauses: list[float], pause: float) -> bool:
        """Note a pause that is another; whether it was refused for long, and then was not."""
        if pauses[-1:] != [pause]:
            pauses.append(pause)
        if pause == 0.004:
            allow(raw, "allchannels")
        return pause == 0.001

    def listen() -> list[float]:
        pauses: list[float] = []
        with q.executor.client.waiting_for(q.keys["waiters"], "a") as listener:
            while not is_over(pauses, listener._pause):
                listener.wait(time.monotonic() + 0.05)
        return pauses

    async def listen_async() -> list[float]:
        pauses: list[float] = []
        async with q.executor.client.listen(q.keys["waiters"]) as listener:
            while not is_over(pauses, listener._pause):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(listener.next(), 0.05)
        return pauses

    pauses = listen() if kind == "sync" else q.executor.await_(listen_async())
    assert pauses == [0.002, 0.004, 0.001]
