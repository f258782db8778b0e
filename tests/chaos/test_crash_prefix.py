"""A server that dies in the middle of a write: whatever prefix of its log is left is a legal state.

One script makes one transition, and a server writes what a script did as one transaction: a log
that is cut anywhere loses whole scripts, from the last backwards, and nothing of the others.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from bide.embedded import Server
from tests.conftest import BINARIES, SERVERS
from tests.support.invariants import Holding, assert_legal
from tests.support.resp import end_of_message
from tests.support.workload import Workload

QUEUE = "mail"
STEPS = 400
CUTS_PER_VERB = 9
RANDOM_CUTS = 25
OPTIONS = ("--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")


def log_of(directory: Path) -> Path:
    """The file that the server appends to; before version 7 there is but one."""
    parts = sorted(directory.glob("appendonlydir/*.incr.aof"))
    return parts[-1] if parts else directory / "appendonly.aof"


def boundaries(data: bytes, start: int, end: int) -> list[int]:
    """Where commands end between two positions at which some do."""
    ends = []
    while start < end:
        at = end_of_message(data, start)
        assert at is not None
        ends.append(at)
        start = at
    return ends


def inner_cuts(
    data: bytes, after: list[tuple[int, str]], dice: random.Random
) -> Iterator[tuple[int, int]]:
    """(position, step it falls into) for the longest transaction of each verb, and some more."""
    longest: dict[str, tuple[int, int, int]] = {}
    for step, ((start, _), (end, verb)) in enumerate(pairwise(after)):
        if end - start > longest.get(verb, (0, 0, 0))[2] - longest.get(verb, (0, 0, 0))[1]:
            longest[verb] = (step, start, end)
    for step, start, end in longest.values():
        ends = boundaries(data, start, end)
        for at in [start, *dice.sample(ends, min(len(ends), CUTS_PER_VERB)), end]:
            yield at, step if at < end else step + 1
    for _ in range(RANDOM_CUTS):
        at = dice.randrange(after[0][0], after[-1][0])
        yield at, max(i for i, (end, _) in enumerate(after) if end <= at)


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_every_prefix_of_the_log_is_the_state_between_two_scripts(
    tmp_path: Path, name: str
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    source = tmp_path / "source"
    holdings: list[Holding] = []
    after: list[tuple[int, str]] = []  # how long the log was after each step, and its verb
    with Server.start(source, persist=True, binary=BINARIES[name], extra=OPTIONS) as server:
        workload = Workload(server.url, QUEUE, seed)
        with redis.Redis.from_url(server.url) as client:
            for verb in workload.steps(STEPS):
                holdings.append(assert_legal(client, QUEUE))
                after.append((log_of(source).stat().st_size, verb))
        workload.close()
        server.kill()
        data = log_of(source).read_bytes()
    assert {verb for _, verb in after} >= {
        "enqueue",
        "claim",
        "settle",
        "extend",
        "note",
        "cancel",
        "revive",
        "watch",
        "configure",
        "purge",
    }
    assert holdings[-1].total("reclaimed") > 0
    assert holdings[-1].schedules["few"].over
    assert holdings[-1].schedules["beat"].fired > 3

    cuts = sorted(set(inner_cuts(data, after, random.Random(seed))))
    assert len(cuts) > 80
    copy = tmp_path / "copy"
    for at, step in cuts:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.sock", "*.log", "*.lock"))
        with log_of(copy).open("r+b") as log:
            log.truncate(at)
        with Server.start(copy, persist=True, binary=BINARIES[name], extra=OPTIONS) as server:
            with redis.Redis.from_url(server.url) as client:
                found = assert_legal(client, QUEUE)
            server.kill()
        where = f"cut at {at}, in step {step + 1} ({after[min(step + 1, len(after) - 1)][1]})"
        assert found == holdings[step], where
