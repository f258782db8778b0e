"""`queue.where()`: all jobs that match a filter, read and changed by the library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any
from uuid import UUID

import pytest

from bide import AsyncQueue, BulkResult, Queue, UsageError
from bide.client import blocking
from bide.errors import ServerUnavailable
from bide.protocol.commands import Command
from bide.protocol.commands.worker import Outcome, Settle, claim, settle
from tests.support import jobs
from tests.support.workers import burst

LATER = "1h"


def mail(user_id: int, text: str = "") -> None: ...


def ids(queue: Queue, **conditions: Any) -> list[str]:
    return [job.id for job in queue.where(**conditions)]


def test_one_line_cancels_all_delayed_jobs_of_a_user(queue: Queue) -> None:
    theirs = [
        queue.enqueue(mail, 42, delay=LATER),
        queue.enqueue(mail, user_id=42, text="hello", delay=LATER),
        queue.enqueue("other:task", user_id=42, delay=LATER),
    ]
    kept = [
        queue.enqueue(mail, 43, delay=LATER),
        queue.enqueue(mail, 42),  # waits
        queue.enqueue(mail, user_id="42", delay=LATER),
        queue.enqueue("other:task", 42, delay=LATER),  # nobody knows what its parameter is called
    ]
    result = queue.where(state="delayed", kwargs={"user_id": 42}).cancel()
    assert result == BulkResult(looked=6, total=6, found=3, changed=3, results={"ok": 3})
    assert {str(job.refresh().state) for job in theirs} == {"cancelled"}
    assert "cancelled" not in {str(job.refresh().state) for job in kept}


def test_awaited_the_same(url: str, queue: Queue) -> None:
    made = [queue.enqueue(mail, n, delay=LATER).id for n in range(5)]

    async def main() -> tuple[list[str], BulkResult, int]:
        awaited = AsyncQueue("work", url=url)
        try:
            found = [job.id async for job in awaited.where(state="delayed", args=(3,))]
            result = await awaited.where(kwargs={"user_id": 4}).promote()
            return found, result, await awaited.where(state="waiting").count()
        finally:
            await awaited.close()

    found, result, waiting = asyncio.run(main())
    assert (found, result.results, waiting) == ([made[3]], {"ok": 1}, 1)


@pytest.fixture
def mixed(queue: Queue) -> dict[str, str]:
    """Jobs that differ, by name."""
    made = {
        "plain": queue.enqueue(jobs.add, 1, delay=LATER),
        "grouped": queue.enqueue(jobs.add, 1, delay=LATER, group="g"),
        "marked": queue.enqueue(jobs.add, 1, delay=LATER, meta={"user": 7, "is_new": True}),
        "far": queue.enqueue(jobs.add, 2, b=1, delay="30d"),
        "echo": queue.enqueue(jobs.echo, text="1", delay=LATER),
        "failed": queue.enqueue(jobs.fail, "no order 7 [Errno 111]"),
    }
    burst(queue)
    return {job.id: name for name, job in made.items()}


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, "plain grouped marked far echo failed"),
        ({"state": "failed"}, "failed"),
        ({"state": ["failed", "waiting"]}, "failed"),
        ({"task": jobs.echo}, "echo"),
        ({"task": "tests.support.jobs:add"}, "plain grouped marked far"),
        ({"task": "*:[ef]*"}, "echo failed"),
        ({"group": "g"}, "grouped"),
        ({"args": (1,)}, "plain grouped marked"),
        ({"args": (1.0,)}, "plain grouped marked"),
        ({"args": (True,)}, ""),
        ({"args": (2, 1)}, ""),
        ({"args": (2,), "kwargs": {"b": 1}}, "far"),
        ({"kwargs": {"a": 2}}, "far"),
        ({"kwargs": {"text": 1}}, ""),
        ({"meta": {"user": 7}}, "marked"),
        ({"meta": {"user": 7, "is_new": 1}}, ""),
        ({"error": "order 7"}, "failed"),
        ({"error": "ValueError: no*"}, "failed"),
        ({"error": "order 8"}, ""),
        ({"error": "[Errno 111]"}, "failed"),
        ({"due_before": "2h", "state": "delayed"}, "plain grouped marked echo"),
        ({"due_before": NOW + timedelta(hours=2), "state": "delayed"}, "plain grouped marked echo"),
        ({"older_than": "1d"}, ""),
        ({"since": NOW + timedelta(days=2)}, "far"),
        ({"until": NOW + timedelta(minutes=30)}, "failed"),
    ],
)
def test_each_condition(
    queue: Queue, mixed: dict[str, str], conditions: dict[str, Any], expected: str
) -> None:
    assert {mixed[id] for id in ids(queue, **conditions)} == set(expected.split())


def test_a_blocked_job_has_no_due_time_unless_one_is_set(queue: Queue) -> None:
    parent = queue.enqueue(mail, 1, delay="5h")
    queue.enqueue(mail, 2, depends_on=parent)
    queue.enqueue(mail, 3, depends_on=parent, delay="10m")
    moment = datetime.now(UTC) + timedelta(minutes=30)
    at = queue.enqueue(mail, 4, depends_on=parent, at=moment)
    long_ago, now = moment - timedelta(days=9), moment - timedelta(minutes=30)
    assert ids(queue, state="blocked", due_before="1h") == [at.id]
    assert ids(queue, state="blocked", due_before=moment) == []
    assert ids(queue, state="blocked", since=long_ago) == [at.id]
    assert ids(queue, state="blocked", until=now + timedelta(hours=9)) == [at.id]
    assert ids(queue, state="blocked", older_than=0) == []
    assert queue.where(state="blocked").count() == 3


def test_a_time_until_a_job_is_due_is_read_from_the_servers_clock(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AnHourFast(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=1)

    queue.enqueue(jobs.add, 1, delay="30m")
    monkeypatch.setattr("bide.queue.select.datetime", AnHourFast)
    assert queue.where(due_before="10m").count() == 0
    assert queue.where(due_before="40m").count() == 1


def test_values_are_compared_as_they_are_stored(url: str) -> None:
    for codec in ("json", "msgpack"):
        queue = Queue(codec, url=url, serializer=codec)
        key, at = UUID(int=5), datetime(2030, 1, 31, tzinfo=UTC)
        job = queue.enqueue("shop:send", key, at=NOW + timedelta(days=9), when=at, tags=["a", "b"])
        assert ids(queue, args=(key,), kwargs={"when": at, "tags": ["a", "b"]}) == [job.id]
        queue.close()


def test_a_whole_selection_is_longer_than_a_page(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.queue._sync.scan.PAGE", 7)
    queue.enqueue_many([queue.prepare(mail, (n,), delay=LATER) for n in range(250)])
    assert [job.args[0] for job in queue.where(state="delayed")] == list(range(250))
    assert queue.where(task=mail).count() == 250
    assert queue.where(task=mail, limit=101).cancel().changed == 101
    assert [job.args[0] for job in queue.where(state="delayed", limit=2)] == [101, 102]
    assert queue.where(task=mail).delete().changed == 101, "without a state, what has ended"
    assert queue.where(state="delayed").cancel().changed == 149


def test_a_job_that_comes_due_meanwhile_is_met_and_counted_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.queue._sync.scan.PAGE", 1)
    first, second = (queue.enqueue(mail, 1, delay=delay).id for delay in ("1h", "2h"))

    def come_due(result: BulkResult) -> None:
        if result.looked == 1:  # the first was read, and the second was not
            queue.promote_many([first, second])

    result = queue.where(task=mail).cancel(progress=come_due)
    assert (result.found, result.results) == (2, {"ok": 2})
    assert queue.counts().cancelled == 2


def test_an_iteration_meets_each_job_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bide.queue._sync.scan.PAGE", 1)
    made = [queue.enqueue(mail, n, delay=delay).id for n, delay in enumerate(("1h", "2h"))]
    met = []
    for job in queue.where(task=mail):
        met.append(job.id)
        queue.promote_many(made)
    assert met == made


def test_progress_grows_to_the_result(queue: Queue) -> None:
    queue.enqueue_many([queue.prepare(mail, (n,), delay=LATER) for n in range(1_200)])
    told: list[BulkResult] = []
    result = queue.where(state="delayed").reschedule("2h", progress=told.append)
    assert told[-1] == result == BulkResult(1_200, 1_200, 1_200, 1_200, {"ok": 1_200})
    assert [one.looked for one in told[:2]] == [950, 1_200]
    assert [one.changed for one in told[-2:]] == [1_000, 1_200]


def test_what_has_another_state_by_its_turn_is_left_alone(queue: Queue) -> None:
    gone, kept = (queue.enqueue(mail, n, delay=LATER).id for n in range(2))

    def remove(result: BulkResult) -> None:
        if result.found and not result.changed:
            queue.delete_many([gone])
            queue.cancel(kept)

    result = queue.where(state="delayed").promote(progress=remove)
    assert (result.found, result.changed, result.results) == (2, 0, {"gone": 1, "cancelled": 1})


@pytest.mark.parametrize(
    ("verb", "begins", "becomes"),
    [
        ("delete", "failed", "delayed"),
        ("delete", "failed", "completed"),
        ("retry", "failed", "completed"),
        ("cancel", "waiting", "active"),
    ],
)
def test_what_has_moved_on_by_its_turn_stays_as_it_is(
    queue: Queue, verb: str, begins: str, becomes: str
) -> None:
    """It was found in one state, and its turn comes in another one that the verb can change."""
    job = queue.enqueue("app:pay")
    if begins == "failed":
        claimed(queue, "fail")

    def move_on(result: BulkResult) -> None:
        if result.found and not result.results:
            if begins == "failed":
                job.retry(delay=LATER if becomes == "delayed" else None)
            if becomes != "delayed":
                claimed(queue, "complete" if becomes == "completed" else None)

    result = getattr(queue.where(state=begins), verb)(progress=move_on)
    assert (result.changed, result.results) == (0, {becomes: 1})
    seen = job.refresh()
    assert (seen.state, seen.cancelling) == (becomes, False)


def claimed(queue: Queue, outcome: Outcome | None) -> None:
    """A worker claims the job, and perhaps ends it."""
    taken = queue._client.run(claim(queue.keys, "w1", next(CLAIMS), 1, 60_000_000, 0)).jobs
    if outcome:
        settled = [Settle(job.id, job.token, outcome) for job in taken]
        queue._client.run(settle(queue.keys, settled))


CLAIMS = count(1)


def test_after_an_error_the_jobs_before_it_are_changed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many([queue.prepare(mail, (n,), delay=LATER) for n in range(250)])
    send = blocking.Client.attempt_many

    def lose_the_second(client: blocking.Client, commands: list[Command[Any]]) -> list[Any]:
        replies = send(client, commands)
        is_change = [command.script for command in commands] == ["cancel"] * 3
        return [replies[0], ServerUnavailable("lost"), replies[2]] if is_change else replies

    told: list[BulkResult] = []
    with monkeypatch.context() as patch:
        patch.setattr(blocking.Client, "attempt_many", lose_the_second)
        with pytest.raises(ServerUnavailable, match="lost"):
            queue.where(state="delayed").cancel(progress=told.append)
    assert told[-1].changed == 150, "which is what is known"
    assert queue.where(state="delayed").cancel().changed == 0


def test_spread(queue: Queue) -> None:
    made = queue.enqueue_many([queue.prepare(mail, (n,)) for n in range(5)])
    delayed = queue.enqueue(mail, 9, delay=LATER)
    assert queue.spread("100s").results == {"ok": 5}
    due = [job.refresh().due for job in made]
    steps = [(later - one).total_seconds() for one, later in pairwise(due)]
    assert all(19 < step < 21 for step in steps), "every 20 s"
    assert delayed.refresh().due - due[-1] > timedelta(minutes=50)
    assert queue.where(kwargs={"user_id": 9}).spread("10s").changed == 1
    assert delayed.refresh().due < due[-1]
    urgent = queue.enqueue(mail, 7, delay=LATER, priority=9)
    assert queue.where(task=mail).spread("100s").changed == 7
    assert delayed.refresh().due < urgent.refresh().due, "jobs that are due come first"


def test_retry(queue: Queue) -> None:
    failed = queue.enqueue(jobs.fail, "no order")
    burst(queue)
    assert queue.where(error="no order").retry(delay=LATER).changed == 1
    assert failed.refresh().state == "delayed"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: q.where().cancel(), "Name the jobs to cancel: give where"),
        (lambda q: q.where(group=None, task=None).delete(), "Name the jobs to delete"),
        (
            lambda q: q.where(state="completed").cancel(),
            "Jobs that are completed cannot be cancelled",
        ),
        (lambda q: q.where(state="done"), "There is no state 'done'"),
        (lambda q: q.where(state=5), "state must be a state or several"),
        (lambda q: q.where(task=42), "neither a function nor a name"),
        (lambda q: q.where(args="42"), "args must be a sequence"),
        (lambda q: q.where(kwargs=["a"]), "kwargs must map names to values"),
        (lambda q: q.where(kwargs={"a": object()}), "kwargs has a value that JSON cannot hold"),
        (lambda q: q.where(error=""), "error must be text"),
        (lambda q: q.where(limit=0), "limit=0 must be a whole number"),
        (lambda q: q.where(since=datetime(2030, 1, 1)), "since=.* has no time zone"),
        (lambda q: q.where(state="delayed").reschedule(), "Give delay= or at="),
        (lambda q: q.spread("0s"), "time over which"),
    ],
)
def test_misuse_changes_nothing(queue: Queue, call: Callable[[Queue], Any], message: str) -> None:
    queue.enqueue(mail, 1, delay=LATER)
    with pytest.raises(UsageError, match=message):
        call(queue)
    assert queue.counts().delayed == 1
