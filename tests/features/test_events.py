"""Following a queue's events, blocking and awaited, by iteration, by callbacks, from the shell."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC
from typing import Any

import pytest
import redis

import bide.testing
from bide import AsyncQueue, Event, Queue, ServerUnavailable, UsageError
from bide.queue import event_reader
from tests.support import jobs
from tests.support.event_helpers import kinds, listens
from tests.support.workers import Later, burst

# -- iterating


@pytest.mark.slow
def test_the_life_of_a_job_as_it_happens(queue: Queue) -> None:
    with queue.events(timeout=0) as events:
        job = queue.enqueue(jobs.add, 1, 2)
        failing = queue.enqueue(jobs.fail, "no luck")
        burst(queue, concurrency=1)
        told = list(events)
    assert kinds(told)[:2] == ["added", "added"]
    assert {e.job_id for e in told[:-1]} == {job.id, failing.id}
    mine = [e for e in told if e.job_id == job.id]
    assert kinds(mine) == ["added", "active", "completed"]
    assert told[-1].kind == "drained"
    (failed,) = (e for e in told if e.kind == "failed")
    assert failed.error is not None
    assert "no luck" in failed.error.message
    assert all(e.at is not None and e.at.tzinfo is UTC for e in told)
    assert not listens(queue)


@pytest.mark.slow
def test_what_a_running_job_says_and_asks_of_itself(queue: Queue) -> None:
    with queue.events(kinds=("progress", "retried", "rescheduled"), timeout=0) as events:
        queue.enqueue(jobs.half_way)
        burst(queue)
        told = list(events)
    assert kinds(told) == ["progress"]
    assert told[0].progress is not None
    assert told[0].progress[:2] == (0.5, "half way")


def test_an_event_wakes_who_waits_for_it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "WAIT", 3600)  # what comes is a wake-up, or too late
    begun = threading.Event()

    def first() -> Event:
        with queue.events() as events:
            begun.set()
            return next(events)

    later = Later(first)
    assert begun.wait(60)
    job = queue.enqueue(jobs.add, 1, 2, delay=60)
    assert later.result().job_id == job.id


def test_of_some_kinds_and_jobs_only(queue: Queue) -> None:
    one, other = (queue.enqueue(jobs.add, 1, n, delay=60) for n in (1, 2))
    with (
        queue.events(kinds="cancelled", timeout=0) as cancelled,
        queue.events(job_id=other.id, timeout=0) as others,
        queue.events(kinds=["cancelled", "drained"], job_id=[one.id], timeout=0) as mine,
    ):
        one.promote()
        one.cancel()
        other.reschedule(delay=5)
        other.cancel()
        assert [e.job_id for e in cancelled] == [one.id, other.id]
        assert kinds([*others]) == ["rescheduled", "cancelled"]
        assert [(e.kind, e.job_id) for e in mine] == [("cancelled", one.id)]
        assert cancelled.after == others.after == mine.after, "also what was passed over is read"


def test_one_goes_on_where_it_was(queue: Queue) -> None:
    with queue.events(name="audit", timeout=0) as events:
        first = queue.enqueue(jobs.add, 1, 1, delay=60)
        second = queue.enqueue(jobs.add, 1, 2, delay=60)
        assert next(events).job_id == first.id
    assert listens(queue)
    third = queue.enqueue(jobs.add, 1, 3, delay=60)
    with queue.events(name="audit", after=events.after, timeout=0) as again:
        assert [e.job_id for e in again] == [second.id, third.id]
        assert [*again] == []
        fourth = queue.enqueue(jobs.add, 1, 4, delay=60)
        assert [e.job_id for e in again] == [fourth.id], "one may iterate again"


@pytest.mark.slow
def test_a_gap_is_told_whatever_was_asked_for(queue: Queue) -> None:
    with queue.events(timeout=0) as events:
        queue.enqueue(jobs.add, 1, 1, delay=60)
        last = [*events][-1].id
    queue.enqueue(jobs.add, 1, 2, delay=60)
    with queue.events(after=last, kinds="failed", timeout=0) as events:
        queue.enqueue(jobs.fail, "no luck")
        burst(queue)
        told = list(events)
        assert [*events] == [], "nor is it told again"
    assert kinds(told) == ["gap", "failed"]
    assert (told[0].job_id, told[0].at, told[0].count) == (None, None, 0)


def test_a_gap_where_entries_were_trimmed_says_how_many(queue: Queue) -> None:
    with queue.events(timeout=0) as events:
        for n in range(5):
            queue.enqueue(jobs.add, 1, n, delay=60)
        client = queue._client._redis
        entries: Any = client.xrange(queue.keys["events"])
        client.xdel(queue.keys["events"], *(id for id, _ in entries[1:4]))
        told = list(events)
    assert kinds(told) == ["added", "gap", "added"]
    assert told[1].count == 3
    assert told[1].id.partition("-")[2] == "4"


def test_an_entry_that_cannot_be_read_is_a_gap(queue: Queue) -> None:
    with queue.events(kinds="added", timeout=0) as events:
        opened = events.after.partition("-")[0]
        queue._client._redis.xadd(queue.keys["events"], {"e": "what"}, id=f"{opened}-1")
        told = list(events)
    assert (kinds(told), told[0].count) == (["gap"], 1)


def test_the_hold_is_renewed_while_one_reads(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    with queue.events(timeout=0) as events:
        queue._client._redis.zadd(queue.keys["listeners"], {"of old": 1})
        assert [*events] == []
        assert queue._client._redis.zcard(queue.keys["listeners"]) == 2
        monkeypatch.setattr(events._reader, "_renew_at", 0.0)
        assert [*events] == []
        assert queue._client._redis.zcard(queue.keys["listeners"]) == 1


def test_the_iteration_ends_when_nothing_came_for_so_long(queue: Queue) -> None:
    with queue.events(timeout="100ms") as events:
        assert [*events] == []
        queue.enqueue(jobs.add, 1, 1, delay=60)
        assert kinds([*events]) == ["added"]


def test_many_more_than_one_reply_brings(queue: Queue) -> None:
    with queue.events(kinds="added", timeout=0) as events:
        prepared = [queue.prepare(jobs.add, (1, n), delay=60) for n in range(1_000)]
        queue.enqueue_many(prepared)
        assert [e.job_id for e in events] == [job.id for job in prepared]
    with queue.events(kinds="cancelled", timeout=0) as events:
        queue.enqueue_many([queue.prepare(jobs.add, (1, n), delay=60) for n in range(1_000)])
        queue.cancel(prepared[0].id)
        assert kinds([*events]) == ["cancelled"], "behind whole replies of what is passed over"


def test_out_of_its_context_nothing_is_read(queue: Queue) -> None:
    events = queue.events()
    with pytest.raises(UsageError, match="within their context: `with queue"):
        next(events)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kinds": "complete"}, "There is no event 'complete'; did you mean 'completed'?"),
        ({"kinds": ["added", "xyz"]}, "There is no event 'xyz'; there are added, freed, active"),
        ({"kinds": []}, "kinds names no event; leave it out"),
        ({"kinds": [3]}, "There is no event 3; there are"),
        ({"after": "17"}, "after='17' is not the id of an event; give the event.id of one"),
        ({"after": 17}, "after=17 is not the id of an event"),
        ({"after": "1-" + "9" * 20}, "is not the id of an event"),
        ({"name": "a b"}, "The listener's name 'a b' holds a brace, a space"),
        ({"name": ""}, "The listener's name must be a non-empty string"),
        ({"job_id": "a b"}, "job_id 'a b' holds"),
        ({"job_id": []}, "job_id names no job; leave it out"),
        ({"timeout": -1}, "timeout must not be negative"),
        ({"timeout": "soon"}, "timeout='soon' is not a duration"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(
    one_url: str, options: dict[str, Any], sentence: str
) -> None:
    queue = Queue("work", url=one_url)
    with pytest.raises(UsageError) as refused:
        queue.events(**options)
    assert sentence in str(refused.value)
    with pytest.raises(UsageError):
        AsyncQueue("work", url=one_url).events(**options)


def test_a_wrong_address_is_an_error_at_once() -> None:
    queue = Queue("work", url="redis://127.0.0.1:1/0")
    with pytest.raises(ServerUnavailable, match="Cannot reach"), queue.events():
        pass
    with pytest.raises(ServerUnavailable, match="Cannot reach"):
        queue.on("added", print)


@pytest.mark.parametrize(
    "fields",
    [
        {"e": "added enqueue 99999999999999999999 a - 0 0 "},
        {"e": "a line of somebody else's"},
        {"one": "1", "two": "2"},
        {"\xff": "1"},
    ],
)
def test_an_entry_that_is_not_bides_stops_no_listener(queue: Queue, fields: Any) -> None:
    with queue.events(timeout=90) as events:
        first = queue.enqueue(jobs.add, 1, 1, delay=60)
        assert next(events).job_id == first.id
        opened, n = events.after.split("-")
        with redis.Redis.from_url(queue.url) as raw:
            raw.xadd(queue.keys["events"], fields, id=f"{opened}-{int(n) + 1}")
            raw.hincrby(queue.keys["meta"], "told", 1)
        later = queue.enqueue(jobs.add, 1, 2, delay=60)
        told = [next(events), next(events)]
        assert [event.kind for event in told] == ["gap", "added"]
        assert told[1].job_id == later.id


def test_an_entry_behind_which_there_is_no_room_costs_one_gap(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queue.events(timeout=0) as events:
        queue.enqueue(jobs.add, 1, 1, delay=60)
        with redis.Redis.from_url(queue.url) as raw:
            raw.xadd(queue.keys["events"], {"e": "mine"}, id=f"9{events.after}")
        told = [*events]
        for _ in range(3):
            monkeypatch.setattr(events._reader, "_renew_at", 0.0)
            told += [*events]
        later = queue.enqueue(jobs.add, 1, 2, delay=60)
        told += [*events]
    assert kinds(told) == ["added", "gap", "gap", "gap", "added"]
    assert told[-1].job_id == later.id


# -- awaited


def test_awaited_iteration_and_callbacks(queue: Queue) -> None:
    async def main() -> None:
        mail = AsyncQueue("work", url=queue.url)
        got: list[Event] = []
        done = asyncio.Event()

        async def callback(event: Event) -> None:
            await asyncio.sleep(0)
            got.append(event)
            if len(got) == 2:
                done.set()
            raise ValueError("a bug")

        listening = await mail.on("added", callback)
        async with mail.events(timeout=0) as events:
            one = await mail.enqueue(jobs.add, 1, 2, delay=60)
            other = await mail.enqueue(jobs.add, 1, 2, delay=60)
            await one.cancel()
            told = [event async for event in events]
        await asyncio.wait_for(done.wait(), 60)
        assert kinds(told) == ["added", "added", "cancelled"]
        assert [event.job_id for event in got] == [one.id, other.id]
        assert listening.after >= told[1].id
        await mail.close()
        assert listening._task.done()
        assert not mail._listeners

    asyncio.run(main())
    assert not listens(queue)


def test_who_cancels_a_wait_loses_nothing_and_harms_nobody(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        event_reader, "RECONNECT_PAUSE", 60
    )  # it is not taken for a broken connection

    async def main() -> None:
        mail = AsyncQueue("work", url=queue.url)
        async with mail.events() as events:
            for n in range(20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 0.002)
                job = await mail.enqueue(jobs.add, 1, n, delay=60)
                event = await asyncio.wait_for(anext(events), 60)
                assert event.job_id == job.id
        await mail.close()

    asyncio.run(main())


# -- under test


def test_in_eager_mode_there_are_none_and_a_sentence_says_so() -> None:
    with bide.testing.eager(), pytest.raises(UsageError, match="Eager mode has no server"):
        Queue("work").events()


def test_on_a_test_bed_time_that_was_moved_is_theirs() -> None:
    with bide.testing.start() as bed:
        queue = Queue("work")
        with queue.events(timeout=0) as events:
            queue.enqueue(jobs.add, 1, 2, delay="1h")
            bed.advance("2m")
            queue.enqueue(jobs.add, 1, 2, delay="1h")
            first, second = list(events)
            assert first.at is not None
            assert second.at is not None
            assert (second.at - first.at).total_seconds() >= 120
        queue.on("added", print)
    assert not [t for t in threading.enumerate() if t.name == "bide-events"]
