"""Unique, debounced, throttled and batched jobs, from their enqueue to where they run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bide import (
    AsyncQueue,
    DuplicateJob,
    Job,
    Queue,
    Retry,
    Unique,
    UsageError,
    batch,
    debounce,
    throttle,
)
from bide.testing import eager
from tests.features import dedup_tasks
from tests.support import jobs
from tests.support.eventually import eventually
from tests.support.workers import at_work, burst

MODULES = ("tests.features.dedup_tasks", "tests.support.jobs")
LINES = [dedup_tasks.Line("info", f"line {i}") for i in range(7)]


@pytest.fixture
def queue(one_url: str) -> Iterator[Queue]:
    jobs.seen.clear()
    queue = Queue("work", url=one_url)
    yield queue
    queue.close()


def run(queue: Queue, **options: Any) -> int:
    return burst(queue, modules=MODULES, **options)


def test_a_unique_job_is_the_one_that_is_there(queue: Queue) -> None:
    first = queue.enqueue(dedup_tasks.index, "a", unique=Unique())
    again = queue.enqueue(dedup_tasks.index, doc="a", unique=Unique())
    other = queue.enqueue(dedup_tasks.index, "b", unique=Unique())
    assert [job.enqueue_result for job in (first, again, other)] == [
        "created",
        "duplicate",
        "created",
    ]
    assert (again.id, again.created, again.state) == (first.id, False, "waiting")
    run(queue)
    assert (again.refresh().result, jobs.seen) == ("a 0", [("a", 0), ("b", 0)])
    assert queue.enqueue(dedup_tasks.index, "a", unique=Unique()).enqueue_result == "created"


def test_in_a_group_calls_during_a_run_become_one_more_run_after_it(queue: Queue) -> None:
    """As `docs/howto/unique.md` says: no overlap, and no lost change."""
    jobs.gate.clear()

    def saved() -> Job[object]:
        return queue.enqueue(jobs.wait_thread, unique=Unique(until="started"), group="a")

    with at_work(queue, modules=MODULES):
        first = saved()
        jobs.wait_seen(1)
        second, third = saved(), saved()
        results = [job.enqueue_result for job in (first, second, third)]
        assert results == ["created", "created", "duplicate"]
        assert second.id == third.id
        assert [reason.kind for reason in second.why()] == ["group"]
        jobs.gate.set()
        assert [job.wait(60) for job in (first, second)] == ["waited"] * 2
    runs = [(job.refresh().started, job.finished) for job in (first, second)]
    (_, end), (start, _) = runs
    assert end is not None
    assert start is not None
    assert end <= start


def test_a_rejected_job_is_an_error_that_names_the_holder(queue: Queue) -> None:
    policy = Unique(key="nightly", on_conflict="reject")
    first = queue.enqueue(dedup_tasks.index, "a", unique=policy)
    with pytest.raises(DuplicateJob, match=f"{first.id} holds the key .*index:nightly") as caught:
        queue.enqueue(dedup_tasks.index, "b", unique=policy)
    assert caught.value.job_id == first.id
    many = [queue.prepare(dedup_tasks.index, (doc,), unique=policy) for doc in "cd"]
    many.append(queue.prepare(dedup_tasks.index, ("e",)))
    with pytest.raises(DuplicateJob):
        queue.enqueue_many(many)
    run(queue)
    assert jobs.seen == [("a", 0), ("e", 0)]


def test_many_jobs_come_to_what_each_asked_for_in_their_order(queue: Queue) -> None:
    push = debounce(0, key="x")
    added = queue.enqueue_many(
        [
            queue.prepare(dedup_tasks.index, ("a",)),
            queue.prepare(dedup_tasks.index, ("b",), unique=Unique()),
            queue.prepare(dedup_tasks.index, ("b",), unique=Unique()),
            queue.prepare(dedup_tasks.index, ("c",), expires="1h"),
            queue.prepare(dedup_tasks.index, ("d",), unique=push),
            queue.prepare(dedup_tasks.index, ("a",)),
            queue.prepare(dedup_tasks.index, ("e",), unique=push),
        ]
    )
    assert [job.enqueue_result for job in added] == [
        *("created", "created", "duplicate", "created", "created", "created", "debounced"),
    ]
    assert added[2].id == added[1].id
    assert added[6].id == added[4].id
    run(queue)
    assert sorted(doc for doc, _ in jobs.seen) == ["a", "a", "b", "c", "e"]


def test_a_task_says_it_for_all_its_calls_and_a_call_for_itself(queue: Queue) -> None:
    task = queue.task(unique=debounce("1h", max_wait="2h", key=lambda doc, **_: doc))(
        dedup_tasks.reindex
    )
    first = task.enqueue("a", version=1)
    assert [task.enqueue("a", version=2).enqueue_result, task.enqueue("b").enqueue_result] == [
        "debounced",
        "created",
    ]
    assert task.options(unique=Unique()).enqueue("a").enqueue_result == "created"
    first.promote()
    run(queue)
    assert ("a", 2) in jobs.seen


def test_a_task_whose_policy_is_none_is_refused_where_it_is_made(queue: Queue) -> None:
    with pytest.raises(UsageError, match="not a policy"):
        queue.task(unique="a")(dedup_tasks.rows)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="not a policy"):
        queue.enqueue_call(dedup_tasks.rows, ([],), unique="")  # type: ignore[arg-type]


def test_the_last_call_of_a_throttle_runs(queue: Queue) -> None:
    outcomes = [
        queue.enqueue(dedup_tasks.index, "a", i, unique=throttle("1/200ms")).enqueue_result
        for i in range(5)
    ]
    assert outcomes == ["created", "created", "throttled", "throttled", "throttled"]
    with at_work(queue, modules=MODULES):
        assert jobs.wait_seen(2) == [("a", 0), ("a", 4)]


def test_a_debounced_job_runs_once_with_the_latest_arguments(queue: Queue) -> None:
    with at_work(queue, modules=MODULES):
        for i in range(5):
            job = queue.enqueue(dedup_tasks.index, "a", i, unique=debounce("100ms"))
        assert job.wait(60) == "a 4"
    assert jobs.seen == [("a", 4)]


def test_an_end_marker_has_a_list_run_with_lines_that_come_late(queue: Queue) -> None:
    waits = {"into": dedup_tasks.write, "quiet": "1h", "max_wait": None}
    job = queue.batch("web", LINES[0], **waits)  # type: ignore[arg-type]
    assert queue.batch("web", LINES[1], close="300ms", **waits).id == job.id  # type: ignore[arg-type]
    late = queue.batch("web", LINES[2], **waits)  # type: ignore[arg-type]
    assert (late.id, late.due) == (job.id, job.refresh().due)
    eventually(lambda: job.refresh().state == "waiting")
    assert run(queue) == 1
    assert len(job.refresh().args[0]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("serializer", ["json", "msgpack"])
@pytest.mark.parametrize("executor", ["thread", "process", "fork"])
def test_what_was_batched_runs_as_one_list(
    one_url: str, serializer: Any, executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "BIDE_TEST_NOTES", str(tmp_path / "notes")
    )  # of tasks that others registered
    queue = Queue("work", url=one_url, serializer=serializer)
    added = [
        queue.batch("web", line, into=dedup_tasks.write, quiet="1h", max_wait=None, max_size=7)
        for line in LINES
    ]
    assert [job.enqueue_result for job in added] == ["created"] + 6 * ["batched"]
    assert len({job.id for job in added}) == 1
    assert run(queue, executor=executor) == 1
    assert added[3].refresh().result == 7
    queue.close()


def test_each_item_becomes_what_the_annotation_says(queue: Queue) -> None:
    for line in LINES[:2]:
        job = queue.batch("web", line, into=dedup_tasks.write, quiet=0)
    assert job.args == ([{"level": "info", "text": f"line {i}"} for i in range(2)],)
    assert job.description.startswith("tests.features.dedup_tasks:write([")
    run(queue)
    assert jobs.seen == [(("Line", "line 0"), ("Line", "line 1"))]


def test_a_retry_has_exactly_the_same_items(queue: Queue) -> None:
    soon = Retry(2, backoff="fixed", base="1ms")
    for i in range(3):
        job = queue.batch("k", i, into=dedup_tasks.flaky, quiet=0, retry=soon)
    run(queue)
    later = queue.batch("k", 9, into=dedup_tasks.flaky, quiet=0)
    assert later.enqueue_result == "created"
    run(queue)
    assert jobs.seen[:2] == [(0, 1, 2), (0, 1, 2)]
    assert (job.refresh().state, job.attempt) == ("completed", 2)


def test_items_of_different_tasks_and_keys_do_not_meet(queue: Queue) -> None:
    policy = {"quiet": 0}
    ids = {
        queue.batch("a", 1, into=dedup_tasks.flaky, **policy).id,  # type: ignore[arg-type]
        queue.batch("b", 1, into=dedup_tasks.flaky, **policy).id,  # type: ignore[arg-type]
        queue.batch("a", LINES[0], into=dedup_tasks.write, **policy).id,  # type: ignore[arg-type]
    }
    assert len(ids) == 3


def test_many_items_in_one_round_trip(queue: Queue) -> None:
    policy = batch("1h", max_size=300, key="k")
    prepared = [queue.prepare(dedup_tasks.flaky, (i,), unique=policy) for i in range(1000)]
    added = queue.enqueue_many(prepared)
    assert [job.enqueue_result for job in added].count("created") == 4
    run(queue, concurrency=1)  # or each may be the first
    assert jobs.seen[:3] == [tuple(range(i, i + 300)) for i in (0, 300, 600)]


def test_an_item_is_one_argument(queue: Queue) -> None:
    with pytest.raises(UsageError, match="has one argument"):
        queue.enqueue(dedup_tasks.index, "a", 1, unique=batch(1))
    with pytest.raises(UsageError, match="has one argument"):
        queue.enqueue(dedup_tasks.flaky, items=[1], unique=batch(1))


def test_the_awaited_facade_does_the_same(one_url: str) -> None:
    jobs.seen.clear()

    async def go() -> list[str | None]:
        queue = AsyncQueue("work", url=one_url)
        policy = Unique(key="k", on_conflict="reject")
        added = await asyncio.gather(
            *(queue.batch("web", line, into=dedup_tasks.write, quiet=0) for line in LINES),
            *(queue.enqueue(dedup_tasks.index, "a", i, unique=policy) for i in range(3)),
            queue.enqueue(dedup_tasks.index, "b"),
            return_exceptions=True,
        )
        errors = [each for each in added if isinstance(each, BaseException)]
        assert [type(error) for error in errors] == [DuplicateJob, DuplicateJob]
        await queue.close()
        return [getattr(each, "enqueue_result", None) for each in added]

    outcomes = asyncio.run(go())
    assert outcomes == ["created", *6 * ["batched"], "created", None, None, "created"]
    queue = Queue("work", url=one_url)
    assert run(queue) == 3
    queue.close()


def test_in_eager_mode_each_call_runs_where_it_is(queue: Queue) -> None:
    with eager():
        assert queue.batch("web", LINES[0], into=dedup_tasks.write).enqueue_result == "created"
        assert queue.enqueue(dedup_tasks.index, "a", unique=Unique()).enqueue_result == "created"
    assert jobs.seen == [("Line", "line 0"), ("a", 0)]


def test_the_jobs_of_a_schedule_and_calls_share_keys_and_nothing_is_batched(queue: Queue) -> None:
    task = queue.task(unique=Unique(key="k"), expires="1h")(dedup_tasks.nightly)
    queue.schedules.upsert("nightly", task, ("a",), every="1h")
    job = queue.schedules.run("nightly")
    assert (job.enqueue_result, queue.schedules.run("nightly").enqueue_result) == (
        "created",
        "duplicate",
    )
    assert task.enqueue("b").id == job.id
    queue.schedules.upsert(
        "nightly", task, ("a",), every="1h", unique=Unique(key="k", on_conflict="reject")
    )
    with pytest.raises(
        DuplicateJob, match="deduplicates the jobs of the schedule 'nightly'"
    ) as caught:
        queue.schedules.run("nightly")
    assert caught.value.job_id == job.id
    with pytest.raises(UsageError, match="a schedule creates each job separately"):
        queue.schedules.upsert("g", queue.task(unique=batch(1))(dedup_tasks.rows), (1,), every="1h")


# -- with keys


def test_signed_calls_are_deduplicated_and_run(queue: Queue, signing: str) -> None:
    first = queue.enqueue(dedup_tasks.index, "a", 1, unique=Unique(key="k", on_conflict="replace"))
    again = queue.enqueue(dedup_tasks.index, "a", 2, unique=Unique(key="k", on_conflict="replace"))
    assert (again.enqueue_result, again.id) == ("replaced", first.id)
    for line in LINES:
        job = queue.batch("web", line, into=dedup_tasks.write, quiet=0)
    run(queue)
    assert (first.refresh().result, job.refresh().result) == ("a 2", 7)


def test_pickled_items_are_read_where_each_is_signed(one_url: str, signing: str) -> None:
    queue = Queue("work", url=one_url, serializer="pickle")
    for line in LINES:
        job = queue.batch("web", line, into=dedup_tasks.write, quiet=0)
    assert job.args == (LINES,)
    run(queue, allow_pickle=True)
    assert job.refresh().result == 7
    queue.close()


def test_an_item_that_is_not_signed_as_it_is_fails_them_all(
    queue: Queue, signing: str, direct: Any
) -> None:
    for item in range(3):
        job = queue.batch("k", item, into=dedup_tasks.flaky, quiet=0)
    body = direct.hget(queue.keys["jobs"], job.id)
    direct.hset(queue.keys["jobs"], job.id, body.replace(b"[1]", b"[7]"))
    run(queue)
    assert (job.refresh().state, jobs.seen) == ("failed", [])
    assert job.error is not None
    assert job.error.type == "bide.BadSignature"


def test_a_deduplicated_call_of_one_queue_is_good_in_no_other(
    queue: Queue, signing: str, direct: Any
) -> None:
    other = Queue("other", url=queue.url)
    job = queue.batch("k", 1, into=dedup_tasks.flaky, quiet=0)
    there = other.batch("k", 2, into=dedup_tasks.flaky, quiet=0)
    direct.hset(other.keys["jobs"], there.id, direct.hget(queue.keys["jobs"], job.id))
    run(other)
    assert there.refresh().state == "failed"
    other.close()


def test_whoever_waits_gets_the_result_of_the_job_that_has_the_item(queue: Queue) -> None:
    with at_work(queue, modules=MODULES):
        added = [
            queue.batch("w", line, into=dedup_tasks.write, quiet="1m", max_size=7) for line in LINES
        ]
        assert [job.wait(60) for job in added] == [7] * 7
