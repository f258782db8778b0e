"""Concurrent enqueues share round trips, and no caller suffers from another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import redis

from bide import AsyncQueue, DurabilityUnavailable, JobCancelled, ServerFull, ServerUnavailable
from bide.client.url import hide_password
from bide.protocol.commands import enqueue as enqueue_commands
from tests.support import jobs
from tests.support.proxy import Proxy
from tests.support.workers import Later

pytestmark = pytest.mark.anyio


@pytest.fixture
async def queue(url: str) -> AsyncIterator[AsyncQueue]:
    queue = AsyncQueue("work", url=url)
    await queue.enqueue(jobs.add, 0, job_id="first")  # the script is known, and so is the queue
    yield queue
    await queue.close()


def begin(raw: redis.Redis) -> None:
    raw.config_resetstat()


def calls(raw: redis.Redis) -> int:
    """How many scripts have run since `begin`."""
    stats: Any = raw.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


async def test_what_is_enqueued_at_once_goes_in_one_round_trip(
    queue: AsyncQueue, raw: redis.Redis
) -> None:
    begin(raw)
    added = await asyncio.gather(*(queue.enqueue(jobs.add, i, job_id=f"j{i}") for i in range(200)))
    assert calls(raw) == 1
    assert [job.id for job in added] == [f"j{i}" for i in range(200)]
    assert all(job.created for job in added)
    assert (await queue.counts()).waiting == 201


async def test_what_is_enqueued_meanwhile_goes_with_the_next(
    queue: AsyncQueue, raw: redis.Redis
) -> None:
    async def some(n: int) -> None:
        for i in range(10):
            await queue.enqueue(jobs.add, i, job_id=f"j{n}-{i}")

    begin(raw)
    await asyncio.gather(*(some(n) for n in range(50)))
    assert calls(raw) <= 2 * 10 + 2, "500 jobs, of which ten follow one another"
    assert (await queue.counts()).waiting == 501


async def test_each_gets_what_became_of_its_own(queue: AsyncQueue) -> None:
    one, again, many, later = await asyncio.gather(
        queue.enqueue(jobs.add, 1),
        queue.enqueue(jobs.add, 2, job_id="first"),
        queue.enqueue_many([queue.prepare(jobs.add, [i]) for i in range(3)]),
        queue.enqueue(jobs.add, 3, delay=60),
    )
    assert (one.created, again.created, [job.created for job in many]) == (True, False, [True] * 3)
    assert later.due > one.due
    assert (await later.refresh()).args == (3,)
    assert await queue.enqueue_many([]) == []


async def test_one_that_cannot_be_meant_concerns_nobody_else(queue: AsyncQueue) -> None:
    results = await asyncio.gather(
        queue.enqueue(jobs.add, 1),
        queue.enqueue(jobs.add, 1, priority=77),
        queue.enqueue(jobs.add, object()),
        queue.enqueue(jobs.add, 2),
        return_exceptions=True,
    )
    assert [isinstance(result, Exception) for result in results] == [False, True, True, False]
    assert (await queue.counts()).waiting == 3


async def test_an_error_of_the_server_reaches_all_of_them(
    queue: AsyncQueue, raw: redis.Redis
) -> None:
    raw.config_set("maxmemory", "1")
    try:
        results = await asyncio.gather(
            *(queue.enqueue(jobs.add, i) for i in range(3)), return_exceptions=True
        )
    finally:
        raw.config_set("maxmemory", "0")
    assert [type(result) for result in results] == [ServerFull] * 3
    assert (await queue.enqueue(jobs.add, 1)).created


async def test_each_is_told_the_ids_with_which_it_may_repeat(url: str) -> None:
    with Proxy(url) as proxy:
        queue = AsyncQueue("work", url=proxy.url, retry_for=0.1)
        await queue.counts()
        proxy.refuse()
        results = await asyncio.gather(
            *(queue.enqueue(jobs.add, i, job_id=f"j{i}") for i in range(3)), return_exceptions=True
        )
        proxy.accept()
        errors = [result for result in results if isinstance(result, ServerUnavailable)]
        assert [error.job_ids for error in errors] == [("j0",), ("j1",), ("j2",)]
        assert hide_password(proxy.url) in str(errors[0])
        await queue.close()


async def test_one_that_fails_midway_ends_there_and_ends_no_other(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round trip of several; in its first, the server has no room for one caller's jobs."""
    monkeypatch.setattr(enqueue_commands, "CHUNK", 2)
    monkeypatch.setattr(enqueue_commands, "TRIP", 2)
    queue = AsyncQueue("work", url=url)
    attempt, sent = queue._client.attempt_many, list[int]()

    async def full_once(commands: Any) -> list[Any]:
        replies = await attempt(commands)
        sent.append(len(commands))
        if len(sent) == 1:
            replies[0] = ServerFull("full")
        return replies

    monkeypatch.setattr(queue._client, "attempt_many", full_once)
    many = [queue.prepare(jobs.add, [i]) for i in range(10)]
    with pytest.raises(ServerFull):
        await queue.enqueue_many(many)
    assert len(sent) == 1
    sent.clear()
    failed, *others = await asyncio.gather(
        queue.enqueue_many(many),
        *(queue.enqueue_many([queue.prepare(jobs.add, [i])]) for i in range(6)),
        return_exceptions=True,
    )
    assert isinstance(failed, ServerFull)
    assert [len(one) for one in others] == [1] * 6  # type: ignore[arg-type]
    assert len(sent) == 3, "six jobs more, after the first round trip"
    await queue.close()


async def test_a_queue_is_made_known_until_the_server_has_said_so(
    url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = AsyncQueue("work", url=url)
    attempt = queue._client.attempt_many

    async def lost(commands: Any) -> list[Any]:
        await attempt([command for command in commands if command.script != "queue_register"])
        raise ServerUnavailable("lost")

    with monkeypatch.context() as patch:
        patch.setattr(queue._client, "attempt_many", lost)
        with pytest.raises(ServerUnavailable):
            await queue.enqueue(jobs.add, 1)
    assert not queue._binding.known
    await queue.enqueue(jobs.add, 1)
    assert queue._binding.known
    await queue.close()


# -- cancelled callers


@pytest.mark.parametrize("ticks", [0, 1, 3])
async def test_those_who_come_while_the_sender_is_cancelled_do_not_hang(
    queue: AsyncQueue, ticks: int
) -> None:
    first = [asyncio.create_task(queue.enqueue(jobs.add, i)) for i in range(3)]
    await asyncio.sleep(0)
    (coalescer,) = queue._coalescers.current.values()
    while coalescer._sender is None:  # noqa: ASYNC110 - until what they share begins
        await asyncio.sleep(0)
    for _ in range(ticks):
        await asyncio.sleep(0)
    later = [asyncio.create_task(queue.enqueue(jobs.add, i)) for i in range(3)]
    coalescer._sender.cancel()
    results = await asyncio.wait_for(
        asyncio.gather(*first, *later, return_exceptions=True), timeout=90
    )
    assert len(results) == 6
    assert (await queue.enqueue(jobs.add, 9)).created


@pytest.mark.parametrize("which", [0, 1, 4])
async def test_a_caller_that_is_cancelled_while_the_reply_is_awaited_harms_no_other(
    url: str, which: int
) -> None:
    with Proxy(url) as proxy:
        queue = AsyncQueue("work", url=proxy.url)
        await queue.counts()
        proxy.hold()
        seen = proxy.replies
        callers = [asyncio.create_task(queue.enqueue(jobs.add, i)) for i in range(5)]
        while proxy.replies == seen:  # noqa: ASYNC110 - until the answer is under way
            await asyncio.sleep(0.001)
        callers[which].cancel()
        await asyncio.sleep(0)
        proxy.deliver()
        results = await asyncio.gather(*callers, return_exceptions=True)
        cancelled = [isinstance(result, asyncio.CancelledError) for result in results]
        assert cancelled == [i == which for i in range(5)]
        later = await queue.enqueue(jobs.add, 9)
        assert (await later.refresh()).args == (9,), "it read its own reply"
        await queue.close()


@pytest.mark.parametrize("which", [0, 1, 4])
async def test_nor_one_that_is_cancelled_before_anything_is_sent(
    queue: AsyncQueue, which: int
) -> None:
    callers = [asyncio.create_task(queue.enqueue(jobs.add, i)) for i in range(5)]
    await asyncio.sleep(0)  # all have asked, nothing has been sent
    callers[which].cancel()
    results = await asyncio.gather(*callers, return_exceptions=True)
    cancelled = [isinstance(result, asyncio.CancelledError) for result in results]
    assert cancelled == [i == which for i in range(5)]
    assert (await queue.enqueue(jobs.add, 9)).created


async def test_if_all_are_cancelled_the_next_is_served(url: str) -> None:
    with Proxy(url) as proxy:
        queue = AsyncQueue("work", url=proxy.url)
        await queue.counts()
        for _ in range(3):
            proxy.hold()
            seen = proxy.replies
            callers = [asyncio.create_task(queue.enqueue(jobs.add, i)) for i in range(3)]
            while proxy.replies == seen:  # noqa: ASYNC110 - until the answer is under way
                await asyncio.sleep(0.001)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            proxy.deliver()
            assert (await queue.enqueue(jobs.add, 9)).created
        await queue.close()


async def test_a_lone_caller_that_is_cancelled_leaves_those_that_came_meanwhile(url: str) -> None:
    with Proxy(url) as proxy:
        queue = AsyncQueue("work", url=proxy.url)
        await queue.counts()
        proxy.hold()
        seen = proxy.replies
        alone = asyncio.create_task(queue.enqueue(jobs.add, 1))
        while proxy.replies == seen:  # noqa: ASYNC110 - until the answer is under way
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(queue.enqueue(jobs.add, i)) for i in range(3)]
        await asyncio.sleep(0)
        alone.cancel()
        proxy.deliver()
        results = await asyncio.gather(alone, *others, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert [job.created for job in results[1:]] == [True] * 3  # type: ignore[union-attr]
        await queue.close()


# -- loops, and the end


def test_a_queue_may_be_used_by_one_event_loop_after_another(url: str) -> None:
    queue = AsyncQueue("work", url=url)

    async def some(count: int) -> int:
        await asyncio.gather(*(queue.enqueue(jobs.add, i) for i in range(count)))
        waiting = (await queue.counts()).waiting
        await queue.close()
        return waiting

    assert [asyncio.run(some(count)) for count in (3, 1, 2)] == [3, 4, 6]


def test_what_waited_in_a_loop_that_has_ended_holds_nobody_up(url: str) -> None:
    queue = AsyncQueue("work", url=url)

    async def ends_too_soon() -> None:
        await queue.counts()
        callers = [asyncio.create_task(queue.enqueue(jobs.add, i)) for i in range(3)]
        await asyncio.sleep(0)
        await queue._client.close()
        assert not any(caller.done() for caller in callers)

    async def goes_on() -> bool:
        job = await queue.enqueue(jobs.add, 9)
        await queue.close()
        return bool(job.created)

    asyncio.run(ends_too_soon())
    assert asyncio.run(goes_on())


def test_a_queue_may_be_used_by_event_loops_of_several_threads_at_once(url: str) -> None:
    queue = AsyncQueue("work", url=url)

    async def some(name: str) -> None:
        added = await asyncio.gather(
            *(queue.enqueue(jobs.add, i, job_id=f"{name}-{i}", delay=60) for i in range(5))
        )
        assert [job.id for job in added] == [f"{name}-{i}" for i in range(5)]
        waits = [asyncio.create_task(job.wait()) for job in added]
        await queue.fetch_many([job.id for job in added])
        await queue.cancel_many([job.id for job in added])
        ended = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(one) for one in ended} == {JobCancelled}

    def loops(thread: int) -> None:
        for i in range(20):
            asyncio.run(asyncio.wait_for(some(f"{thread}-{i}"), 20))

    threads = [Later(partial(loops, thread)) for thread in range(3)]
    for thread in threads:
        thread.result(within=60)

    async def end() -> int:
        cancelled = (await queue.counts()).cancelled
        assert len(queue._client._open._all) == 1, "loops that have ended are let go"
        await queue.close()
        return cancelled

    assert asyncio.run(end()) == 300


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_waits_for_what_is_being_enqueued(
    url: str, raw: redis.Redis, count: int
) -> None:
    with Proxy(url) as proxy:
        queue = AsyncQueue("work", url=proxy.url)
        await queue.counts()
        proxy.hold()
        seen = proxy.replies
        callers = [asyncio.create_task(queue.enqueue(jobs.add, i)) for i in range(count)]
        while proxy.replies == seen:  # noqa: ASYNC110 - until the answer is under way
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0)
        proxy.deliver()
        await closing
        assert [job.created for job in await asyncio.gather(*callers)] == [True] * count
        assert queue._client._open.current.idle == {}, "no connection is left open"


async def test_closing_does_not_wait_for_those_who_go_on_enqueueing(queue: AsyncQueue) -> None:
    async def produce() -> None:
        for _ in range(100):
            await queue.enqueue(jobs.add, 1)

    producers = [asyncio.create_task(produce()) for _ in range(4)]
    await queue.enqueue(jobs.add, 1)
    closing = asyncio.create_task(queue.close())
    done, _ = await asyncio.wait([closing, *producers], return_when=asyncio.FIRST_COMPLETED)
    assert done == {closing}
    await asyncio.gather(*producers)


async def test_closing_bears_a_first_call_with_another_durability(url: str) -> None:
    with Proxy(url) as proxy:
        queue = AsyncQueue("work", url=proxy.url)
        await queue.counts()
        proxy.hold()
        callers = [asyncio.create_task(queue.enqueue(jobs.add, 1))]
        await asyncio.sleep(0)
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0)
        more = queue.enqueue_many([queue.prepare(jobs.add, (1,))], durability="replica")
        callers.append(asyncio.create_task(more))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert not closing.done()
        proxy.deliver()
        await closing
        first, second = await asyncio.gather(*callers, return_exceptions=True)
        assert not isinstance(first, BaseException)
        assert isinstance(second, DurabilityUnavailable)
        await queue.close()


async def test_what_is_in_flight_at_the_close_leaves_no_connection_open(url: str) -> None:
    with Proxy(url) as proxy:
        queue = AsyncQueue("work", url=proxy.url)
        await queue.counts()
        proxy.hold()
        seen = proxy.replies
        calls = [asyncio.create_task(queue.counts()) for _ in range(60)]  # some wait for others
        while proxy.replies == seen:  # noqa: ASYNC110 - until an answer is under way
            await asyncio.sleep(0.001)
        await queue.close()
        proxy.deliver()
        await asyncio.gather(*calls)
        assert not any(queue._client._open.current.idle.values())
        await asyncio.to_thread(proxy.wait)
