"""What a job says of itself: when it was enqueued, how it may run, how long it ran."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

import bide
from bide import Queue, Retry, State
from bide.tasks import middleware
from tests.support import jobs
from tests.support.workers import at_work, burst, eventually

MINE = [__name__]
mail = Queue("mail")
heard: list[Any] = []


@mail.task(retry=Retry(2, "fixed", base=0), timeout="90s", retention="7d")
def charge(order: int, *, card: str = "visa") -> None:
    told()
    raise ValueError(f"order {order}")


def told() -> None:
    """What a job knows of itself."""
    job = bide.current_job()
    heard.append((job.args, job.kwargs, job.attempt, job.max_attempts))


def plain(order: int, *tags: str) -> int:
    told()
    return order


async def awaited(order: int, *tags: str) -> int:
    told()
    return order


@pytest.fixture(autouse=True)
def _deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    heard.clear()
    monkeypatch.setattr(middleware, "in_use", [])


def test_it_was_enqueued_when_its_id_was_made(queue: Queue) -> None:
    before = datetime.now(UTC)
    job = queue.enqueue(plain, 1, delay="1h")
    assert job.enqueued is not None
    assert before <= job.enqueued <= datetime.now(UTC)
    assert queue.fetch(job.id).enqueued == job.enqueued
    job.reschedule("2h")
    assert job.enqueued == queue.enqueue(plain, 1, job_id=job.id).enqueued


def test_an_id_of_one_s_own_does_not_say_it(queue: Queue) -> None:
    assert queue.enqueue(plain, 1, job_id="order-1").enqueued is None


def test_a_job_of_a_schedule_has_the_schedule_s_time_instead(queue: Queue) -> None:
    queue.schedules.upsert("nightly", plain, args=(1,), every="1h")
    by_hand = queue.schedules.run("nightly")
    assert by_hand.enqueued is not None
    with at_work(queue, modules=MINE):
        eventually(lambda: by_hand.refresh().state == State.COMPLETED)
    at = round(time.time() * 1e6)
    fired = queue.enqueue(plain, 1, job_id=f"nightly@{at}")
    assert fired.enqueued is None


def test_how_it_may_run_is_its_own_or_its_task_s(queue: Queue) -> None:
    own = queue.enqueue(plain, 1, retry=5, timeout=7, retention=60)
    assert (own.max_attempts, own.retry_policy, own.timeout, own.retention) == (6, Retry(5), 7, 60)
    of_task = queue.fetch(charge.options(queue=queue, retry=0).enqueue(1).id)
    assert (of_task.max_attempts, of_task.retry_policy) == (1, Retry(0))
    assert (of_task.timeout, of_task.retention) == (90, 604_800)
    by_default = queue.enqueue(plain, 1)
    assert (by_default.max_attempts, by_default.timeout, by_default.retention) == (1, 300, None)


def test_a_process_without_the_task_says_that_it_does_not_know(queue: Queue) -> None:
    job = queue.enqueue("elsewhere:charge", 1, timeout=7)
    assert job.timeout == 7
    assert (job.max_attempts, job.retry_policy, job.retention) == (None, None, None)


def test_it_says_how_long_it_ran(queue: Queue) -> None:
    waits = queue.enqueue(jobs.wait_thread)
    assert waits.run_time is None
    with at_work(queue):
        jobs.wait_seen(1)
        running = waits.refresh().run_time
        assert running is not None
        assert waits.refresh().run_time > running  # type: ignore[operator]
        jobs.gate.set()
        eventually(lambda: waits.refresh().state == State.COMPLETED)
    assert waits.finished is not None
    assert waits.started is not None
    assert waits.run_time == (waits.finished - waits.started).total_seconds()


def test_a_job_that_waits_for_its_retry_says_how_long_the_last_attempt_took(queue: Queue) -> None:
    job = queue.enqueue(jobs.fail, "no", retry=Retry(1, "fixed", base="1h"))
    burst(queue)
    (attempt,) = job.refresh().attempts
    assert job.run_time == (attempt.ended - attempt.started).total_seconds()
    job.cancel()
    assert job.refresh().run_time == (attempt.ended - attempt.started).total_seconds()


def test_a_job_that_snoozed_does_not_say_it(queue: Queue) -> None:
    job = queue.enqueue(snoozes)
    burst(queue, modules=MINE)
    assert job.refresh().state == State.DELAYED
    assert job.run_time is None


def snoozes() -> None:
    raise bide.Snooze("1h")


@pytest.mark.parametrize("task", [plain, awaited])
def test_the_code_of_a_job_sees_its_arguments(queue: Queue, task: Any) -> None:
    queue.enqueue_call(task, (7, "a", "b"), retry=4)
    burst(queue, modules=MINE)
    assert heard == [((7, "a", "b"), {}, 1, 5)]


def test_hooks_and_callbacks_see_them_too(queue: Queue) -> None:
    class Hook(bide.Middleware):
        def failed(self, failure: bide.FailedAttempt) -> None:
            told()

    bide.add_middleware(Hook())
    charge.options(queue=queue, on_failure=callback).enqueue(7, card="amex")
    burst(queue, modules=MINE)
    seen = ((7,), {"card": "amex"})
    assert heard == [
        *[(*seen, n, 3) for n in (1, 1, 2, 2, 3, 3)],
        "callback",
        (*seen, 3, 3),
    ]


def callback(job: bide.CurrentJob, error: BaseException) -> None:
    heard.append("callback")
    told()


def test_a_hook_of_a_job_that_cannot_be_read_gets_an_error_for_them(queue: Queue, raw: Any) -> None:
    class Hook(bide.Middleware):
        def failed(self, failure: bide.FailedAttempt) -> None:
            heard.append((failure.args, failure.job.max_attempts))
            with pytest.raises(bide.PayloadError):
                print(failure.job.args)
            heard.append("refused")

    bide.add_middleware(Hook())
    job = queue.enqueue(plain, 1)
    raw.hset(queue.keys["jobs"], job.id, b"no body")
    burst(queue, modules=MINE)
    assert heard == [(None, 1), "refused"]
