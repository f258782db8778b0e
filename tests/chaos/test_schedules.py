"""Workers that are killed around firings: each time is fired, once, whoever is there to do it."""

from __future__ import annotations

from contextlib import closing

import pytest
import redis

from bide import Queue
from bide.model.payload.body import Body, encode_body, of_schedule
from bide.model.schedule import Timing
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.schedules import Draft
from bide.protocol.keys import keys_of
from tests.chaos.conftest import Connect
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy
from tests.support.worker_pool import JOBS, WorkerPool

OPTIONS = ("-q", "mail", "--lease", "1s")
FIRINGS = 160


def grid(first: int, step: int, count: int) -> list[str]:
    return [f"tick@{first + n * step}" for n in range(count)]


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again_neither_lose_nor_double_a_firing(
    one_url: str, direct: redis.Redis, worker_pool: WorkerPool
) -> None:
    with closing(Queue("mail", url=one_url)) as queue:
        workers = worker_pool.workers_at_work(3, one_url, *OPTIONS)
        task = f"{JOBS}:quick"
        set_ = queue.schedules.upsert("tick", task, every="25ms", missed="all", limit=FIRINGS)
        for n in range(1, 5):
            worker_pool.ledger.wait("begun", n * 25)
            workers.pop(0).kill()
            if n == 3:  # all of them; what nobody fires meanwhile is made up for
                while workers:
                    workers.pop().kill()
            workers += worker_pool.workers_at_work(1, one_url, *OPTIONS)

        def all_done() -> bool:
            return len(assert_legal(direct, "mail").sets["completed"]) == FIRINGS

        eventually(all_done)
        schedule = queue.schedules.fetch("tick")
        assert schedule.over
        assert schedule.fired == FIRINGS
    wanted = grid(set_.times[0], 25_000, FIRINGS)
    assert sorted(assert_legal(direct, "mail").sets["completed"]) == wanted
    begun = worker_pool.ledger.lines("begun")
    assert {line.id for line in begun} == set(wanted)
    assert all(line.token >= int(line.id.partition("@")[2]) for line in begun), "never early"
    again = [id for id, count in worker_pool.ledger.count("done").items() if count > 1]
    print(f"{len(again)} of {FIRINGS} jobs ran to their end twice: their worker was killed")


@pytest.mark.parametrize("lost", range(1, 9))
def test_whichever_reply_is_lost_each_time_is_fired_once(
    lost: int, one_url: str, direct: redis.Redis, connect: Connect
) -> None:
    """The calls of a worker's life around a firing: whichever is cut off, they are repeated."""
    keys = keys_of("mail")
    body = of_schedule(encode_body(Body("app.tasks:send")), "tick")
    draft = Draft("tick", Timing(every_us=20_000, limit=5), "all", 0, 5, "app.tasks:send", body)
    with Proxy(one_url) as proxy:
        client = connect(proxy.url)
        client.run(job_commands.counts(keys))
        proxy.lose_reply(lost)
        reply = client.run(schedule_commands.set_schedule(keys, draft))
        assert reply.schedule is not None
        found: list[str] = []
        for seq in range(1, 5_000):
            claim = client.run(worker_commands.claim(keys, "w", seq, 1, 60_000_000, 0))
            found += [job.id for job in claim.jobs]
            if len(found) == 5:
                break
    assert found == grid(reply.schedule.times[0], 20_000, 5)
    assert assert_legal(direct, "mail").schedules["tick"].over
