"""Running jobs in a test: which, in what order, where, and what comes of it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
import redis

import bide
from bide import JobFailed, State, UsageError
from bide.tasks.registry import _resources
from bide.testing import TestBed
from tests.features.testing import shop

HOUR = timedelta(hours=1)


# -- which, and in what order


def test_it_runs_what_is_due_and_what_that_enqueues(bed: TestBed) -> None:
    shop.send.enqueue(1)
    shop.send.later("1h").enqueue(2)

    async def enqueue() -> None:
        await shop.fan_out.enqueue(2)

    asyncio.run(enqueue())
    ran = bed.run()
    assert shop.done == [
        ("send", 1, "hello"),
        ("publish", "0"),
        ("publish", "1"),
        ("send", 2, "hello"),
    ]
    assert [job.result for job in ran] == ["hello 1", None, "0", "1", "hello 2"]
    assert {job.state for job in ran} == {State.COMPLETED}
    assert bed.run() == []
    bed.assert_enqueued(shop.send, 2)


def test_jobs_run_in_the_order_in_which_they_are_due_across_queues(bed: TestBed) -> None:
    for i in range(4):
        (shop.note, shop.note_low)[i % 2].enqueue(f"due {i}")
    shop.note.options(priority=8).enqueue("due last, but first in its queue")
    bed.run()
    assert shop.done == ["due last, but first in its queue", "due 0", "due 1", "due 2", "due 3"]


def test_until_plays_a_chain_out_at_its_times(bed: TestBed) -> None:
    start = bed.now()
    shop.begin.enqueue(4)
    shop.note_low.later("90m").enqueue("between")
    ran = bed.run(until="2h")
    assert shop.done == [4, 3, "between", 2]
    first, second, _, third = [job.started or start for job in ran]
    assert (second - first, third - second) == (HOUR, HOUR), "a job takes no time"
    assert {job.lateness for job in ran[1:]} == {0}
    assert 2 * HOUR <= bed.now() - start < 2 * HOUR + timedelta(minutes=1)
    bed.assert_enqueued(shop.begin, 1, delay="1h")


def test_until_a_moment(bed: TestBed) -> None:
    shop.remind.enqueue(7)
    bed.run(until=bed.now() + timedelta(hours=23))
    assert shop.done == []
    bed.run(until=bed.now() + timedelta(hours=2))
    assert shop.done == [("remind", 7)]


def test_until_moves_the_clock_though_there_is_nothing_to_do(bed: TestBed) -> None:
    start = bed.now()
    assert bed.run(until="3d") == []
    assert bed.now() - start >= timedelta(days=3)


def test_retries_run_when_they_are_due(bed: TestBed) -> None:
    job = shop.stumble.enqueue(2)
    assert [seen.state for seen in bed.run()] == [State.DELAYED]
    ran = bed.run(until="2m")
    assert shop.done == [1, 2, 3]
    assert [seen.state for seen in ran] == [State.DELAYED, State.COMPLETED]
    assert [repr(seen.exception) for seen in ran] == ["ConnectionError('stumbled at 2')", "None"]
    assert job.refresh().result == 3
    assert [attempt.number for attempt in job.attempts] == [1, 2]


def test_a_paused_queue_is_left_alone(bed: TestBed) -> None:
    shop.note.enqueue("paused")
    shop.note_low.enqueue("runs")
    shop.mail.pause()
    bed.run(until="1h")
    assert shop.done == ["runs"]
    shop.mail.resume()
    bed.run()
    assert shop.done == ["runs", "paused"]


def test_functions_that_no_decorator_registered_run_too(bed: TestBed) -> None:
    shop.mail.enqueue(shop.unregistered, 4)
    shop.mail.enqueue("tests.features.testing.shop:unregistered", 5)
    assert [job.result for job in bed.run()] == [8, 10]


@pytest.mark.parametrize("queue", [shop.mail, shop.packed, shop.pickled])
def test_arguments_become_what_the_annotations_say(bed: TestBed, queue: bide.Queue) -> None:
    order = shop.Order(1, datetime(2030, 1, 1, tzinfo=UTC))
    shop.ship.options(queue=queue).enqueue(order)
    (job,) = bed.run()
    assert shop.done == [order]
    assert job.result == order
    assert job.queue == queue.name


def test_it_leaves_no_worker_behind(bed: TestBed) -> None:
    shop.note.enqueue("x")
    bed.run()
    counts = shop.mail.counts()
    assert (counts.active, counts.idle_workers) == (0, 0)
    with redis.Redis.from_url(bed.url) as raw:
        assert raw.hgetall(shop.mail.keys["claims"]) == {}


# -- where


def test_plain_functions_run_in_the_tests_thread(bed: TestBed) -> None:
    """What is the thread's own, such as a transaction, is theirs."""
    shop.tenant.set("acme")
    job = shop.where.enqueue()
    (seen,) = bed.run()
    assert shop.done == [(threading.get_ident(), job.id, "acme")]
    assert shop.tenant.get() == "acme", "what a job sets is its own"
    assert [line.text for line in seen.logs] == ["here"]
    assert seen.progress is not None
    assert (seen.progress.fraction, seen.progress.text) == (0.5, "half")


def test_a_plain_function_may_run_an_event_loop_of_its_own(bed: TestBed) -> None:
    shop.uses_a_loop.enqueue(1)
    assert [job.result for job in bed.run()] == [2]


@pytest.mark.anyio
async def test_under_an_event_loop_it_is_awaited(bed: TestBed) -> None:
    shop.tenant.set("acme")
    first = await shop.where_async.enqueue()
    await shop.fan_out.enqueue(1)
    shop.uses_a_loop.enqueue(1)
    second = shop.where.enqueue()
    ran = await bed.arun(until="1h")
    assert [job.state for job in ran] == [State.COMPLETED] * 6
    assert shop.done[0] == (threading.get_ident(), first.id, "acme")
    thread, _, tenant = next(one for one in shop.done if one[1] == second.id)
    assert thread != threading.get_ident()
    assert tenant == "acme"
    assert shop.tenant.get() == "acme"
    assert await first.wait(60) == "events"


@pytest.mark.anyio
async def test_under_an_event_loop_a_job_that_cancels_its_task_ends_alone(bed: TestBed) -> None:
    await shop.cancel_its_task.enqueue()
    await shop.publish.enqueue("after")
    ran = await bed.arun(raise_failures=False)
    assert [job.state for job in ran] == [State.FAILED, State.COMPLETED]


@pytest.mark.anyio
async def test_a_test_that_is_cancelled_stops_it(bed: TestBed) -> None:
    await shop.hang.options(timeout="1h").enqueue()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await bed.arun()


def test_ctrl_c_ends_the_test_and_is_no_failure_of_the_job(bed: TestBed) -> None:
    shop.mail.enqueue(interrupt)
    with pytest.raises(KeyboardInterrupt):
        bed.run()
    assert bed.assert_enqueued(interrupt).state is State.ACTIVE
    shop.note.enqueue("after")
    bed.run()
    assert shop.done == ["after"]


def interrupt() -> None:
    raise KeyboardInterrupt


# -- how it ends


def test_a_job_that_has_failed_raises_in_the_test(bed: TestBed) -> None:
    job = shop.fail.enqueue("broken")
    shop.note.enqueue("after")
    with pytest.raises(
        JobFailed, match=r"shop:fail\('broken'\) failed.* ValueError: broken"
    ) as info:
        bed.run()
    assert isinstance(info.value.__cause__, ValueError)
    assert info.value.error.type == "ValueError"
    assert job.refresh().state is State.FAILED, "it is settled all the same"
    assert shop.done == []
    bed.run()
    assert shop.done == ["after"]


def test_unless_it_is_not_to(bed: TestBed) -> None:
    shop.fail.enqueue("broken")
    shop.note.enqueue("after")
    failed, completed = bed.run(raise_failures=False)
    assert (failed.state, completed.state) == (State.FAILED, State.COMPLETED)
    assert isinstance(failed.exception, ValueError)
    assert failed.error is not None
    assert failed.error.message == "broken"
    assert shop.done == ["after"]


def test_a_retry_is_no_failure_until_the_last(bed: TestBed) -> None:
    shop.stumble.enqueue(9)
    bed.run()
    with pytest.raises(JobFailed, match="attempt 3: ConnectionError: stumbled at 3"):
        bed.run(until="1h")


def test_a_job_may_say_how_it_ends(bed: TestBed) -> None:
    jobs = [task.enqueue() for task in (shop.later, shop.snooze, shop.give_up, shop.call_off)]
    bed.run(raise_failures=False)
    states = [job.refresh().state for job in jobs]
    assert states == [State.DELAYED, State.DELAYED, State.FAILED, State.CANCELLED]
    bed.assert_enqueued(shop.later, delay="5m")
    bed.assert_enqueued(shop.snooze, delay="10m")
    assert jobs[1].attempt == 0


@pytest.mark.parametrize(
    "task", [shop.leave, shop.leave_async, shop.cancel_itself, shop.cancel_its_task]
)
def test_what_would_end_the_process_ends_the_job(bed: TestBed, task: object) -> None:
    shop.mail.enqueue(task)  # type: ignore[arg-type]
    (job,) = bed.run(raise_failures=False)
    assert job.state is State.FAILED


def test_a_coroutine_is_bounded_by_its_time_out(bed: TestBed) -> None:
    shop.mail.enqueue(shop.hang)
    with pytest.raises(
        JobFailed, match=r"JobTimeout: .*hang ran longer than its time-out of 0\.05 s"
    ):
        bed.run()


def test_a_result_that_does_not_fit_fails_the_job(bed: TestBed) -> None:
    shop.unfit.enqueue()
    with pytest.raises(JobFailed, match="The result of") as info:
        bed.run()
    assert isinstance(info.value.__cause__, bide.PayloadError)


def test_a_job_that_deletes_its_queue_ends_well(bed: TestBed) -> None:
    shop.mail.enqueue(empty_the_queue)
    shop.note.enqueue("gone")
    bed.run()
    assert shop.done == []


def empty_the_queue() -> None:
    shop.mail.purge()


# -- what surrounds it


def test_resources_are_open_while_it_runs(bed: TestBed, resources: None) -> None:
    assert bed.run() == []
    assert shop.done == [], "nothing ran, so nothing was opened"
    shop.book.enqueue("a")
    shop.book.enqueue("b")
    shop.mail.enqueue(shop.query, "who")
    assert [job.result for job in bed.run()] == [
        ["ledger", "a"],
        ["ledger", "a", "b"],
        "who by pool of ledger",
    ]
    opened = ["open ledger", "open pool", "open unused"]
    assert shop.done == [*opened, "close unused", "close pool", "close ledger"]


@pytest.mark.anyio
async def test_also_under_an_event_loop(bed: TestBed, resources: None) -> None:
    shop.book.enqueue("a")
    await shop.query.enqueue("who")
    assert [job.result for job in await bed.arun()] == [["ledger", "a"], "who by pool of ledger"]
    assert shop.done[-3:] == ["close unused", "close pool", "close ledger"]


def test_they_are_closed_after_a_failure_too(bed: TestBed, resources: None) -> None:
    shop.fail.enqueue("x")
    with pytest.raises(JobFailed):
        bed.run()
    assert shop.done[-1] == "close ledger"


@pytest.mark.parametrize("registered", [True, False])
def test_a_job_whose_resource_cannot_be_opened_returns_to_its_queue(
    bed: TestBed, registered: bool
) -> None:
    if registered:
        _resources.append(shop.bank)
    job = shop.pay.enqueue(5)
    shop.is_down.set()
    with pytest.raises(ConnectionError, match="the bank is closed"):
        bed.run()
    assert job.refresh().state is State.WAITING
    shop.is_down.clear()
    assert [seen.result for seen in bed.run()] == ["5 at bank"]
    assert job.refresh().attempt == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_middlewares_surround_runs(bed: TestBed, is_async: bool) -> None:
    bide.add_middleware(shop.Middleware(is_async))
    shop.note.enqueue("ran")
    shop.mail.enqueue(shop.publish, "x")
    bed.run()
    suffix = " async" if is_async else ""
    around = [f"enter{suffix}", f"leave{suffix}"]
    enter, leave = around
    assert shop.done == [enter, "ran", leave, enter, ("publish", "x"), leave]


@pytest.mark.anyio
@pytest.mark.parametrize("is_async", [False, True])
async def test_also_under_an_event_loop_middlewares_do(bed: TestBed, is_async: bool) -> None:
    bide.add_middleware(shop.Middleware(is_async))
    shop.note.enqueue("ran")
    await bed.arun()
    suffix = " async" if is_async else ""
    assert shop.done == [f"enter{suffix}", "ran", f"leave{suffix}"]


def test_callbacks_run(bed: TestBed) -> None:
    good = shop.send.options(on_success=shop.succeeded).enqueue(1)
    bad = shop.fail.options(on_failure=shop.failed).enqueue("broken")
    bed.run(raise_failures=False)
    assert shop.done == [
        ("send", 1, "hello"),
        ("succeeded", good.id, "hello 1"),
        ("failed", bad.id, "broken"),
    ]


class Hears(bide.Middleware):
    def failed(self, failure: bide.FailedAttempt) -> None:
        assert bide.current_job() is failure.job
        error = type(failure.error).__name__
        shop.done.append((failure.job.attempt, error, failure.args, failure.is_final))


class HearsAsync(bide.Middleware):
    async def failed(self, failure: bide.FailedAttempt) -> None:
        shop.done.append("awaited")


def test_failed_attempts_are_heard_of(bed: TestBed) -> None:
    bide.add_middleware(Hears())
    bide.add_middleware(HearsAsync())
    shop.fail.options(retry=bide.Retry(1, backoff="fixed", base=0)).enqueue("broken")
    shop.mail.enqueue_call(shop.send, ["no number"])
    good = shop.send.options(on_success=shop.succeeded).enqueue(1)
    bed.run(raise_failures=False)
    assert shop.done == [
        *[(1, "ValueError", ["broken"], False), "awaited"],
        *[(1, "PayloadError", ["no number"], True), "awaited"],
        *[("send", 1, "hello"), ("succeeded", good.id, "hello 1")],
        *[(2, "ValueError", ["broken"], True), "awaited"],
    ]


@pytest.mark.anyio
async def test_also_under_an_event_loop_failed_attempts_are(bed: TestBed) -> None:
    bide.add_middleware(Hears())
    bide.add_middleware(HearsAsync())
    shop.fail.enqueue("broken")
    await bed.arun(raise_failures=False)
    assert shop.done == [(1, "ValueError", ["broken"], True), "awaited"]


# -- misuse


def test_a_task_that_enqueues_itself_is_found_out(bed: TestBed) -> None:
    shop.forever.enqueue()
    with pytest.raises(
        UsageError, match=r"run\(\) has run 25 jobs, and another is due.*shop:forever"
    ):
        bed.run(limit=25)
    assert len(bed.enqueued()) == 1


def test_also_one_that_does_it_with_a_delay(bed: TestBed) -> None:
    shop.begin.enqueue(100)
    with pytest.raises(UsageError, match=r"has run 10 jobs.*give limit="):
        bed.run(until="30d", limit=10)
    assert len(shop.done) == 10


@pytest.mark.anyio
async def test_an_event_loop_wants_the_other_name(bed: TestBed) -> None:
    with pytest.raises(UsageError, match=r"write `await bed\.arun\(\)`"):
        bed.run()


def test_a_limit_is_a_number(bed: TestBed) -> None:
    for limit in (0, True, "x"):
        with pytest.raises(UsageError, match="limit must be a whole number"):
            bed.run(limit=limit)  # type: ignore[arg-type]


def test_until_names_a_moment(bed: TestBed) -> None:
    with pytest.raises(UsageError, match="has no time zone"):
        bed.run(until=datetime(2040, 1, 1))
    with pytest.raises(UsageError, match="until='tomorrow' is not a duration"):
        bed.run(until="tomorrow")


def test_a_job_need_not_run_the_bed(bed: TestBed) -> None:
    beds.append(bed)
    shop.mail.enqueue(run_the_bed)
    with pytest.raises(JobFailed, match="is under way"):
        bed.run()


beds: list[TestBed] = []


def run_the_bed() -> None:
    beds.pop().run()
