"""A worker that is paused: it goes on with what runs, and claims nothing."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest
import redis

from bide import Queue, State
from bide.protocol.commands.queues import worker_pause
from bide.protocol.keys import keys_of
from bide.worker import heartbeat
from tests.support import jobs
from tests.support.console import bide, said
from tests.support.workers import at_work, eventually

GLOBAL = keys_of(None)


def ask(queue: Queue, name: str, paused: bool) -> None:
    """Ask a worker to pause or to resume, and wait until it says that it has."""
    assert queue._client.run(worker_pause(GLOBAL, [name], paused)) == ["ok"]
    eventually(lambda: [w.about.paused for w in queue.workers() if w.name == name] == [paused])


def test_it_goes_on_with_what_runs_and_claims_nothing(queue: Queue) -> None:
    with at_work(queue, concurrency=2) as one:
        runs = queue.enqueue(jobs.wait_thread)
        eventually(lambda: runs.refresh().state is State.ACTIVE)
        eventually(lambda: queue.workers())
        ask(queue, one.name, True)
        waits = queue.enqueue(jobs.add, 1)
        jobs.gate.set()
        assert runs.wait(60) == "waited"
        assert waits.refresh().state is State.WAITING
        assert waits.why()[0].kind == "no_worker"
        assert "are paused; `bide workers resume" in waits.why()[0].text
        ask(queue, one.name, False)
        assert waits.wait(60) == 1


def test_another_worker_takes_over_what_it_watched(queue: Queue, raw: redis.Redis) -> None:
    with at_work(queue, name="paused") as one, at_work(queue, name="other"):
        eventually(lambda: len(queue.workers()) == 2)
        ask(queue, one.name, True)
        keep, park, wake = (queue.keys[name] for name in ("keep", "park", "wake"))
        for n in range(3):
            assert queue.enqueue(jobs.add, n, delay="50ms").wait(60) == n
        watching = {*raw.zrange(keep, 0, -1), *raw.zrange(park, 0, -1)}
        assert one.name.encode() not in watching
        assert raw.llen(wake) <= 1


def test_the_command_line_pauses_and_resumes_it(queue: Queue, tmp_path: Path, url: str) -> None:
    command = partial(bide, tmp_path, url=url)
    with at_work(queue, name="web1") as one:
        eventually(lambda: queue.workers())
        assert said(command("workers", "pause", "web1")) == f"{one.name} was asked to pause.\n"
        eventually(lambda: queue.workers()[0].about.paused)
        shown = said(command("workers"))
        assert f"{one.name} is paused; `bide workers resume {one.name}` ends that." in shown
        (told,) = json.loads(said(command("workers", "--json")))["workers"]
        assert told["paused"] is True
        assert said(command("workers", "resume", "web1")) == f"{one.name} was asked to resume.\n"
        eventually(lambda: not queue.workers()[0].about.paused)
        assert "is paused" not in said(command("workers"))


def test_a_request_that_was_lost_comes_with_a_heartbeat(
    queue: Queue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.1)
    with at_work(queue) as one:
        eventually(lambda: queue.workers())
        now_us = time.time_ns() // 1000
        raw.hset(GLOBAL["workers"], f"{one.name} pause", now_us)  # as the script does, in silence
        eventually(lambda: queue.workers()[0].about.paused)
        raw.hdel(GLOBAL["workers"], f"{one.name} pause")
        eventually(lambda: not queue.workers()[0].about.paused)
        assert queue.enqueue(jobs.add, 2).wait(60) == 2
