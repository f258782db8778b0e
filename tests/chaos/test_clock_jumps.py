"""The server's clock jumps, as at a failover to a node that has another time.

The scripts' clock is the server's plus an offset that the test moves; workers are claims made as a
worker makes them: again at once when there is more, else when the reply says.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from bide.client import blocking
from bide.model.job import Claimed
from bide.model.payload.body import Body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from bide.protocol.scripts import TEST_CLOCK
from tests.chaos.verbs import enqueue_all
from tests.support.invariants import Holding, assert_legal

KEYS = keys_of("mail")
LEASE = 10.0
HOUR = 3600.0
SLACK = 5.5
"""A worker that waits alone looks at its queue every 5 s, whatever the clock does."""


class World:
    """A server whose clock can jump, and workers that live on their own monotonic time."""

    def __init__(self, url: str, direct: redis.Redis) -> None:
        self.client = blocking.Client(url, clock=TEST_CLOCK)
        self.direct = direct
        self.lived = 0.0  # seconds of the workers' own time
        self._jump = 0.0
        self._seqs: dict[str, int] = {}

    def jump(self, seconds: float) -> None:
        """The clock is set; no time passes."""
        self._jump += seconds
        self._set()

    def live(self, seconds: float) -> None:
        """Time passes, for everyone."""
        self.lived += seconds
        self._set()

    def _set(self) -> None:
        offset = round((self._jump + self.lived) * 1e6)
        self.direct.hset(KEYS["meta"], "test_offset_us", offset)

    def add(self, count: int, delay: float = 0.0) -> list[str]:
        jobs = [enqueue_commands.prepare(Body("app:task"), delay) for _ in range(count)]
        return [receipt.id for receipt in enqueue_all(self.client, KEYS, jobs)]

    def claim(self, worker: str, count: int = 500) -> worker_commands.Claim:
        seq = self._seqs[worker] = self._seqs.get(worker, 0) + 1
        return self.client.run(
            worker_commands.claim(KEYS, worker, seq, count, round(LEASE * 1e6), 0)
        )

    def extend(self, jobs: list[Claimed]) -> None:
        tokens = [(job.id, job.token) for job in jobs]
        extend = worker_commands.extend(KEYS, round(LEASE * 1e6), tokens)
        assert self.client.run(extend) == ["ok"] * len(jobs)

    def work(self, worker: str, seconds: float) -> dict[str, float]:
        """Claim as a worker does, for so long; id -> after how long it was taken.

        By the server's clock, on which the time that the test itself takes passes too.
        """
        taken: dict[str, float] = {}
        began_us = 0
        end = self.lived + seconds
        while True:
            claim = self.claim(worker)
            began_us = began_us or claim.now_us
            taken |= {job.id: (claim.now_us - began_us) / 1e6 for job in claim.jobs}
            if not claim.more:
                pause = (claim.until_us - claim.now_us) / 1e6
                assert pause > 0, "an empty claim must not ask to be repeated at once"
                if self.lived + pause > end:
                    self.live(end - self.lived)
                    return taken
                self.live(pause)

    def holding(self) -> Holding:
        return assert_legal(self.direct, "mail")


@pytest.fixture
def world(one_url: str, direct: redis.Redis) -> Iterator[World]:
    world = World(one_url, direct)
    yield world
    world.client.close()


def test_a_jump_forward_takes_no_job_from_a_worker_that_lives(world: World) -> None:
    """It could not have renewed its leases in no time: it is given the time of one lease."""
    world.add(50)
    held = world.claim("holder").jobs
    world.jump(HOUR)
    assert world.work("other", LEASE / 3) == {}
    world.extend(held)
    assert world.work("other", LEASE / 2) == {}
    settles = [Settle(job.id, job.token, "complete") for job in held]
    assert world.client.run(worker_commands.settle(KEYS, settles)) == ["ok"] * 50
    assert world.holding().total("reclaimed") == 0


@pytest.mark.parametrize("count", [1, 100])
def test_after_a_jump_forward_the_jobs_of_a_dead_worker_come_back_a_lease_later(
    world: World, count: int
) -> None:
    ids = world.add(count)
    world.claim("dead")
    world.jump(HOUR)
    taken = world.work("other", LEASE + SLACK)
    assert taken.keys() == set(ids)
    assert min(taken.values()) >= LEASE, "since the first claim, which noticed the jump"


def test_what_falls_due_in_a_jump_forward_runs_and_the_jump_is_told(world: World) -> None:
    world.work("w", 1)
    (id,) = world.add(1, delay=60)
    world.jump(HOUR)
    assert world.work("w", SLACK).keys() == {id}
    assert world.client.run(job_commands.counts(KEYS)).gap_us >= (HOUR - 5) * 1e6


def test_a_small_step_forward_is_no_jump(world: World) -> None:
    """Up to 30 s a clock that is put right and an idle fleet look the same: leases end."""
    (id,) = world.add(1)
    world.claim("dead")
    world.jump(LEASE + 10)
    assert world.work("other", 0.1).keys() == {id}


@pytest.mark.parametrize("count", [1, 100])
def test_after_a_jump_backward_the_jobs_of_a_dead_worker_come_back_within_a_lease(
    world: World, count: int
) -> None:
    """Their leases reach an hour too far; they are clamped as they are met."""
    ids = world.add(count)
    world.claim("dead")
    world.jump(-HOUR)
    taken = world.work("other", LEASE + SLACK)
    assert taken.keys() == set(ids)


def test_after_a_jump_backward_a_worker_that_lives_keeps_its_jobs(world: World) -> None:
    world.add(50)
    held = world.claim("holder").jobs
    world.jump(-HOUR)
    for _ in range(6):
        assert world.work("other", LEASE / 3) == {}
        world.extend(held)
    settles = [Settle(job.id, job.token, "complete") for job in held]
    assert world.client.run(worker_commands.settle(KEYS, settles)) == ["ok"] * 50


def test_tokens_grow_across_a_jump_backward(world: World) -> None:
    """What the dead worker would settle is refused, though its claim bears the later time."""
    world.add(1)
    (before,) = world.claim("dead").jobs
    world.jump(-HOUR)
    world.work("other", LEASE + SLACK)
    (after,) = world.holding().records.values()
    assert after.token > before.token
    late = Settle(before.id, before.token, "complete")
    assert world.client.run(worker_commands.settle(KEYS, [late])) == ["lost"]


@pytest.mark.parametrize("count", [1, 100])
def test_there_and_back_again(world: World, count: int) -> None:
    """A failover to a node an hour ahead, and one back: what is held comes back within a lease."""
    ids = world.add(count)
    world.claim("dead")
    world.jump(HOUR)
    world.work("other", 1)
    world.jump(-HOUR)
    assert world.work("other", LEASE + SLACK).keys() == set(ids)


def test_back_and_there_again(world: World) -> None:
    ids = world.add(20)
    world.claim("dead")
    world.jump(-HOUR)
    world.work("other", 1)
    world.jump(HOUR)
    assert world.work("other", LEASE + SLACK).keys() == set(ids)


def test_after_a_jump_backward_no_worker_counts_as_idle_that_has_not_said_so_since(
    world: World,
) -> None:
    """A worker's deadline of the old time would stand for an hour."""
    world.work("gone", 1)
    world.jump(-HOUR)
    world.work("other", SLACK)
    assert world.client.run(job_commands.counts(KEYS)).idle_workers == 1


def test_a_job_due_now_wakes_the_workers_after_a_jump_backward(world: World) -> None:
    """Deadlines of the old time would keep the message from being pushed for an hour."""
    world.work("w", 1)
    world.jump(-HOUR)
    (id,) = world.add(1)
    assert world.direct.llen(KEYS["wake"]) == 1
    assert world.work("w", 2.5).keys() == {id}
    (soon,) = world.add(1, delay=1)
    assert world.work("w", 2.5).keys() == {soon}
