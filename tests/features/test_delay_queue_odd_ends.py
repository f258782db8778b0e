"""What a delay queue does with bad input, and with jobs among its items."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from bide import DelayQueue, PayloadError, Queue, State, UsageError, Worker
from bide.model.payload.body import ITEM_MARK, MAX_DATA, Body, encode_item
from bide.protocol.commands.enqueue import Prepared, prepare
from bide.protocol.keys import keys_of
from bide.protocol.scripts import load
from bide.testing import eager
from tests.support import jobs
from tests.support.workers import burst

KEYS = keys_of("orders")


# -- bad input


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (object(), "objects of type object do not fit JSON"),
        ({"x": float("nan")}, "NaN"),
        ("x" * MAX_DATA, "1,000,002 bytes, more than 1,000,000"),
    ],
)
def test_data_that_cannot_travel_are_refused(pile: Any, data: Any, says: str) -> None:
    with pytest.raises(PayloadError, match=says):
        pile.push_many(["good", data])
    assert pile.length() == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p: p.push(1, delay="-soon"), "delay='-soon' is not a duration"),
        (lambda p: p.push(1, at=datetime(2030, 1, 1)), "no time zone"),
        (lambda p: p.push(1, delay=1, at=datetime.now(UTC)), "not both"),
        (lambda p: p.push(1, id="a b"), "space"),
        (lambda p: p.push_many("text"), "needs a list"),
        (lambda p: p.push_many({"a": 1}), "needs a list"),
        (lambda p: p.push_many([1, 2], ids=["a"]), "2 items and 1 ids"),
        (lambda p: p.pop(num=0), "num=0"),
        (lambda p: p.pop(num=True), "num=True"),
        (lambda p: p.pop(previous="soon"), "previous='soon'"),
        (lambda p: p.take(num=251), "1 to 250"),
        (lambda p: p.take(lease=0), "lease must be more than 0"),
        (lambda p: p.take(wait=-1), "wait must not be negative"),
        (lambda p: p.each(num="x"), "num='x'"),
        (lambda p: p.remove("abc"), "list of ids"),
        (lambda p: p.peek(num=501), "0 to 500"),
        (lambda p: p.items("nowhere"), "no state"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(pile: Any, call: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call(pile)


def test_no_server_no_delay_queue() -> None:
    with eager():
        pile = DelayQueue("orders")
        with pytest.raises(UsageError, match="eager"):
            pile.push(1)
        with pytest.raises(UsageError, match="eager"):
            pile.pop()
        with pytest.raises(UsageError, match="eager"), pile.take():
            pass


def test_a_take_is_entered_once(one_url: str) -> None:
    pile = DelayQueue("orders", url=one_url)
    block = pile.take()
    with block, pytest.raises(UsageError, match="call take"):
        block.__enter__()
    with pytest.raises(UsageError, match=r"loop over its items: `with pile\.take\(\) as items:`"):
        list(pile.take())
    pile.close()


# -- jobs among items, and items among jobs


@pytest.mark.slow
def test_a_job_in_the_way_fails_with_a_note_and_blocks_nobody(pile: Any, url: str) -> None:
    queue = Queue("orders", url=url)
    popped = queue.enqueue(jobs.add, 1)
    pile.push("behind")
    assert pile.pop(num=1) == ["behind"]
    taken = queue.enqueue(jobs.add, 2)
    pile.push("behind too")
    with pile.take(wait=5) as items:
        assert [item.data for item in items] == ["behind too"]
        items.ack()
    for job in (popped, taken):
        assert job.refresh().state is State.FAILED
        assert job.error is not None
        assert "not data" in job.error.message
    assert pile.items("failed") == [], "it is no item"
    assert queue.retry_many([popped.id, taken.id]) == ["ok", "ok"]
    assert burst(queue) == 2
    assert [j.refresh().state for j in (popped, taken)] == [State.COMPLETED] * 2
    queue.close()


@pytest.mark.slow
def test_a_worker_fails_an_item_with_a_sentence_and_loses_nothing(pile: Any, url: str) -> None:
    queue = Queue("orders", url=url)
    job = queue.enqueue(jobs.add, 1)
    pushed = pile.push({"user": 1})
    assert burst(queue) == 2
    assert job.refresh().state is State.COMPLETED
    error = queue.fetch(pushed.id).error
    assert error is not None
    assert "This is an item of a DelayQueue, not a job" in error.message
    assert pile.items("failed")[0].data == {"user": 1}
    assert pile.retry([pushed.id]) == ["ok"]
    assert pile.pop() == [{"user": 1}]
    queue.close()


MANY = 12_000
"""More jobs than a queue keeps of what has failed."""


def some(count: int, priority: int = 5) -> list[Prepared]:
    return [prepare(Body("app:task", (n,)), priority=priority) for n in range(count)]


def takes(pile: Any, how: str) -> list[Any]:
    if how == "pop":
        return list(pile.pop(num=1))
    with pile.take(num=1, wait=1 if how == "take and wait" else 0) as items:
        items.ack()
        return [item.data for item in items]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pop", "take", "take and wait"])
def test_whoever_takes_from_a_queue_of_jobs_is_told_and_leaves_it_as_it_was(
    pile: Any, url: str, raw: redis.Redis, how: str
) -> None:
    queue = Queue("orders", url=url)
    queue.enqueue_many(some(MANY))
    for _ in range(3):
        with pytest.raises(UsageError, match="Queue orders holds jobs, and no data; give the"):
            takes(pile, how)
    counts = queue.counts()
    assert (counts.waiting, counts.active, counts.failed) == (MANY, 0, 0)
    assert not counts.is_data
    queue.purge()
    queue.enqueue(jobs.add, 1)
    assert burst(queue) == 1
    queue.close()


@pytest.mark.parametrize("how", ["pop", "take"])
def test_of_jobs_in_a_delay_queue_a_few_fail_at_a_time_and_the_data_come_out(
    pile: Any, url: str, how: str
) -> None:
    queue = Queue("orders", url=url)
    pile.push("behind")
    queue.enqueue_many(some(30, priority=9))
    for n in (12, 24):
        with pytest.raises(UsageError, match="but also jobs, of which 12 have failed"):
            takes(pile, how)
        assert queue.counts().failed == n
    assert takes(pile, how) == ["behind"]
    assert queue.counts().failed == 30
    queue.close()


def test_a_take_of_many_gives_back_the_jobs_it_need_not_fail(pile: Any, url: str) -> None:
    queue = Queue("orders", url=url)
    queue.enqueue_many(some(30))
    pile.push("behind")
    with pile.take(num=250) as items:
        assert [item.data for item in items] == ["behind"]
        counts = queue.counts()
        assert (counts.failed, counts.waiting, counts.active) == (12, 18, 1)
        items.ack()
    queue.close()


@pytest.mark.slow
def test_a_worker_refuses_a_delay_queue_before_it_takes_anything(pile: Any, url: str) -> None:
    pile.push_many(range(50))
    other = Queue("other", url=url)
    job = other.enqueue(jobs.add, 1)
    with pytest.raises(UsageError, match="Queue orders is a delay queue: it holds data, which no"):
        Worker([other, pile.queue.name], url=url).run(burst=True)
    assert pile.length() == 50
    assert job.refresh().state is State.WAITING
    other.close()


@pytest.mark.parametrize("how", ["pop", "take"])
def test_items_that_another_language_pushed_make_a_delay_queue_too(
    pile: Any, raw: redis.Redis, how: str
) -> None:
    script = load("enqueue")
    keys = KEYS.of(script.keys)
    assert pile.pop() == [], "whoever looked before sees it all the same"
    for id in "ab":
        raw.eval(script.text, len(keys), *keys, id, "+0", 5, encode_item(id))
        assert takes(pile, how) == [id]
    assert raw.hget(KEYS["meta"], "retention") == b"10000 0 10000 2592000000000 10000 0"
    assert pile.queue.counts().is_data


@pytest.mark.parametrize("how", ["pop", "take"])
def test_what_only_looks_like_an_item_fails_and_blocks_nobody(
    pile: Any, raw: redis.Redis, how: str
) -> None:
    """Another program wrote it, with one EVAL."""
    enqueue = load("enqueue")
    raw.eval(enqueue.text, len(KEYS.of(enqueue.keys)), *KEYS.of(enqueue.keys), "odd", "+0", 5,
             ITEM_MARK + b"{not JSON")  # fmt: skip
    raw.eval(enqueue.text, len(KEYS.of(enqueue.keys)), *KEYS.of(enqueue.keys), "good", "+0", 5,
             ITEM_MARK + b'{"user":1}')  # fmt: skip
    if how == "pop":
        assert pile.pop(num=5) == [{"user": 1}]
        assert pile.pop(num=5) == []
    else:
        with pile.take(num=5) as items:
            assert [item.data for item in items] == [{"user": 1}]
            items.ack()
    (failed,) = (item for item in _bodies(raw, "failed"))
    assert failed == ITEM_MARK + b"{not JSON", "it stays as it is"
    (seen,) = pile.queue.jobs("failed")
    assert "not JSON" in seen.error.message
    for name in ("failed", "completed"):  # it is not legal, and the fixture would say so
        _forget(raw, name)


def _bodies(raw: redis.Redis, name: str) -> list[bytes]:
    listed: Any = raw.zrange(KEYS[name], 0, -1)
    found: Any = [raw.hget(KEYS["jobs"], id) for id in listed]
    return list(found)


def _forget(raw: redis.Redis, name: str) -> None:
    listed: Any = raw.zrange(KEYS[name], 0, -1)
    for id in listed:
        raw.zrem(KEYS[name], id)
        for stored in ("jobs", "run", "notes"):
            raw.hdel(KEYS[stored], id)
