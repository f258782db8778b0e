"""Producers and workers are killed while items are batched: each is in one list, in its order."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import redis

from bide import Queue
from tests.support.eventually import PATIENCE, eventually
from tests.support.invariants import assert_legal
from tests.support.worker_pool import ROOT, WorkerPool

COUNT, PRODUCERS = 300, 4


@pytest.mark.slow
def test_items_outlive_their_producers_and_their_workers(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool, tmp_path: Path
) -> None:
    options = ("-q", "mail", "--lease", "1s", "-c", "4")
    workers = worker_pool.workers_at_work(2, one_url, *options)
    logs = [tmp_path / f"p{i}.log" for i in range(PRODUCERS)]
    producers = []
    for i, log in enumerate(logs):
        with log.open("wb") as sink:
            command = [
                sys.executable,
                "-m",
                "tests.chaos.batch_producer",
                one_url,
                f"p{i}",
                str(COUNT),
            ]
            producers.append(subprocess.Popen(command, cwd=ROOT, stdout=sink))
    try:
        worker_pool.ledger.wait("begun", 3)
        workers[0].kill()
        eventually(lambda: acknowledged(logs[0]) > 40)
        producers[0].kill()
        producers[1].kill()
        worker_pool.workers_at_work(1, one_url, *options)
        for producer in producers:
            producer.wait(PATIENCE)
    finally:
        for producer in producers:
            producer.kill()
            producer.wait()
    queue = Queue("mail", url=one_url)
    eventually(lambda: queue.counts().delayed + queue.counts().waiting + queue.counts().active == 0)

    holding = assert_legal(direct, "mail")
    assert holding.sets["failed"] == {}

    def due(id: str) -> int:
        return holding.records[id].due_us

    lists = [queue.fetch(id).result for id in sorted(holding.sets["completed"], key=due)]
    queue.close()
    found = defaultdict(list)
    for items in lists:
        assert items
        assert len({number % 3 for _, number in items}) == 1, "of one key"
        for name, number in items:
            found[name, number % 3].append(number)
    for i, log in enumerate(logs):
        done = acknowledged(log)
        for key in range(3):
            numbers = found[f"p{i}", key]
            expected = [*range(key, done, 3)]
            assert numbers[: len(expected)] == expected, "all, once, in their order"
            assert numbers[len(expected) :] in ([], [done]), "and maybe one nobody heard of"
    assert acknowledged(logs[2]) == acknowledged(logs[3]) == COUNT


def acknowledged(log: Path) -> int:
    """How many items the server has confirmed to a producer."""
    return log.read_text().count("\n")
