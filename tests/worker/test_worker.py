"""The worker: what it runs, how jobs end, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import redis

import bide.worker.worker
from bide import JobNotFound, Queue, Retry, State, TaskNotFound, UsageError, Worker
from bide.contrib.outbox.sending import relay_in_thread
from bide.worker.loop import WorkerLoop
from tests.support import jobs
from tests.support.cpu_waits import Witness
from tests.support.eventually import PATIENCE
from tests.support.workers import Later, eventually

MODULE = "tests.support.jobs"


def worker(*queues: Queue, **options: object) -> Worker:
    return Worker(queues, modules=[MODULE], **options)  # type: ignore[arg-type]


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """Run a worker in a thread, and stop it warmly at the end."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        jobs.gate.set()
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("task", [jobs.add, jobs.add_async])
def test_a_job_runs_and_its_result_is_kept(queue: Queue, task: object) -> None:
    job = queue.enqueue(task, 2, b=3)  # type: ignore[arg-type]
    assert job.state is State.WAITING
    assert worker(queue).run(burst=True) == 1
    job.refresh()
    assert (job.state, job.result, job.attempt) == (State.COMPLETED, 5, 1)
    assert job.lateness is not None
    assert job.lateness >= 0


def test_both_kinds_run_in_one_worker(queue: Queue) -> None:
    queue.enqueue(jobs.add, 1)
    queue.enqueue(jobs.add_async, 2)
    assert worker(queue).run(burst=True) == 2
    assert sorted(jobs.seen) == [("add", 1, 0), ("add_async", 2, 0)]


def test_a_burst_hears_of_what_comes_while_a_job_runs(queue: Queue, raw: redis.Redis) -> None:
    """Otherwise it would look again after five seconds, with its other slots free."""
    queue.enqueue(jobs.wait_thread)
    working = Later(lambda: worker(queue, concurrency=2).run(burst=True))
    jobs.wait_seen(1)

    def listens() -> bool:
        clients: Any = raw.client_list()
        return any(client["cmd"] == "blpop" for client in clients)

    eventually(listens)
    queue.enqueue(jobs.add, 1).wait(60)
    jobs.gate.set()
    assert working.result() == 2


def test_a_burst_starts_at_once_what_becomes_due_while_a_job_runs(
    queue: Queue, witness: Witness
) -> None:
    """Otherwise it would look again after five seconds, with its other slots free."""
    queue.enqueue(jobs.wait_thread)
    working = Later(lambda: worker(queue, concurrency=2).run(burst=True))
    jobs.wait_seen(1)
    delayed = [queue.enqueue(jobs.add, 1, delay=delay) for delay in (0.3, 0.6)]
    for job in delayed:
        job.wait(60)
    jobs.gate.set()
    assert working.result() == 3
    assert max(witness.lateness(job.refresh()) for job in delayed) < 1


def test_a_delayed_job_is_not_run_by_a_burst(queue: Queue) -> None:
    job = queue.enqueue(jobs.add, 1, delay="1h")
    assert worker(queue).run(burst=True) == 0
    assert job.refresh().state is State.DELAYED


def test_an_idle_worker_wakes_for_a_delayed_job_and_for_an_immediate_one(queue: Queue) -> None:
    with running(worker(queue)):
        delayed = queue.enqueue(jobs.add, 1, delay=timedelta(milliseconds=300))
        queue.enqueue(jobs.add, 2)
        assert jobs.wait_seen(2) == [("add", 2, 0), ("add", 1, 0)]
    lateness = delayed.refresh().lateness
    assert lateness is not None
    assert lateness >= 0, "a job ran early"


def test_a_job_starts_before_the_idle_worker_does_anything_else(
    queue: Queue, raw: redis.Redis, url: str
) -> None:
    """After a wake-up message comes the claim, then the job's first statement, then the rest."""
    with running(worker(queue)):
        queue.enqueue(jobs.echo_async, url)
        jobs.wait_seen(1)  # the server has the scripts
        eventually(lambda: queue.counts().completed == 1)
        eventually(lambda: cast("Any", raw.info("clients"))["blocked_clients"])  # it listens
        with cast("Any", raw).monitor() as monitor:
            queue.enqueue(jobs.echo_async, url)
            told = []
            while "BLPOP" not in told:
                command = monitor.next_command()
                if command["client_type"] != "lua":
                    told.append(str(command["command"]).split(" ")[0])
    enqueue, claim = ["EVALSHA"] * 2
    known = [name for name in told if name in ("EVALSHA", "ECHO", "BLPOP")]
    assert known[:3] == [enqueue, claim, "ECHO"], told


def test_a_job_starts_before_the_worker_plans_its_next_request(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_plan", "_take"):
        monkeypatch.setattr(WorkerLoop, name, _noted(getattr(WorkerLoop, name)))
    with running(worker(queue)):
        eventually(lambda: "_take" in jobs.seen)
        queue.enqueue(jobs.add_async, 1)
        eventually(lambda: ("add_async", 1, 0) in jobs.seen)
    began = jobs.seen.index(("add_async", 1, 0))
    assert jobs.seen[began - 1] == "_take"


def test_a_wake_up_message_finds_its_claim_encoded(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(worker(queue)):
        queue.enqueue(jobs.add_async, 1)
        eventually(lambda: queue.counts().completed == 1)
        for name in ("_foresee", "_plan", "_take"):
            monkeypatch.setattr(WorkerLoop, name, _noted(getattr(WorkerLoop, name)))
        eventually(lambda: "_foresee" in jobs.seen)
        eventually(lambda: jobs.seen[-1] == "_foresee")
        queue.enqueue(jobs.add_async, 2)
        eventually(lambda: ("add_async", 2, 0) in jobs.seen)
    began = jobs.seen.index(("add_async", 2, 0))
    assert jobs.seen[began - 2 : began] == ["_foresee", "_take"]


def _noted(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that notes its name."""

    def noted(self: WorkerLoop, *args: Any) -> Any:
        jobs.note(method.__name__)
        return method(self, *args)

    return noted


@pytest.mark.parametrize("task", [jobs.fail, jobs.fail_async])
def test_an_error_without_retries_is_final_and_kept(queue: Queue, task: object) -> None:
    job = queue.enqueue(task, "no such order")  # type: ignore[arg-type]
    worker(queue).run(burst=True)
    job.refresh()
    assert job.state is State.FAILED
    assert job.error is not None
    assert (job.error.type, job.error.message) == ("ValueError", "no such order")
    assert "raise ValueError(message)" in job.error.traceback


def test_retries_are_counted_and_end(queue: Queue) -> None:
    policy = Retry(2, backoff="fixed", base=0)
    job = queue.enqueue(jobs.fail, "again", retry=policy)
    worker(queue).run(burst=True)
    assert jobs.seen == [("fail", 1), ("fail", 2), ("fail", 3)]
    assert job.refresh().state is State.FAILED
    assert job.attempt == 3


def test_a_job_that_will_be_retried_is_delayed_and_keeps_its_error(queue: Queue) -> None:
    job = queue.enqueue(jobs.fail, "later", retry=Retry(1, backoff="fixed", base=3600))
    worker(queue).run(burst=True)
    assert job.refresh().state is State.DELAYED
    assert job.error is not None
    assert job.error.message == "later"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (jobs.quit_process, "SystemExit"),
        (jobs.cancel_itself, "asyncio.exceptions.CancelledError"),
        (jobs.unfit, "bide.PayloadError"),
        (jobs.ask_for_nothing, "bide.TaskNotFound"),
    ],
)
def test_what_cannot_run_or_end_well_fails_that_job_alone(
    queue: Queue, task: object, kind: str
) -> None:
    bad = queue.enqueue(task)  # type: ignore[arg-type]
    good = queue.enqueue(jobs.add, 1)
    worker(queue).run(burst=True)
    assert bad.refresh().state is State.FAILED
    assert bad.error is not None
    assert bad.error.type == kind
    assert good.refresh().state is State.COMPLETED


def test_a_module_that_is_not_served_is_never_imported_and_the_error_says_how_to_allow_it(
    queue: Queue,
) -> None:
    job = queue.enqueue("antigravity:fly")
    worker(queue).run(burst=True)
    error = job.refresh().error
    assert error is not None
    assert "bide worker antigravity" in error.message
    import sys

    assert "antigravity" not in sys.modules


def test_wrong_arguments_fail_the_job(queue: Queue) -> None:
    """Of a task that the producer does not have; else it would have been told at once."""
    job = queue.enqueue(f"{MODULE}:add", 1, 2, 3, 4)
    worker(queue).run(burst=True)
    error = job.refresh().error
    assert error is not None
    assert error.type == "bide.PayloadError"
    assert "takes 2 arguments" in error.message


def test_a_registered_task_runs_without_its_module_being_served(queue: Queue) -> None:
    job = queue.enqueue(jobs.registered)
    Worker([queue]).run(burst=True)
    assert job.refresh().result == "registered"


def test_a_static_method_of_a_served_module_runs(queue: Queue) -> None:
    job = queue.enqueue(jobs.Greeter.greet, "you")
    worker(queue).run(burst=True)
    assert job.refresh().result == "hello you"


def test_a_task_knows_its_job_in_a_thread_and_across_awaits(queue: Queue) -> None:
    first = queue.enqueue(jobs.who)
    second = queue.enqueue(jobs.who_async)
    worker(queue, name="w1").run(burst=True)
    by_id = {note[0]: note[1:] for note in jobs.seen}
    assert by_id[first.id][:3] == ("work", 1, True)
    assert by_id[first.id][3].startswith("bide-w1")
    assert by_id[second.id] == ("work", 1, True)
    with pytest.raises(UsageError, match="outside of a job"):
        jobs.who()


def test_queues_are_served_in_their_order(url: str) -> None:
    low, high = Queue("low", url=url), Queue("high", url=url)
    for i in range(3):
        low.enqueue(jobs.add, i)
    for i in range(3):
        high.enqueue(jobs.add, 10 + i)
    assert worker(high, low, concurrency=1).run(burst=True) == 6
    assert [a for _, a, _ in jobs.seen] == [10, 11, 12, 0, 1, 2]
    low.close()
    high.close()


def test_no_more_jobs_run_at_once_than_there_are_slots(queue: Queue) -> None:
    for _ in range(5):
        queue.enqueue(jobs.wait_thread)
    with running(worker(queue, concurrency=2)):
        jobs.wait_seen(2)
        assert queue.counts().active == 2
        assert jobs.seen == ["begun", "begun"]
        jobs.gate.set()
        jobs.wait_seen(10)


def test_a_coroutine_that_runs_too_long_is_cancelled(queue: Queue) -> None:
    job = queue.enqueue(jobs.hang, timeout=0.05)
    worker(queue).run(burst=True)
    error = job.refresh().error
    assert error is not None
    assert (job.state, error.type) == (State.FAILED, "bide.JobTimeout")
    assert "0.05 s" in error.message


@pytest.mark.slow
def test_a_thread_that_runs_too_long_ends_its_job_and_keeps_its_slot(queue: Queue) -> None:
    slow = queue.enqueue(jobs.wait_thread, timeout=0.5)
    with running(worker(queue, concurrency=1)):
        jobs.wait_seen(1)
        while slow.refresh().state is State.ACTIVE:
            pass
        assert slow.state is State.FAILED
        blocked = queue.enqueue(jobs.add, 1)
        assert blocked.refresh().state is State.WAITING
        jobs.gate.set()
        assert ("add", 1, 0) in jobs.wait_seen(3)


@pytest.mark.slow
def test_a_lease_is_renewed_while_a_coroutine_blocks_the_event_loop(
    queue: Queue, witness: Witness
) -> None:
    taken = 0
    with running(worker(queue, lease=1)):
        job = queue.enqueue(jobs.block, 3.0)
        jobs.wait_seen(1)
        other = Worker([Queue("work", url=queue.url)], modules=[MODULE])
        while job.refresh().state is State.ACTIVE:
            taken += other.run(burst=True)
    assert job.refresh().result == "done"
    assert taken <= len(witness.starved(1)), "unless the machine kept it from renewing"


@pytest.mark.slow
def test_a_lease_may_be_long(queue: Queue, raw: redis.Redis) -> None:
    """For a day no renewal is due; what a renewal may take is bounded all the same."""
    job = queue.enqueue(jobs.wait_async)
    with running(worker(queue, lease="1d")):
        jobs.wait_seen(1)
        ends = raw.zscore(queue.keys["active"], job.id)
        assert ends is not None
        assert ends - job.due.timestamp() * 1e6 >= 86_400_000_000
    assert job.refresh().state is State.COMPLETED


@pytest.mark.slow
def test_the_first_stop_lets_running_jobs_finish(queue: Queue) -> None:
    job = queue.enqueue(jobs.wait_async)
    stopping = worker(queue)
    thread = threading.Thread(target=stopping.run)
    thread.start()
    jobs.wait_seen(1)
    stopping.stop()
    later = queue.enqueue(jobs.add, 1)
    jobs.gate.set()
    thread.join(20)
    assert not thread.is_alive()
    assert job.refresh().result == "waited"
    assert later.refresh().state is State.WAITING


@pytest.mark.slow
@pytest.mark.parametrize("task", [jobs.wait_thread, jobs.wait_async])
def test_the_second_stop_gives_running_jobs_back_without_using_an_attempt(
    queue: Queue, task: object
) -> None:
    job = queue.enqueue(task)  # type: ignore[arg-type]
    stopping = worker(queue)
    thread = threading.Thread(target=stopping.run)
    thread.start()
    jobs.wait_seen(1)
    stopping.stop()
    stopping.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert job.refresh().state is State.WAITING
    assert job.attempt == 0
    jobs.gate.set()
    worker(queue).run(burst=True)
    assert job.refresh().result == "waited"
    assert job.attempt == 1


@pytest.mark.slow
def test_the_end_of_the_grace_gives_running_jobs_back(queue: Queue) -> None:
    job = queue.enqueue(jobs.hang)
    stopping = worker(queue, grace=0.05)
    thread = threading.Thread(target=stopping.run)
    thread.start()
    jobs.wait_seen(1)
    stopping.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert job.refresh().state is State.WAITING


@pytest.mark.slow
def test_a_paused_queue_runs_nothing_until_it_is_resumed(queue: Queue) -> None:
    queue.pause()
    with running(worker(queue)):
        job = queue.enqueue(jobs.add, 1)
        assert Worker([queue], modules=[MODULE]).run(burst=True) == 0
        assert job.refresh().state is State.WAITING
        queue.resume()
        jobs.wait_seen(1)


@pytest.mark.slow
def test_a_cancelled_job_does_not_run(queue: Queue) -> None:
    job = queue.enqueue(jobs.add, 1)
    assert job.cancel()
    assert job.cancel(), "a repeat whose first reply was lost is told the same"
    assert worker(queue).run(burst=True) == 0
    assert job.refresh().state is State.CANCELLED
    job.delete()
    with pytest.raises(JobNotFound):
        job.refresh()


def test_a_worker_names_what_is_wrong_with_its_arguments(url: str) -> None:
    with pytest.raises(UsageError, match="at least one queue"):
        Worker([], url=url)
    with pytest.raises(UsageError, match="concurrency"):
        Worker("q", url=url, concurrency=0)
    with pytest.raises(UsageError, match="lease"):
        Worker("q", url=url, lease=0.1)
    with pytest.raises(TaskNotFound, match="cannot be imported"):
        Worker("q", url=url, modules=["no.such.module"])


WITHIN = """
import asyncio, sys
from bide import Worker

async def main():
    worker = Worker("q", url=sys.argv[1])
    try:
        worker.run(burst=True)
    except ValueError as error:
        print(error)
    print(await worker.arun(burst=True))

asyncio.run(main())
"""


@pytest.mark.slow
def test_it_does_not_begin_within_an_event_loop_and_says_what_does(one_url: str) -> None:
    command = [sys.executable, "-c", WITHIN, one_url]  # for a process that goes on can be killed
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    refusal, worked = ended.stdout.splitlines()
    assert "call `await worker.arun()`" in refusal
    assert worked == "0"


def test_in_an_event_loop_of_the_programs_signals_are_the_programs(one_url: str) -> None:
    """A web server, for instance, would not end any more."""

    async def main() -> bool:
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        worker = Worker("q", url=one_url)
        running = asyncio.create_task(worker.arun())
        while not worker.polled:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(20):
            await told.wait()
        goes_on = not worker._stops
        worker.stop()
        assert await running == 0
        return goes_on

    assert asyncio.run(main())


def test_a_queue_that_is_named_twice_is_served_once(one_url: str) -> None:
    assert Worker(["b", "a", "b"], url=one_url).queues == ["b", "a"]


@pytest.mark.slow
def test_a_worker_is_listed_from_its_start_to_its_stop(queue: Queue) -> None:
    assert queue.workers() == []
    before = datetime.now(UTC)
    with running(worker(queue, name="w1", concurrency=3)):
        eventually(lambda: [seen.name for seen in queue.workers()] != [])
        (seen,) = queue.workers()
        assert seen.name.startswith("w1.")
        assert before <= seen.about.started <= datetime.now(UTC)
        about = (seen.about.pid, seen.about.queues, seen.about.concurrency)
        assert about == (os.getpid(), ["work"], 3)
    assert queue.workers() == []


@pytest.mark.slow
@pytest.mark.parametrize("task", [jobs.wait_thread, jobs.wait_async])
def test_what_a_worker_runs_is_shown_at_once(queue: Queue, task: Any) -> None:
    with running(worker(queue, concurrency=3)):
        eventually(queue.workers)
        job = queue.enqueue(task)
        jobs.wait_seen(1)
        (about,) = [seen.about for seen in queue.workers()]
        assert (about.busy, [one.id for one in about.doing]) == (1, [job.id])
        jobs.gate.set()
        job.wait(90)
        (about,) = [seen.about for seen in queue.workers()]
        assert (about.busy, about.doing) == (0, [])


@pytest.mark.slow
def test_a_worker_leaves_nothing_but_finished_jobs_behind(queue: Queue) -> None:
    before = {thread.name for thread in threading.enumerate()}
    queue.enqueue(jobs.add, 1)
    queue.enqueue(jobs.add_async, 1)
    worker(queue).run(burst=True)
    counts = queue.counts()
    assert (counts.active, counts.idle_workers, counts.completed) == (0, 0, 2)
    for thread in threading.enumerate():
        if thread.name not in before:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("task", [jobs.take_parcel, jobs.take_parcel_async])
def test_an_idle_worker_does_not_keep_the_arguments_of_jobs_that_ended(
    queue: Queue, task: Any
) -> None:
    """They may be large, and the next job, or the time-out of this one, far."""

    def are_gone() -> bool:
        gc.collect()
        return [one() for one in jobs.seen[0]] == [None, None]

    with running(worker(queue)):
        queue.enqueue(task, jobs.Parcel(3)).wait(60)
        eventually(are_gone, 20)


def test_last_in_first_out_where_a_queue_object_says_so(one_url: str) -> None:
    with contextlib.closing(Queue("stack", url=one_url, lifo=True)) as stack:
        added = stack.enqueue_many([stack.prepare(jobs.add, (n,)) for n in range(4)])
        later = stack.enqueue(jobs.add, 4, delay=3600)
        urgent = stack.enqueue(jobs.add, 5, priority=9)
        assert Worker("stack", url=one_url, modules=[MODULE], concurrency=1).run(burst=True) == 5
        starts = {job.refresh().started: job.result for job in [*added, urgent]}
        assert [starts[at] for at in sorted(filter(None, starts))] == [5, 3, 2, 1, 0]
        assert later.refresh().state is State.DELAYED
    with pytest.raises(UsageError, match="lifo must be True or False"):
        Queue("stack", lifo="yes")  # type: ignore[arg-type]


def test_one_object_does_not_run_twice_at_the_same_time(queue: Queue) -> None:
    worker = Worker(queue)
    running = Later(worker.run)
    eventually(queue.workers)
    with pytest.raises(UsageError, match="This worker runs already; create another Worker"):
        worker.run(burst=True)
    worker.stop()
    assert running.result() == 0
    assert worker.run(burst=True) == 0


def test_an_error_of_the_task_beside_a_worker_is_logged(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def beside() -> None:
        raise ValueError("cannot listen on port 80")

    queue.enqueue(jobs.add, 1)
    assert worker(queue).run(burst=True, beside=beside) == 1
    (record,) = [one for one in caplog.records if "beside the worker" in one.getMessage()]
    assert record.levelname == "ERROR"
    assert "cannot listen on port 80" in str(record.exc_info)


def test_a_relay_whose_database_hangs_does_not_keep_a_worker_from_ending(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bide.worker.worker, "LEAVING", 0.05)
    asked, answers, stop = threading.Event(), threading.Event(), threading.Event()

    def query() -> int:
        asked.set()
        answers.wait()
        return 0

    async def beside() -> None:
        await relay_in_thread(query, stop)

    run = Later(lambda: worker(queue).run(burst=True, beside=beside))
    try:
        assert run.result() == 0
        assert asked.wait(PATIENCE)
        assert stop.is_set()
        assert "the task beside the worker did not end within 0.05 s" in caplog.text
    finally:
        answers.set()
