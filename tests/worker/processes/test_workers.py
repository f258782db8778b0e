"""What a worker does whose jobs run in processes: begins, replaces children, logs, stops."""

from __future__ import annotations

import subprocess

import pytest

from bide import State, TaskNotFound, UsageError
from bide.errors import BideError
from tests.support import process_tasks as tasks
from tests.support.process_bench import PROCESS, ROOT, ProcessBench, program

pytestmark = pytest.mark.slow


def test_a_burst_ends_when_nothing_is_due(bench: ProcessBench) -> None:
    jobs = [bench.queue.enqueue(tasks.add, i) for i in range(30)]
    bench.queue.enqueue_call(tasks.add, args=(1,), delay=60)
    assert bench.burst() == 30
    assert [job.refresh().result for job in jobs] == list(range(30))
    assert bench.burst() == 0


@PROCESS
def test_a_retry_without_delay_is_part_of_a_burst(bench: ProcessBench) -> None:
    bench.queue.enqueue(tasks.later_once)
    assert bench.burst() == 2


def test_each_fork_has_one_job_and_a_process_many(bench: ProcessBench) -> None:
    jobs = [bench.queue.enqueue(tasks.my_pid) for _ in range(20)]
    bench.burst()
    pids = {job.refresh().result for job in jobs}
    assert len(pids) == 20 if bench.executor == "fork" else len(pids) <= 2


def test_children_are_replaced_after_so_many_jobs(bench: ProcessBench) -> None:
    if bench.executor == "fork":
        with pytest.raises(UsageError, match="max_jobs= has no effect with executor='fork'"):
            bench.worker(max_jobs=1)
        return
    jobs = [bench.queue.enqueue(tasks.my_pid) for _ in range(20)]
    bench.burst(max_jobs=5, concurrency=1)
    pids = [job.refresh().result for job in jobs]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [5] * 4
    assert [job.refresh().attempt for job in jobs] == [1] * 20


def test_or_when_they_have_grown(bench: ProcessBench) -> None:
    if bench.executor == "fork":
        with pytest.raises(UsageError, match="max_rss= is for executor='process'"):
            bench.worker(max_rss=1)
        return
    jobs = [bench.queue.enqueue(tasks.grow, 100) for _ in range(4)]
    bench.burst(max_rss=300 << 20, concurrency=1)
    pids = [job.refresh().result for job in jobs]
    assert 1 < len(set(pids)) < 4


def test_resources_are_opened_once_in_each_child_and_closed_at_its_end(bench: ProcessBench) -> None:
    for _ in range(12):
        bench.queue.enqueue(tasks.use_pool)
    bench.burst()
    for pid in {note.pid for note in bench.notes("pool")}:
        of_child = [note.what[0] for note in bench.notes() if note.pid == pid]
        assert of_child == ["open", *["pool"] * of_child.count("pool"), "close"]
    opened, closed = ({n.pid for n in bench.notes(what)} for what in ("open", "close"))
    assert opened == closed


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("refused_resource", "ConnectionError: nobody is there"),
        ("deadly_resource", "exited with code 9"),
    ],
)
def test_a_resource_that_cannot_be_opened_stops_the_worker(
    bench: ProcessBench, module: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tasks.BROKEN, module)
    with pytest.raises(BideError, match=error):
        bench.burst()


@PROCESS
def test_a_module_that_cannot_be_imported_stops_the_worker(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TaskNotFound, match="cannot be imported"):
        bench.worker(modules=["tests.worker.nowhere"])
    worker = bench.worker()
    monkeypatch.setenv(tasks.BROKEN, "import")  # the children's own import fails
    with pytest.raises(TaskNotFound, match="no import today"):
        worker.run(burst=True)


@PROCESS
def test_tasks_that_a_decorator_registered_run_though_their_module_is_not_named(
    bench: ProcessBench,
) -> None:
    job = bench.queue.enqueue(tasks.brief)
    bench.burst(modules=[])
    error = job.refresh().error
    assert error is not None
    assert error.type == "bide.JobTimeout"


def test_a_worker_stops_warmly(bench: ProcessBench) -> None:
    with bench.at_work() as worker:
        jobs = [bench.queue.enqueue(tasks.held, "gate") for _ in range(2)]
        more = [bench.queue.enqueue(tasks.add, i) for i in range(5)]
        bench.wait("begun", 2)
        worker.stop()
        bench.open("gate")
    assert [job.refresh().result for job in jobs] == ["held"] * 2
    for job in more:
        assert (job.refresh().state, job.attempt) == (State.WAITING, 0)


def test_or_gives_back_what_runs_without_using_an_attempt(bench: ProcessBench) -> None:
    done = [bench.queue.enqueue(tasks.add, i) for i in range(10)]
    with bench.at_work() as worker:
        for job in done:
            job.wait(90)
        jobs = [bench.queue.enqueue(tasks.held, "never") for _ in range(5)]
        bench.wait("begun", 2)
        worker.stop()
        worker.stop()
    for job in jobs:
        assert (job.refresh().state, job.attempt, job.attempts) == (State.WAITING, 0, ())
    assert len(bench.notes("begun")) == 2
    assert bench.queue.counts().active == 0
    bench.open("never")
    assert bench.burst() == 5


@PROCESS
def test_what_runs_when_the_grace_ends_is_given_back(bench: ProcessBench) -> None:
    job = bench.queue.enqueue(tasks.sleep, 30)
    with bench.at_work(grace=0.1) as worker:
        bench.wait("begun")
        worker.stop()
    assert (job.refresh().state, job.attempt) == (State.WAITING, 0)


@PROCESS
def test_a_worker_can_work_again(bench: ProcessBench) -> None:
    worker = bench.worker()
    for _ in range(2):
        job = bench.queue.enqueue(tasks.add, 1)
        assert worker.run(burst=True) == 1
        assert job.refresh().state is State.COMPLETED


@PROCESS
def test_children_that_are_idle_leave_quietly(
    bench: ProcessBench, caplog: pytest.LogCaptureFixture
) -> None:
    with bench.at_work():
        caplog.clear()  # it has said that tasks of its modules go to another server
        bench.queue.enqueue(tasks.add, 1).wait(90)
    assert [r.message for r in caplog.records if r.levelname in ("WARNING", "ERROR")] == []


def test_children_log_as_the_command_line_says_and_print_where_it_does(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    format = "json" if bench.executor == "fork" else "kv"
    job = bench.queue.enqueue(tasks.speak, "hello")
    ran = subprocess.run(
        program(bench.queue.url, bench.executor, "burst", format),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["hello", "imported", "imported"]
    lines = ran.stderr.splitlines()
    assert "hello" in lines
    (logged,) = [line for line in lines if "hello, logged" in line]
    (detail,) = [line for line in lines if "hello, in detail" in line]
    assert job.id in logged
    assert "debug" in detail
    assert logged.startswith("{" if format == "json" else "ts=")
