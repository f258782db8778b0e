"""The example's `move` takes all that waits in RQ, whoever delayed it, with what was said of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
import redis
import rq

import bide
from bide.contrib.rq import DelayQueue
from bide.model.payload.body import Body, decode_body
from tests.contrib.rq import jobs
from tests.contrib.rq.delay_rq import OldQueue
from tests.contrib.rq.rqs import burst


@pytest.fixture
def example(one_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("BIDE_URL", one_url)
    monkeypatch.delitem(sys.modules, "examples.from_rq", raising=False)
    module = importlib.import_module("examples.from_rq")
    yield module
    module.queue.close()


def stored(connection: redis.Redis, id: str) -> Body:
    """The job as bide's workers read it."""
    data = connection.hget("bide:{mail}:jobs", id)
    assert isinstance(data, bytes)
    return decode_body(data)


@pytest.mark.parametrize("key", ["", "shop:later"])
def test_each_set_is_moved_with_all_that_was_said_of_its_jobs(
    example: ModuleType, one_connection: redis.Redis, key: str
) -> None:
    queue, old = DelayQueue("mail", one_connection), OldQueue("mail", one_connection)
    if key:
        queue.delay_key = old.delay_key = key
    about = {"description": "one", "meta": {"by": "shop"}, "retry": rq.Retry(3, [0, 5, 60])}
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    ours = queue.enqueue(jobs.add, 1, b=2, delay=7200, job_timeout=33, **about)
    theirs = old.enqueue_call(jobs.add, (1,), {"b": 2}, delay=7200, timeout=33, **about)
    rqs = queue.enqueue_at(moment, jobs.add, 1, b=2, job_timeout=33, **about)
    endless = queue.enqueue(jobs.add, 1, delay=7200, job_timeout=-1)
    often = queue.enqueue(jobs.add, 1, delay=7200, retry=rq.Retry(4, [5, 60]))
    brief = queue.enqueue(jobs.add, 1, delay=7200, ttl=60)
    past = old.enqueue_delay_job(old.create_job(jobs.add, (1,)), 1)
    cancelled = old.enqueue(jobs.add, 1, delay=60)
    cancelled.cancel()
    plain = queue.enqueue(jobs.add, 1)
    due = {job.id: queue.delayed_until(job) for job in (ours, theirs)} | {rqs.id: moment}
    with closing(bide.Queue("mail")) as new:
        assert example.move(queue, new) == 7
        assert example.move(queue, new) == 0
        for before in (ours, theirs, rqs):
            job = new.fetch(before.id)
            assert job.due == due[before.id]
            assert (job.task, job.args, job.kwargs) == ("tests.contrib.rq.jobs:add", (1,), {"b": 2})
            assert (job.description, job.meta) == ("one", {"by": "shop"})
            body = stored(one_connection, before.id)
            assert body.timeout == 33
            assert body.retry == bide.Retry(3, backoff=[0, 5, 60])
        assert new.fetch(past.id).state == "waiting"
        short = new.fetch(brief.id)
        assert short.expires is not None
        assert short.due is not None
        assert short.expires - short.due == timedelta(minutes=1)
        assert new.fetch(endless.id).state == "delayed"
        assert stored(one_connection, endless.id).timeout == 365 * 86_400
        assert stored(one_connection, endless.id).retry == bide.Retry(0, backoff=[0])
        assert stored(one_connection, often.id).retry == bide.Retry(4, backoff=[5, 5, 5, 60])
    assert one_connection.zrange(queue.delay_key, 0, -1) == [cancelled.id.encode()]
    assert queue.scheduled_job_registry.count == 0
    assert queue.job_ids == [plain.id]
    assert burst(queue) == 0


class Parcel:
    def post(self) -> str:
        return "posted"

    def __len__(self) -> int:
        return 0


WITH_RQ_ALONE: dict[str, dict[str, Any]] = {
    "success": {"on_success": rq.Callback(jobs.on_success)},
    "failure": {"on_failure": rq.Callback(jobs.on_failure)},
    "stopped": {"on_stopped": rq.Callback(jobs.on_stopped)},
    "repeat": {"repeat": rq.Repeat(2)},
    "method": {"f": Parcel().post},
    "pickle": {"f": jobs.add, "args": (object(),)},
}
RQ: Any = rq
if hasattr(rq, "Webhook"):  # since 2.10
    WITH_RQ_ALONE["webhook"] = {"webhooks": [RQ.Webhook("https://example.com", "finished")]}
if hasattr(rq, "RateLimit"):  # since 3
    WITH_RQ_ALONE["rate limit"] = {"rate_limit": RQ.RateLimit("api", 1)}


@pytest.mark.parametrize("kind", [*WITH_RQ_ALONE, "dependent"])
@pytest.mark.parametrize("delayed", [True, False])
def test_a_job_that_only_rq_can_run_stays_there_and_the_others_move(
    example: ModuleType, one_connection: redis.Redis, kind: str, delayed: bool
) -> None:
    queue = DelayQueue("mail", one_connection)
    hour = timedelta(hours=1)

    def later(f: Any = jobs.add, **options: Any) -> rq.job.Job:
        if delayed:
            return queue.enqueue(f, **options, delay=3600)
        return queue.enqueue_in(hour, f, **options)

    first = later(args=(1,))
    kept = later(**WITH_RQ_ALONE.get(kind, {}))
    last = later(args=(1,))
    if kind == "dependent":
        queue.enqueue(jobs.add, 1, depends_on=kept)
    with closing(bide.Queue("mail")) as new:
        assert example.move(queue, new) == 2
        assert new.fetch_many([first.id, kept.id, last.id])[1] is None
    left = [job.id for job in queue.delayed_jobs()]
    assert left + queue.scheduled_job_registry.get_job_ids() == [kept.id]
    assert one_connection.exists(kept.key)


def test_static_methods_move_and_run(example: ModuleType, one_connection: redis.Redis) -> None:
    queue = DelayQueue("mail", one_connection)
    made = [queue.enqueue(f, 1, delay=3600) for f in (jobs.Shop.open, jobs.Shop.Desk.close)]
    with closing(bide.Queue("mail")) as new:
        assert example.move(queue, new) == 2
        for job in made:
            new.fetch(job.id).promote()
        bide.Worker("mail", modules="tests.contrib.rq.jobs").run(burst=True)
        assert [new.fetch(job.id).result for job in made] == ["opened 1", "closed 1"]
