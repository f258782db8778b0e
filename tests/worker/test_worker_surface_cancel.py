"""A job that is cancelled while it runs: how soon it learns of it, and what it makes of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from bide import JobCancelled, Queue, Retry, State
from tests.support import jobs, surface
from tests.support.workers import at_work, burst, eventually, listeners, worker


def ended(queue: Queue, id: str) -> bool:
    return queue.fetch(id).finished is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [jobs.hang, surface.tidy_up, surface.break_off, surface.look_until_asked]
)
def test_a_running_job_that_is_cancelled_ends_as_cancelled_or_as_it_says(
    queue: Queue, task: Any
) -> None:
    job = queue.enqueue(task)
    with at_work(queue, lease=60):  # too long to learn of it by a renewal
        jobs.wait_seen(1)
        assert job.cancel()
        eventually(lambda: ended(queue, job.id))
    job.refresh()
    if task is surface.break_off:
        assert job.state is State.FAILED
        assert job.error is not None
        assert job.error.message == "broken off"
    else:
        assert job.state is State.CANCELLED
        assert job.error is None
    if task is surface.tidy_up:
        assert jobs.seen[1:] == [("tidied", True)]


@pytest.mark.parametrize("task", [surface.break_off, surface.look_and_break])
def test_an_asked_job_is_not_retried(queue: Queue, task: Any) -> None:
    job = queue.enqueue(task, retry=Retry(3, backoff="fixed", base=0))
    with at_work(queue, lease=60):  # too long to learn of it by a renewal
        jobs.wait_seen(1)
        assert job.cancel()
        eventually(lambda: ended(queue, job.id))
    job.refresh()
    assert (job.state, job.attempt) == (State.CANCELLED, 1)
    assert job.error is not None, "what it raised is told all the same"
    assert job.error.message == "broken off"


@pytest.mark.parametrize("task", [surface.stay, surface.look_and_finish])
def test_a_job_that_finishes_all_the_same_has_completed(queue: Queue, task: Any) -> None:
    job = queue.enqueue(task)
    with at_work(queue, lease=60):  # too long to learn of it by a renewal
        jobs.wait_seen(1)
        job.cancel()
        eventually(lambda: ended(queue, job.id))
    assert job.refresh().state is State.COMPLETED


def test_a_job_that_nobody_asked_sees_so(queue: Queue) -> None:
    job = queue.enqueue(surface.not_asked)
    burst(queue)
    assert job.refresh().result == "False"


def test_asking_can_be_left_out(queue: Queue) -> None:
    job = queue.enqueue(jobs.wait_async)
    with at_work(queue, lease=60):  # too long to learn of it by a renewal
        jobs.wait_seen(1)
        assert not job.cancel(running=False)
        assert not job.refresh().cancelling
        jobs.gate.set()
        assert job.wait(90) == "waited"


def test_a_request_that_was_not_heard_arrives_with_the_renewal_of_the_lease(
    queue: Queue, raw: redis.Redis
) -> None:
    """Its message went to nobody."""
    job = queue.enqueue(jobs.hang)
    with at_work(queue, lease=1):
        jobs.wait_seen(1)
        now_us = queue.counts().now_us
        raw.zadd(queue.keys["asked"], {job.id: now_us})
        eventually(lambda: ended(queue, job.id))
    assert job.refresh().state is State.CANCELLED


def test_the_listeners_connection_may_break(queue: Queue, raw: redis.Redis) -> None:
    with at_work(queue, lease=60):
        for _ in range(3):
            raw.client_kill_filter(_type="pubsub")
            eventually(lambda: not listeners(queue, "asked"))
            eventually(lambda: listeners(queue, "asked"))
            jobs.seen.clear()
            job = queue.enqueue(jobs.hang)
            jobs.wait_seen(1)
            assert job.cancel()
            with pytest.raises(JobCancelled):
                job.wait(60)


def test_a_namesake_in_another_queue_is_left_alone(url: str) -> None:
    """Ids are the users' own where they like; each queue has its own of them."""
    one, other = Queue("one", url=url), Queue("other", url=url)
    mine = one.enqueue(jobs.wait_async, job_id="daily")
    theirs = other.enqueue(jobs.wait_async, job_id="daily")
    with at_work(one, other, lease=1):
        jobs.wait_seen(2)
        assert mine.cancel()
        eventually(lambda: ended(one, "daily"))
        assert not theirs.refresh().cancelling
        jobs.gate.set()
        assert theirs.wait(90) == "waited"
    assert mine.refresh().state is State.CANCELLED
    one.close()
    other.close()


def test_a_worker_that_stops_gives_an_asked_job_up(queue: Queue) -> None:
    job = queue.enqueue(jobs.deaf)
    with at_work(queue) as one:
        jobs.wait_seen(1)
        job.cancel()
        one.stop()
        one.stop()
        eventually(lambda: ended(queue, job.id))
    assert job.refresh().state is State.CANCELLED


def test_a_worker_without_permissions_to_channels_learns_it_with_the_renewal(
    queue: Queue, raw: redis.Redis
) -> None:
    """What servers give a new user: keys and commands, and no channel."""
    run: Any = raw.execute_command
    run("ACL", "SETUSER", "limited", "reset", "on", ">secret", "~bide:*", "resetchannels", "+@all")
    mark = "&" if "?" in queue.url else "?"
    limited = Queue("work", url=f"{queue.url}{mark}username=limited&password=secret")
    job = limited.enqueue(jobs.hang)
    one = worker(limited, lease=1)
    thread = threading.Thread(target=one.run)
    thread.start()
    jobs.wait_seen(1)
    assert job.cancel()
    with pytest.raises(JobCancelled):
        job.wait(60)
    one.stop()
    thread.join(20)
    assert not thread.is_alive()
    limited.close()
    raw.acl_deluser("limited")
