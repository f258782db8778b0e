"""What running jobs say of themselves: progress and log lines, from coroutines and threads."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from bide import Queue, Retry, State
from bide.model.history import LONGEST_LOG
from bide.protocol.scripts import load
from tests.support import jobs, surface
from tests.support.workers import at_work, burst, eventually


def lines(job: Any) -> list[str]:
    return [line.text for line in job.refresh().logs]


@pytest.mark.slow
@pytest.mark.parametrize("task", [surface.say, surface.say_async])
def test_all_that_was_said_just_before_the_end_is_there_at_the_end(queue: Queue, task: Any) -> None:
    job = queue.enqueue(task)
    with at_work(queue):
        assert job.wait(90) == "said"
        assert lines(job) == ["line 0", "line 1", "line 2"]
        assert job.progress is not None
        assert (job.progress.fraction, job.progress.text) == (1.0, "step 2")


def test_for_each_of_many_that_end_at_once(queue: Queue) -> None:
    """More than one call may take."""
    added = [queue.enqueue(surface.say_async, 20) for _ in range(100)]
    with at_work(queue):
        for job in added:
            job.wait(90)
            assert lines(job) == [f"line {i}" for i in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("task", [surface.say_and_wait, surface.say_and_wait_async])
def test_it_shows_while_the_job_runs(queue: Queue, task: Any) -> None:
    job = queue.enqueue(task)
    with at_work(queue):
        jobs.wait_seen(1)
        eventually(lambda: lines(job) == ["working"])
        assert job.state is State.ACTIVE
        assert job.progress is not None
        assert (job.progress.fraction, job.progress.text) == (0.5, "half way")
        assert job.started is not None
        assert job.started <= job.progress.at


def test_what_is_too_much_for_one_round_trip_is_not_forgotten_at_the_end(queue: Queue) -> None:
    added = [queue.enqueue(surface.say_much) for _ in range(10)]
    burst(queue)
    for job in added:
        assert [text.partition(" ")[0] for text in lines(job)] == [f"{i}" for i in range(84, 100)]


def test_a_worker_makes_the_script_known_before_it_is_needed(queue: Queue, url: str) -> None:
    """Else the first words of all would be sent again, behind the end of their job."""
    with redis.Redis.from_url(url) as raw:
        raw.script_flush()
        with at_work(queue):
            assert raw.script_exists(load("add_notes").sha) == [True]
        assert queue.counts().waiting == 0


@pytest.mark.slow
def test_a_job_that_fails_keeps_its_last_words(queue: Queue) -> None:
    job = queue.enqueue(surface.say_and_fail, retry=Retry(1, backoff="fixed", base=3600))
    burst(queue)
    job.promote()
    burst(queue)
    assert lines(job) == ["it goes wrong"] * 2
    assert [attempt.error.message for attempt in job.attempts if attempt.error] == [
        "as it said",
        "as it said",
    ]


def test_threads_of_a_job_may_speak_at_once(queue: Queue) -> None:
    job = queue.enqueue(surface.say_in_threads, 50)
    burst(queue)
    assert sorted(lines(job), key=int) == [f"{i}" for i in range(50)]


def test_only_the_latest_lines_are_kept(queue: Queue) -> None:
    job = queue.enqueue(surface.say, 350)
    burst(queue)
    assert lines(job) == [f"line {i}" for i in range(250, 350)]


def test_what_is_too_long_is_cut_and_what_cannot_be_encoded_is_replaced(queue: Queue) -> None:
    job = queue.enqueue(surface.say_this, "x" * 5_000)
    odd = queue.enqueue(surface.say_this, "two\nlines and \\ud800 a half")
    burst(queue)
    assert lines(job) == ["x" * LONGEST_LOG]
    assert lines(odd) == ["two\nlines and ? a half"]


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [-0.1, 1.1, "half", None])
def test_a_progress_that_cannot_be_meant_is_an_error_in_the_job(
    queue: Queue, fraction: Any
) -> None:
    job = queue.enqueue(surface.say_nonsense, fraction)
    burst(queue)
    error = job.refresh().error
    assert error is not None
    assert (error.type, "from 0 to 1" in error.message) == ("bide.UsageError", True)


def test_saying_costs_no_round_trip_of_its_own(queue: Queue, url: str) -> None:
    """It goes with what is sent anyway."""
    for _ in range(50):
        queue.enqueue(surface.say_async, 20)
    with redis.Redis.from_url(url) as raw:
        raw.config_resetstat()
        burst(queue)
        calls = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls < 50


def test_what_the_server_refuses_is_dropped_and_the_job_completes(
    queue: Queue, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = queue.enqueue(surface.say)
    with redis.Redis.from_url(url) as raw, caplog.at_level(logging.INFO, "bide"):
        raw.set(queue.keys["notes"], "not a hash")
        burst(queue)
        raw.delete(queue.keys["notes"])
    assert job.refresh().state is State.COMPLETED
    assert "notes of jobs were refused" in caplog.text
