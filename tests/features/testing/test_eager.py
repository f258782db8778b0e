"""Eager mode: no server, and each job runs where it is enqueued."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide import JobFailed, JobWaitTimeout, State, UsageError
from bide.client import config
from bide.testing import TestBed, eager
from tests.features.testing import shop


def test_an_enqueue_returns_when_its_job_has_run() -> None:
    with eager() as mode:
        job = shop.send.enqueue(1, text="hi")
        assert shop.done == [("send", 1, "hi")]
        assert (job.created, job.state, job.result, job.wait()) == (
            True,
            State.COMPLETED,
            "hi 1",
            "hi 1",
        )
        assert (job.args, job.kwargs, job.attempt, job.error) == ((1,), {"text": "hi"}, 1, None)
        assert [seen.call.rpartition(":")[2] for seen in mode.jobs] == ["send(1, text='hi')"]
    assert shop.mail.url == "redis://127.0.0.1:1"


@pytest.mark.parametrize("queue", [shop.mail, shop.packed, shop.pickled])
def test_arguments_and_results_travel_as_they_would(queue: bide.Queue) -> None:
    order = shop.Order(1, datetime(2030, 1, 1, tzinfo=UTC))
    with eager():
        job = shop.ship.options(queue=queue).enqueue(order)
        (received,) = shop.done
        assert received == order
        assert received is not order
        assert job.result == order
        with pytest.raises(bide.PayloadError, match="argument 'order'"):
            shop.ship.options(queue=shop.mail).enqueue(object())  # type: ignore[arg-type]
        with pytest.raises(bide.PayloadError, match="argument 'to'"):
            shop.mail.enqueue(shop.send, "not a number")
        with pytest.raises(bide.PayloadError, match="The result of"):
            shop.unfit.enqueue()


def test_an_error_reaches_whoever_enqueued() -> None:
    with eager() as mode:
        with pytest.raises(ValueError, match="broken"):
            shop.fail.enqueue("broken")
        with pytest.raises(ConnectionError, match="stumbled at 1"):
            shop.stumble.enqueue(1)
        assert [job.state for job in mode.jobs] == [State.FAILED, State.FAILED]
        assert shop.done == [1], "retry policies are not applied"


def test_unless_it_is_not_to() -> None:
    with eager(raise_failures=False):
        job = shop.fail.enqueue("broken")
        assert job.state is State.FAILED
        assert job.error is not None
        assert (job.error.type, job.error.message) == ("ValueError", "broken")
        assert [attempt.number for attempt in job.attempts] == [1]
        with pytest.raises(JobFailed, match="ValueError: broken"):
            job.wait()


def test_a_delay_is_noted_and_ignored() -> None:
    with eager():
        before = datetime.now(UTC)
        job = shop.send.later("1h").enqueue(1)
        assert job.state is State.COMPLETED
        assert timedelta(hours=1) <= job.due - before < timedelta(hours=1, minutes=1)


@shop.mail.task
def count_items(items: list[int]) -> int:
    return len(items)


def test_a_dedup_policy_is_ignored() -> None:
    reject = bide.Unique("key", until="10m", on_conflict="reject")
    with eager():
        for policy in (reject, bide.debounce("2s"), bide.throttle("1/h")):
            jobs = [shop.send.options(unique=policy).enqueue(n) for n in (1, 2)]
            assert [job.enqueue_result for job in jobs] == ["created", "created"]
            assert [job.result for job in jobs] == ["hello 1", "hello 2"]
        batched = [shop.mail.batch("key", n, into=count_items) for n in (1, 2)]
        assert [job.result for job in batched] == [1, 1]


def test_a_job_may_say_how_it_ends() -> None:
    with eager():
        later, snoozed = shop.later.enqueue(), shop.snooze.enqueue()
        assert (later.state, snoozed.state) == (State.DELAYED, State.DELAYED)
        assert timedelta(minutes=4) < later.due - datetime.now(UTC) <= timedelta(minutes=5)
        assert later.error is not None
        assert shop.done == ["snoozed"], "nobody runs it again"
        assert [job.id for job in shop.mail.upcoming()] == [later.id, snoozed.id]
        with pytest.raises(JobWaitTimeout, match="is delayed, and in eager mode nothing"):
            later.wait()
        assert snoozed.cancel()
        assert snoozed.state is State.CANCELLED
        assert shop.call_off.enqueue().state is State.CANCELLED
        with pytest.raises(bide.Fail, match="no use"):
            shop.give_up.enqueue()


@pytest.mark.parametrize(
    "task", [shop.leave, shop.leave_async, shop.cancel_itself, shop.cancel_its_task]
)
def test_what_would_end_the_process_ends_the_job(task: Any) -> None:
    with eager(), pytest.raises(JobFailed):
        shop.mail.enqueue(task)


def test_a_coroutine_is_bounded_by_its_time_out() -> None:
    with eager(), pytest.raises(bide.JobTimeout):
        shop.mail.enqueue(shop.hang)


def test_an_id_runs_once() -> None:
    with eager():
        first = shop.note.options(job_id="a").enqueue("first")
        second = shop.note.options(job_id="a").enqueue("second")
        assert (first.created, second.created) == (True, False)
        assert shop.done == ["first"]
        assert second.args == ("first",)


def test_the_current_job_is_known() -> None:
    with eager():
        shop.tenant.set("acme")
        job = shop.where.enqueue()
        assert shop.done == [(threading.get_ident(), job.id, "acme")]
        assert shop.tenant.get() == "acme"
        assert [line.text for line in job.logs] == ["here"]
        assert job.progress is not None
        assert job.progress.text == "half"
        with pytest.raises(UsageError, match="outside of a job"):
            bide.current_job()


def test_a_queue_knows_what_ran() -> None:
    with eager(raise_failures=False):
        sent, failed = shop.send.enqueue(1), shop.fail.enqueue("x")
        counts = shop.mail.counts()
        assert (counts.completed, counts.failed, counts.waiting) == (1, 1, 0)
        assert [job.id for job in shop.mail.jobs("failed")] == [failed.id]
        assert shop.mail.fetch(sent.id).result == "hello 1"
        assert shop.low.counts().completed == 0
        assert shop.mail.workers() == []
        assert shop.mail.cancel_many([sent.id, "none"]) == ["completed", "gone"]
        assert shop.mail.delete_many([sent.id, "none"]) == ["ok", "gone"]
        with pytest.raises(bide.JobNotFound):
            sent.refresh()
        shop.mail.configure(retention=bide.Retention())


def test_many_run_one_after_another() -> None:
    with eager():
        jobs = shop.mail.enqueue_many([shop.note.prepare(str(i)) for i in range(3)])
        assert shop.done == ["0", "1", "2"]
        assert len(jobs) == 3


# -- in which thread and loop


def test_a_coroutine_runs_without_a_loop_and_may_enqueue_in_turn() -> None:
    with eager() as mode:
        job = shop.mail.enqueue(shop.fan_out, 2)
        assert job.state is State.COMPLETED
        assert shop.done == [("publish", "0"), ("publish", "1"), ("send", 2, "hello")]
        assert len(mode.jobs) == 4


@pytest.mark.anyio
async def test_under_an_event_loop_coroutines_are_awaited_in_it() -> None:
    with eager():
        job = await shop.where_async.enqueue()
        assert shop.done == [(threading.get_ident(), job.id, "nobody")]
        assert await job.wait() == "events"
        await shop.fan_out.enqueue(1)
        with pytest.raises(ValueError, match="broken"):
            await shop.events.enqueue(shop.fail, "broken")
        many = await asyncio.gather(*(shop.publish.enqueue(str(i)) for i in range(5)))
        assert [await job.wait() for job in many] == ["0", "1", "2", "3", "4"]
        assert (await shop.events.counts()).completed == 8


@pytest.mark.anyio
async def test_a_blocking_enqueue_there_may_be_of_anything() -> None:
    with eager():
        assert shop.uses_a_loop.enqueue(1).result == 2
        assert shop.mail.enqueue(shop.publish, "x").result == "X"


def test_threads_may_enqueue_at_once() -> None:
    with eager(), ThreadPoolExecutor(4) as threads:
        results = threads.map(lambda i: shop.mail.enqueue(shop.publish, str(i)).result, range(20))
        assert list(results) == [str(i) for i in range(20)]


@pytest.mark.parametrize("task", [shop.spread, shop.spread_async])
def test_a_job_may_wait_for_what_its_threads_enqueue(task: Any) -> None:
    with eager() as mode:
        job = shop.mail.enqueue(task, 3)
        assert job.result == ["0 by pool of ledger", "1 by pool of ledger", "2 by pool of ledger"]
        assert len(mode.jobs) == 4
    assert shop.done.count("close pool") == 3


# -- what surrounds it


def test_a_resource_is_opened_when_it_is_first_asked_for() -> None:
    with eager():
        shop.note.enqueue("before")
        assert shop.book.enqueue("a").result == ["ledger", "a"]
        assert shop.book.enqueue("b").result == ["ledger", "a", "b"]
        assert shop.mail.enqueue(shop.query, "who").result == "who by pool of ledger"
        assert shop.done == ["before", "open ledger", "open pool"]
    assert shop.done[3:] == ["close pool", "close ledger"]


@pytest.mark.anyio
async def test_also_under_an_event_loop() -> None:
    async with eager():
        assert (await shop.query.enqueue("who")).result == "who by pool of ledger"
        assert (await shop.query.enqueue("why")).result == "why by pool of ledger"
    assert shop.done == ["open ledger", "open pool", "close pool", "close ledger"]


def test_what_a_coroutine_enqueues_uses_the_same_and_it_is_closed() -> None:
    with eager():
        assert shop.mail.enqueue(shop.ask, "who").result == "who by pool of ledger"
        assert shop.mail.enqueue(shop.query, "why").result == "why by pool of ledger"
    assert shop.done == ["open ledger", "open pool", "close pool", "close ledger"]


@pytest.mark.anyio
async def test_also_if_a_blocking_enqueue_under_an_event_loop_runs_it() -> None:
    with eager():
        assert shop.mail.enqueue(shop.ask, "who").result == "who by pool of ledger"
        assert shop.done == ["open ledger", "open pool", "close pool", "close ledger"]


def test_a_job_whose_resource_cannot_be_opened_is_forgotten() -> None:
    task = shop.pay.options(job_id="payment")
    with eager() as mode:
        shop.is_down.set()
        with pytest.raises(ConnectionError, match="the bank is closed"):
            task.enqueue(5)
        assert (mode.jobs, shop.mail.counts().active) == ([], 0)
        shop.is_down.clear()
        job = task.enqueue(5)
        assert (job.created, job.result) == (True, "5 at bank")


def test_one_that_an_event_loop_opened_is_closed_in_it() -> None:
    """As where a fixture is eager and the test is a coroutine."""
    loop = asyncio.new_event_loop()
    with eager():
        loop.run_until_complete(shop.query.enqueue("who"))
    assert shop.done == ["open ledger", "open pool", "close pool", "close ledger"]
    loop.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_middlewares_and_callbacks_run(is_async: bool) -> None:
    bide.add_middleware(shop.Middleware(is_async))
    suffix = " async" if is_async else ""
    with eager(raise_failures=False):
        good = shop.send.options(on_success=shop.succeeded).enqueue(1)
        bad = shop.fail.options(on_failure=shop.failed).enqueue("broken")
    assert shop.done == [
        f"enter{suffix}",
        ("send", 1, "hello"),
        f"leave{suffix}",
        ("succeeded", good.id, "hello 1"),
        f"enter{suffix}",
        f"leave{suffix}",
        ("failed", bad.id, "broken"),
    ]


def test_failed_attempts_are_heard_of() -> None:
    """A retry policy is not applied, so each failure is the last."""
    heard = []

    class Hears(bide.Middleware):
        def failed(self, failure: bide.FailedAttempt) -> None:
            heard.append((failure.job.id, str(failure.error), failure.retry_in))

    bide.add_middleware(Hears())
    with eager(raise_failures=False):
        job = shop.fail.options(retry=3).enqueue("broken")
    assert heard == [(job.id, "broken", None)]


def test_it_wins_over_a_bed_that_is_open(bed: TestBed) -> None:
    with eager():
        shop.send.enqueue(1)
        assert shop.done == [("send", 1, "hello")]
    assert bed.enqueued() == []
    shop.send.enqueue(2)
    assert len(bed.enqueued()) == 1


# -- misuse


@pytest.mark.anyio
async def test_resources_under_an_event_loop_want_async_with() -> None:
    with eager(), pytest.raises(UsageError, match=r"`async with bide\.testing\.eager\(\):`"):
        await shop.query.enqueue("who")
    assert shop.done == []


def test_what_only_a_server_could_do_is_refused() -> None:
    with eager():
        job = shop.send.enqueue(1)
        for verb in (shop.mail.pause, job.retry, job.promote):
            with pytest.raises(UsageError, match=r"Eager mode has no server.*testing\.start"):
                verb()


@pytest.mark.anyio
async def test_also_in_awaited_code() -> None:
    with eager():
        with pytest.raises(UsageError, match="has no server, and only that could pause"):
            await shop.events.pause()
        job = await shop.events.enqueue(shop.snooze)
        with pytest.raises(JobWaitTimeout, match="in eager mode nothing runs later"):
            await job.wait(60)


def test_a_name_that_leads_nowhere() -> None:
    with eager():
        with pytest.raises(bide.TaskNotFound, match="cannot be imported"):
            shop.mail.enqueue("no.such.module:task")
        with pytest.raises(bide.TaskNotFound, match="defines no public function"):
            shop.mail.enqueue("tests.features.testing.shop:nothing")
    assert config.overridden() == config.Override()


def test_jobs_that_wait_run_in_the_order_in_which_they_are_enqueued() -> None:
    with eager(raise_failures=False):
        first = shop.send.enqueue(1)
        second = shop.send.options(depends_on=first).enqueue(2)
        assert (second.state, second.parents) == (State.COMPLETED, (first.id,))
        bad = shop.mail.enqueue(shop.unfit)
        after = shop.send.options(depends_on=bad).enqueue(3)
        assert (after.state, after.cancelled_by) == (State.CANCELLED, bad.id)
        alarm = shop.send.options(depends_on=[first, bad], run_if="failed").enqueue(4)
        assert alarm.state == State.COMPLETED
        quiet = shop.send.options(depends_on=first, run_if="failed").enqueue(5)
        assert quiet.state == State.CANCELLED
        with pytest.raises(bide.JobNotFound, match="'nobody' to wait for"):
            shop.send.options(depends_on="nobody").enqueue(6)
