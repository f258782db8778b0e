"""`DelayQueue` and `AsyncDelayQueue`, as their users see them."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from bide import AsyncDelayQueue, DelayQueue, Queue, State, UsageError
from bide.protocol.keys import keys_of
from tests.support import jobs
from tests.support.cpu_waits import Witness
from tests.support.delay_queues import open_pile
from tests.support.eventually import eventually

KEYS = keys_of("orders")


def ids(seen: list[Any]) -> list[str]:
    return [item.id for item in seen]


# -- push and pop


def test_what_is_pushed_comes_out_as_it_was(pile: Any) -> None:
    data = [{"user": 1}, [1, [2.5]], "text", 9007199254740993, True, None, {}, []]
    pile.push_many(data)
    assert pile.pop(num=20) == data
    assert pile.pop() == []


def test_twenty_with_a_delay_come_out_after_it_ten_and_ten(pile: Any) -> None:
    pile.push_many(range(20), delay="300ms")
    assert pile.pop(num=10) == []
    pile.push("at once")
    assert pile.pop(num=10) == ["at once"]
    eventually(lambda: not pile.items("delayed"))
    assert pile.pop(num=10) == [*range(10)]
    assert pile.pop(num=10) == [*range(10, 20)]
    assert pile.pop(num=10) == []


def test_push_says_the_id_and_when_it_is_due(pile: Any) -> None:
    at = datetime(2199, 1, 1, tzinfo=UTC)
    pushed = pile.push({"user": 1}, at=at)
    assert (pushed.due, pushed.created) == (at, True)
    assert pile.peek()[0].id == pushed.id


def test_a_moment_that_has_passed_is_now(pile: Any) -> None:
    pile.push("x", at=datetime.now(UTC) - timedelta(days=1))
    assert pile.pop() == ["x"]
    pile.push("y", delay=-86_400)
    pile.push("z", delay=-timedelta(days=1))
    assert pile.pop(num=2) == ["y", "z"]


def test_pushing_the_same_id_again_adds_nothing(pile: Any) -> None:
    assert pile.push("first", id="a").created
    again = pile.push("second", id="a")
    assert (again.id, again.due, again.created) == ("a", None, False)
    assert [p.created for p in pile.push_many(["x", "y"], ids=["a", "b"])] == [False, True]
    assert sorted(pile.pop(num=5)) == ["first", "y"]
    assert not pile.push("third", id="a").created, "while a repeat may come"


def test_more_than_one_call_takes_are_popped_by_several(pile: Any) -> None:
    pile.push_many(range(600))
    assert pile.pop(num=550) == [*range(550)]
    assert pile.pop(num=550) == [*range(550, 600)]


def test_previous_leaves_what_was_due_only_just_now(pile: Any) -> None:
    pile.push("x")
    assert pile.pop(previous=3600) == []
    assert pile.pop(previous=0) == ["x"]


def test_previous_is_the_queues_and_that_of_a_call_wins(
    portal: Any, kind: str, url: str, raw: redis.Redis
) -> None:
    with open_pile(portal, kind, url, previous=3600) as pile:
        pile.push("x")
        assert pile.pop() == []
        with pile.take() as items:
            assert len(items) == 0
        with pile.take(previous=0) as items:
            assert [item.data for item in items] == ["x"]
        for call in (pile.pop, pile.take, pile.each):
            with pytest.raises(UsageError, match="previous"):
                call(previous="soon")
        assert pile.pop(previous=0) == ["x"]
    with pytest.raises(UsageError, match="previous"):
        DelayQueue("orders", url=url, previous="soon")


def test_each_with_previous(url: str, raw: redis.Redis) -> None:
    with contextlib.closing(DelayQueue("orders", url=url, previous=3600)) as pile:
        pile.push("x")
        assert [*pile.each(wait=0)] == []
        for item in pile.each(wait=0, previous=0):
            with item:
                assert item.data == "x"
        assert pile.length() == 0


def test_a_wait_with_previous_ends_when_it_was_due_for_so_long(
    portal: Any, kind: str, url: str, raw: redis.Redis, witness: Witness
) -> None:
    other = DelayQueue("orders", url=url)
    with open_pile(portal, kind, url, previous="300ms") as pile:
        threading.Timer(0.2, lambda: other.push("x")).start()
        with pile.take(wait=60) as items:
            job = other.queue.fetch(items[0].id)
            assert job.lateness is not None
            assert job.lateness >= 0.3
            assert witness.lateness(job) < 1.2, "it looks every two seconds by itself"
            items.ack()
    other.close()


def test_a_wait_with_previous_takes_no_wake_up_message_from_others(
    url: str, raw: redis.Redis, witness: Witness
) -> None:
    slow, quick = DelayQueue("orders", url=url, previous=3600), DelayQueue("orders", url=url)
    waiting = threading.Thread(target=lambda: slow.take(wait=60).__enter__())
    waiting.start()
    threading.Timer(0.3, lambda: slow.push("x")).start()
    with quick.take(wait=60) as items:
        assert witness.lateness(slow.queue.fetch(items[0].id)) < 1.2
        items.ack()
    slow.close()  # which ends its wait
    waiting.join(60)
    assert not waiting.is_alive()
    quick.close()


def test_what_was_taken_is_forgotten_soon(pile: Any, raw: redis.Redis) -> None:
    pile.push("x")
    assert raw.hget(KEYS["meta"], "retention") == b"10000 0 10000 2592000000000 10000 0"


def test_a_queue_that_is_in_use_keeps_its_retention(pile: Any, url: str, raw: redis.Redis) -> None:
    with_jobs = Queue("orders", url=url)
    with_jobs.enqueue(jobs.add, 1)
    pile.push("x")
    assert not raw.hexists(KEYS["meta"], "retention")
    with_jobs.close()


# -- take


def test_what_was_the_address_of_the_server_is_not_a_name() -> None:
    for kind in (DelayQueue, AsyncDelayQueue):
        with pytest.raises(UsageError, match=r"the server as url=; write (Async)?DelayQueue\('or"):
            kind({"host": "127.0.0.1", "port": 6379, "db": 0})  # type: ignore[arg-type]


# -- take


def test_an_item_that_is_acked_is_gone(pile: Any) -> None:
    pushed = pile.push({"user": 1})
    with pile.take() as items:
        (item,) = items
        assert (item.id, item.data, item.attempt) == (pushed.id, {"user": 1}, 1)
        assert item.due == pushed.due
        assert pile.length() == 0
        assert item.ack()
        assert item.ack(), "again is no harm"
    assert pile.length() == 0
    assert pile.pop() == []


def test_all_can_be_acked_at_once(pile: Any) -> None:
    pile.push_many(range(30))
    with pile.take(num=20) as items:
        assert [item.data for item in items] == [*range(20)]
        items[0].nack()
        assert items.ack()
        assert items.unanswered == []
    assert sorted(pile.pop(num=30)) == [0, *range(20, 30)]


def test_what_is_given_back_comes_again_and_counts(pile: Any) -> None:
    pile.push("x")
    with pile.take() as items:
        assert items[0].nack()
    with pile.take() as items:
        assert items[0].attempt == 2
        assert items[0].nack(delay=3600)
    with pile.take() as items:
        assert len(items) == 0
    (seen,) = pile.peek()
    assert (seen.state, seen.attempt) == (State.DELAYED, 2)
    assert seen.due > datetime.now(UTC) + timedelta(seconds=3500)


def test_unanswered_items_are_given_back_when_the_block_ends_as_if_never_taken(pile: Any) -> None:
    pile.push_many(["a", "b"])
    with pile.take(num=2) as items:
        items[0].ack()
    with pile.take(num=2) as items:
        (item,) = items
        assert (item.data, item.attempt) == ("b", 1)


def test_after_an_exception_they_are_given_back_at_once_as_failed_deliveries(pile: Any) -> None:
    pile.push_many(["a", "b"])
    with pytest.raises(ZeroDivisionError, match="oh no"), pile.take(num=2) as items:
        _deal_with_one_and_fail(items)
    (seen,) = pile.peek()
    assert (seen.data, seen.attempt, seen.state) == ("b", 1, State.WAITING)
    assert seen.error is not None
    assert (seen.error.type, seen.error.message) == ("ZeroDivisionError", "oh no")
    with pile.take() as items:
        assert items[0].attempt == 2


def _deal_with_one_and_fail(items: Any) -> None:
    items[0].ack()
    raise ZeroDivisionError("oh no")


def test_an_interrupt_is_no_fault_of_the_items(pile: Any) -> None:
    pile.push("a")
    with pytest.raises(KeyboardInterrupt):
        _interrupted(pile)
    with pile.take() as items:
        assert items[0].attempt == 1


def _interrupted(pile: Any) -> None:
    block = pile.take()
    block.__enter__()
    error = KeyboardInterrupt()
    block.__exit__(KeyboardInterrupt, error, None)
    raise error


def test_what_its_consumer_calls_failed_is_found_and_retried(pile: Any) -> None:
    pushed = pile.push("a")
    with pile.take() as items:
        assert items[0].fail("no such user")
    assert pile.pop() == []
    (failed,) = pile.items("failed")
    assert (failed.id, failed.data) == (pushed.id, "a")
    assert failed.error is not None
    assert failed.error.message == "no such user"
    assert pile.retry([pushed.id]) == ["ok"]
    assert pile.pop() == ["a"]


def test_an_item_whose_lease_ended_comes_again_and_its_holder_is_told(pile: Any, url: str) -> None:
    pile.push("a")
    other = DelayQueue("orders", url=url)
    with pile.take(lease="50ms") as slow, other.take(wait=10) as items:
        assert (items[0].data, items[0].reclaims) == ("a", 1)
        assert not slow[0].extend()
        assert not slow[0].ack()
        assert items[0].ack()
    other.close()


def test_an_extended_item_is_held_for_longer(pile: Any, url: str) -> None:
    pile.push("a")
    other = DelayQueue("orders", url=url)
    with pile.take(lease="1s") as items:
        assert items[0].extend("1h")
        assert items.extend("1h")
        held = other.items("active")
        assert ids(held) == [items[0].id]
        snapshot = other.queue.fetch(items[0].id)._seen()
        assert snapshot.since_us - snapshot.now_us > 3_000_000_000
        items.ack()
    other.close()


def test_an_item_is_answered_once(pile: Any) -> None:
    pile.push("a")
    with pile.take() as items:
        items[0].nack(delay=60)
        with pytest.raises(UsageError, match=r"answered before \(nack\)"):
            items[0].ack()


def test_poison_fails_in_the_end(pile: Any, url: str) -> None:
    """Its consumers do not come back; each lease ends without a word."""
    pushed = pile.push("poison")
    for _ in range(5):
        consumer = DelayQueue("orders", url=url)
        assert len(consumer.take(lease="20ms", wait=20).__enter__()) == 1
        consumer.close()
    eventually(lambda: pile.pop() == [] and pile.items("failed"))
    (failed,) = pile.items("failed")
    assert failed.id == pushed.id
    assert failed.error is not None
    assert failed.error.type == "WorkerCrashed"


# -- waiting


def test_a_wait_ends_at_once_when_something_is_pushed(
    pile: Any, url: str, witness: Witness
) -> None:
    other = DelayQueue("orders", url=url)
    threading.Timer(0.3, lambda: other.push("now")).start()
    with pile.take(wait=60) as items:
        job = other.queue.fetch(items[0].id)
        assert [item.data for item in items] == ["now"]
        items.ack()
    assert witness.lateness(job) < 1.2, "a timekeeper looks every two seconds by itself"
    other.close()


def test_a_wait_ends_when_something_is_due_and_not_before(
    pile: Any, url: str, witness: Witness
) -> None:
    pushed = pile.push("soon", delay="400ms")
    with pile.take(wait=60) as items:
        assert [item.data for item in items] == ["soon"]
        job = DelayQueue("orders", url=url).queue.fetch(pushed.id)
        assert job.lateness is not None
        assert job.lateness >= 0
        assert witness.lateness(job) < 1.5
        items.ack()


def test_a_wait_that_is_over_brings_nothing(pile: Any, witness: Witness) -> None:
    began = time.monotonic()
    with witness.within(2), pile.take(wait="200ms") as items:
        assert len(items) == 0
    assert time.monotonic() - began >= 0.2


@pytest.mark.slow
def test_whoever_waits_polls_nothing(pile: Any, raw: redis.Redis) -> None:
    pile.push("far", delay=3600)

    def claims() -> int:
        stats: Any = raw.info("commandstats")
        return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])

    with pile.take():
        pass
    before = claims()
    with pile.take(wait="1500ms") as items:
        assert len(items) == 0
    assert claims() - before <= 4


def test_nobody_counts_on_whoever_has_gone(pile: Any, raw: redis.Redis) -> None:
    pile.push("later", delay=3600)
    pile.push("now")
    with pile.take(num=5, wait=5) as items:
        assert raw.zcard(KEYS["keep"]) == raw.zcard(KEYS["park"]) == 0
        items.ack()
    with pile.take(wait="50ms"):
        assert raw.zcard(KEYS["keep"]) == raw.zcard(KEYS["park"]) == 0


def test_each_hands_out_one_after_another(portal: Any, kind: str, pile: Any) -> None:
    pile.push_many(range(5))
    seen = []
    if kind == "sync":
        for item in pile.each(num=2, wait="50ms"):
            seen.append(item.data)
            item.ack()
    else:

        async def run() -> None:
            async for item in pile._inner.each(num=2, wait="50ms"):
                seen.append(item.data)
                await item.ack()

        portal.call(run)
    assert seen == [*range(5)]
    assert pile.length() == 0


def test_leaving_the_loop_gives_back_what_was_not_acked(portal: Any, kind: str, pile: Any) -> None:
    pile.push_many(range(3))
    if kind == "sync":
        for item in pile.each(num=3):
            item.ack()
            break
    else:

        async def run() -> None:
            each = pile._inner.each(num=3)
            await (await anext(each)).ack()
            await each.aclose()

        portal.call(run)
    assert pile.pop(num=5) == [1, 2]


# -- looking and removing


def test_peek_shows_what_comes_next_and_leaves_it_there(pile: Any) -> None:
    later = pile.push("later", delay=60)
    now = pile.push("now")
    soon = pile.push("soon", delay=30)
    assert ids(pile.peek()) == [now.id, soon.id, later.id]
    assert ids(pile.peek(2)) == [now.id, soon.id]
    assert ids(pile.peek(within=40)) == [now.id, soon.id]
    assert ids(pile.peek(within=0)) == [now.id]
    assert pile.length() == 3
    assert [s.data for s in pile.items("delayed")] == ["soon", "later"]


def test_remove_takes_back_what_nobody_holds(pile: Any) -> None:
    a, b, c, d = [pile.push(x, id=x) for x in "abcd"]
    with pile.take() as items:
        items[0].fail()
    with pile.take() as items:
        removed = pile.remove([a.id, b.id, c.id, "unknown"])
        assert removed == ["ok", "active", "ok", "gone"]
        items.ack()
    assert pile.remove([c.id]) == ["ok"], "again is no harm"
    assert pile.remove([b.id]) == ["completed"]
    assert pile.pop(num=5) == ["d"]
    assert pile.items("failed") == []
    assert d.created


def test_clear_removes_all_that_nobody_has_taken(pile: Any) -> None:
    pile.push_many(range(20))
    pile.push_many(range(20), delay=60)
    assert pile.clear() == 40
    assert pile.length() == 0


def test_len_asks_the_server_and_truth_does_not(one_url: str) -> None:
    pile = DelayQueue("orders", url=one_url)
    assert len(pile) == 0
    assert pile
    pile.push_many([1, 2], delay=60)
    assert len(pile) == 2
    pile.close()
    assert DelayQueue("orders", url="unix:///nonexistent")
