"""Following a queue's events, blocking and awaited, by iteration, by callbacks, from the shell."""

from __future__ import annotations

import asyncio
import json
import logging
import queue as queues
import threading
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import redis

import bide.testing
from bide import AsyncQueue, Event, Queue, ServerUnavailable, UsageError
from bide.queue import following
from bide.states import State
from tests.integration import jobs
from tests.integration.console import CTRL_C, at_terminal, error_of, said
from tests.integration.console import bide as run_bide
from tests.integration.workers import Later, at_work, burst, eventually


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def listens(queue: Queue) -> bool:
    return bool(queue._client._redis.exists(queue.keys["listeners"]))


# -- iterating


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


def test_what_a_running_job_says_and_asks_of_itself(queue: Queue) -> None:
    with queue.events(kinds=("progress", "retried", "rescheduled"), timeout=0) as events:
        queue.enqueue(jobs.half_way)
        burst(queue)
        told = list(events)
    assert kinds(told) == ["progress"]
    assert told[0].progress is not None
    assert told[0].progress[:2] == (0.5, "half way")


def test_an_event_wakes_who_waits_for_it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "WAIT", 60)  # what is waited for comes as a wake-up, or too late
    begun = threading.Event()

    def first() -> Event:
        with queue.events() as events:
            begun.set()
            return next(events)

    later = Later(first)
    assert begun.wait(10)
    job = queue.enqueue(jobs.add, 1, 2, delay=60)
    assert later.result(2).job_id == job.id


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


def test_a_gap_is_told_whatever_was_asked_for(queue: Queue) -> None:
    with queue.events(timeout=0) as events:
        queue.enqueue(jobs.add, 1, 1, delay=60)
        last = [*events][-1].id
    queue.enqueue(jobs.add, 1, 2, delay=60)
    with queue.events(after=last, kinds="failed", timeout=0) as events:
        queue.enqueue(jobs.fail, "no luck")
        burst(queue)
        told = list(events)
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
    with queue.events(timeout=0) as events:
        opened = events.after.partition("-")[0]
        queue._client._redis.xadd(queue.keys["events"], {"e": "what"}, id=f"{opened}-1")
        told = list(events)
    assert (kinds(told), told[0].count) == (["gap"], 1)


def test_the_hold_is_renewed_while_one_reads(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    with queue.events(timeout=0) as events:
        queue._client._redis.zadd(queue.keys["listeners"], {"of old": 1})
        assert [*events] == []
        assert queue._client._redis.zcard(queue.keys["listeners"]) == 2
        monkeypatch.setattr(events._following, "_renew_at", 0.0)
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


def test_out_of_its_context_nothing_is_read(queue: Queue) -> None:
    events = queue.events()
    with pytest.raises(UsageError, match="within their context: `with queue"):
        next(events)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kinds": "complete"}, "There is no event 'complete'; did you mean 'completed'?"),
        ({"kinds": ["added", "xyz"]}, "There is no event 'xyz'; there are added, active"),
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


def test_a_callback_must_be_a_function_and_wants_kinds(one_url: str) -> None:
    queue = Queue("work", url=one_url)
    with pytest.raises(UsageError, match="must be a function that takes an event"):
        queue.on("added", 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="wants at least one kind"):
        queue.on(None, print)  # type: ignore[arg-type]
    assert not listens(queue)


def test_a_wrong_address_is_an_error_at_once() -> None:
    queue = Queue("work", url="redis://127.0.0.1:1/0")
    with pytest.raises(ServerUnavailable, match="Cannot reach"), queue.events():
        pass
    with pytest.raises(ServerUnavailable, match="Cannot reach"):
        queue.on("added", print)


# -- callbacks


def test_a_function_is_called_with_what_it_wants_and_raises_in_vain(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    got: queues.Queue[Event] = queues.Queue()

    def callback(event: Event) -> None:
        got.put(event)
        raise ValueError("a bug")

    listening = queue.on(["completed", "failed"], callback)
    for n in (1, 2):
        queue.enqueue(jobs.add, 1, n)
    burst(queue)
    assert kinds([got.get(timeout=10), got.get(timeout=10)]) == ["completed"] * 2
    listening.stop()
    listening.stop()
    assert [r.getMessage()[:30] for r in caplog.records if r.name == "bide.events"] == [
        "the callback for completed of "
    ] * 2
    assert not listens(queue)
    queue.enqueue(jobs.add, 1, 3)
    burst(queue)
    assert got.empty()


def test_closing_the_queue_ends_what_listens(queue: Queue) -> None:
    for _ in range(3):
        queue.on("added", print)
    mine = [t for t in threading.enumerate() if t.name == "bide-events"]
    assert len(mine) == 3
    assert all(thread.daemon for thread in mine)
    queue.close()
    assert not any(thread.is_alive() for thread in mine)
    assert not listens(queue)


def test_a_callback_may_stop_its_own_listening(queue: Queue) -> None:
    got: list[Event] = []

    def callback(event: Event) -> None:
        got.append(event)
        listening.stop()

    listening = queue.on("added", callback)
    queue.enqueue(jobs.add, 1, 1, delay=60)
    eventually(lambda: not listens(queue))
    queue.enqueue(jobs.add, 1, 2, delay=60)
    assert len(got) == 1


def test_callbacks_that_close_the_queue_wait_for_nobody(queue: Queue) -> None:
    """Each would wait for the other to end."""
    both = threading.Barrier(2, timeout=10)

    def callback(event: Event) -> None:
        both.wait()
        queue.close()

    for _ in range(2):
        queue.on("added", callback)
    mine = [t for t in threading.enumerate() if t.name == "bide-events"]
    queue.enqueue(jobs.add, 1, 1, delay=60)
    for thread in mine:
        thread.join(10)
        assert not thread.is_alive()
    queue.close()
    assert not listens(queue)


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
    with queue.events(timeout=10) as events:
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
            monkeypatch.setattr(events._following, "_renew_at", 0.0)
            told += [*events]
        later = queue.enqueue(jobs.add, 1, 2, delay=60)
        told += [*events]
    assert kinds(told) == ["added", "gap", "gap", "gap", "added"]
    assert told[-1].job_id == later.id


def test_a_gap_before_what_a_callback_wants_is_logged(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    got: queues.Queue[Event] = queues.Queue()
    with caplog.at_level(logging.WARNING, "bide.events"):
        queue.on("added", got.put, after="1-1")
        queue.enqueue(jobs.add, 1, 1, delay=60)
        assert got.get(timeout=10).kind == "added"
    assert "were lost" in caplog.text
    queue.on(("gap", "added"), got.put, after="1-1")
    assert got.get(timeout=10).kind == "gap"


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
        await asyncio.wait_for(done.wait(), 10)
        assert kinds(told) == ["added", "added", "cancelled"]
        assert [event.job_id for event in got] == [one.id, other.id]
        assert listening.after >= told[1].id
        await mail.close()
        assert listening._task.done()
        assert not mail._listenings

    asyncio.run(main())
    assert not listens(queue)


def test_who_cancels_a_wait_loses_nothing_and_harms_nobody(queue: Queue) -> None:
    async def main() -> None:
        mail = AsyncQueue("work", url=queue.url)
        async with mail.events() as events:
            for n in range(20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 0.002)
                job = await mail.enqueue(jobs.add, 1, n, delay=60)
                event = await asyncio.wait_for(anext(events), 10)
                assert event.job_id == job.id
        await mail.close()

    asyncio.run(main())


def test_a_callback_may_close_the_queue(queue: Queue) -> None:
    async def main() -> None:
        mail = AsyncQueue("work", url=queue.url)
        closed = asyncio.Event()

        async def callback(event: Event) -> None:
            await mail.close()
            await asyncio.sleep(0)  # it goes on to its end
            closed.set()

        listening = await mail.on("added", callback)
        await mail.enqueue(jobs.add, 1, 1, delay=60)
        await asyncio.wait_for(closed.wait(), 10)
        await asyncio.wait_for(asyncio.wait([listening._task]), 10)
        await mail.close()

    asyncio.run(main())
    assert not listens(queue)


def test_a_listener_stopped_on_its_loop(queue: Queue) -> None:
    async def main() -> None:
        mail = AsyncQueue("work", url=queue.url)
        stopped = asyncio.Event()

        async def callback(event: Event) -> None:
            stopped.set()
            await listening.stop()

        listening = await mail.on("added", callback)
        await mail.enqueue(jobs.add, 1, 1, delay=60)
        await asyncio.wait_for(stopped.wait(), 10)
        other = await mail.on("added", print)
        await other.stop()
        assert other._task.done()
        await mail.close()

    asyncio.run(main())
    assert not listens(queue)


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


# -- the command line


def test_the_shell_follows_events_as_text_and_as_json(home: Path, queue: Queue) -> None:
    with queue.events(name="keeps") as events:
        start = events.after
        queue.enqueue(jobs.fail, "no luck")
        queue.enqueue(jobs.half_way)
        queue.enqueue(jobs.add, 1, 2, delay=60)
        burst(queue, concurrency=1)
        queue.empty()
    args = ("events", "-q", "work", "--after", start, "--timeout", "0")
    text = said(run_bide(home, *args, url=queue.url)).splitlines()
    assert [line.split("  ")[1].strip() for line in text][:3] == ["added"] * 3
    assert "due in 60s" in text[2]
    assert any("failed" in line and "attempt 1 on" in line and "no luck" in line for line in text)
    assert any("progress" in line and "50% half way" in line for line in text)
    assert text[-1].endswith("emptied      1 jobs")
    done = run_bide(home, *args, "--json", "-k", "failed", "-k", "progress", url=queue.url)
    documents = [json.loads(line) for line in said(done).splitlines()]
    assert [d["kind"] for d in documents] == ["failed", "progress"]
    assert documents[0]["error"]["message"] == "no luck"
    assert documents[1]["progress"] == {"fraction": 0.5, "text": "half way"}
    behind = run_bide(home, *args[:4], documents[0]["id"], *args[5:], "--json", url=queue.url)
    assert json.loads(behind.stdout.splitlines()[0])["id"] > documents[0]["id"]
    gap = run_bide(home, "events", "-q", "work", "--after", "1-1", "--timeout", "0", url=queue.url)
    assert "were lost" in said(gap)


def test_ctrl_c_ends_it_well_and_says_how_to_go_on(home: Path, queue: Queue) -> None:
    """What is shown first was there before; then it waits."""
    with queue.events(name="keeps") as events:
        start = events.after
        queue.enqueue(jobs.add, 1, 2, delay=60)
    shown = at_terminal(
        home, "events", "-q", "work", "--name", "keeps", "--after", start, url=queue.url,
        types={"added": CTRL_C.decode()}, columns=200,
    )  # fmt: skip
    assert shown.code == 0
    assert "To go on from here: bide events -q work --name keeps --after" in shown.text


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--after", "x"), "is not the id of an event"),
        (("-k", "complete"), "complete"),
        (("--name", "a b"), "The listener's name"),
        (("--timeout", "soon"), "is not a duration"),
        (("-q", "a b"), "queue name"),
    ],
)
def test_a_command_line_that_cannot_be_meant(
    home: Path, one_url: str, args: tuple[str, ...], sentence: str
) -> None:
    assert sentence in error_of(run_bide(home, "events", *args, url=one_url), 2)


# -- every state can be seen


def test_the_jobs_in_each_state_are_counted_and_listed(home: Path, queue: Queue) -> None:
    queue.enqueue(jobs.add, 1, 2)
    queue.enqueue(jobs.fail, "no luck")
    burst(queue)
    queue.enqueue(jobs.add, 1, 2, delay=60, job_id="later")
    queue.enqueue(jobs.add, 1, 2).cancel()
    with at_work(queue, concurrency=1):
        queue.enqueue(jobs.wait_thread)
        eventually(lambda: queue.counts().active)
        queue.enqueue(jobs.add, 1, 2)
        counts = queue.counts()
        for state in State:
            (job,) = queue.jobs(state)
            assert job.status is state
            assert getattr(counts, state) == 1
            args = ("jobs", "ls", "-q", "work", "-s", str(state), "--json")
            listed = json.loads(said(run_bide(home, *args, url=queue.url)))["jobs"]
            assert [(j["id"], j["state"]) for j in listed] == [(job.id, state)]
