"""Timers and RQ's own workers as processes: commands, signals, kills."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import rq

from bide.contrib.rq import DelayQueue, Timer
from bide.embedded import Server
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import burst, due_now, hearing
from tests.support.eventually import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `python -m …` in a directory from which the tests' jobs can be imported."""
    started: list[subprocess.Popen[str]] = []

    def do(*words: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=os.environ | env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield do
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def test_rqs_worker_command_runs_what_was_moved(
    one_queue: DelayQueue, one_url: str, start: Start
) -> None:
    job = one_queue.enqueue(jobs.pid, delay=60)
    due_now(one_queue, job)
    code, said = ended(start("rq.cli", "worker", "--burst", "--url", one_url, "mail"))
    assert code == 0, said
    assert job.return_value() not in (None, os.getpid())


def test_rqs_worker_forks_as_ever(one_queue: DelayQueue) -> None:
    job = one_queue.enqueue(jobs.pid, delay=60)
    after = one_queue.enqueue(jobs.pid, delay=60, depends_on=job)
    for one in (job, after):
        burst(one_queue)
        due_now(one_queue, one)
        rq.Worker([one_queue], connection=one_queue.connection).work(burst=True)
    assert job.return_value() not in (None, os.getpid())
    assert after.return_value() not in (None, os.getpid())


def test_the_command_moves_what_is_due(one_queue: DelayQueue, one_url: str, start: Start) -> None:
    job = one_queue.enqueue_delay_job(one_queue.create_job(jobs.add, args=(1,)), 1)
    words = ("bide", "rq-timer", "mail", "low", "--burst", "--name", "clerk", "-v")
    code, said = ended(start(*words, BIDE_URL=one_url))
    assert code == 0
    assert one_queue.job_ids == [job.id]
    assert "timer clerk moves due jobs of mail, low" in said
    assert f"job {job.id} moved to mail" in said
    assert "timer clerk stopped after 1 job\n" in said


def test_the_command_takes_a_class_of_queues(
    one_connection: redis.Redis, one_url: str, start: Start
) -> None:
    queue = jobs.ShopQueue("mail", one_connection)
    job = queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), 1)
    words = ("bide", "rq-timer", "mail", "--burst", "-u", one_url)
    ended(start(*words))
    assert queue.job_ids == []
    code, said = ended(start(*words, "--queue-class", "tests.contrib.rq.jobs.ShopQueue"))
    assert code == 0, said
    assert queue.job_ids == [job.id]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere.Queue", "--queue-class nowhere.Queue cannot be imported"),
        ("tests.contrib.rq.jobs.Nothing", "cannot be imported"),
        ("Queue", "cannot be imported"),
        ("tests.contrib.rq.jobs.add", "is not a class of RQ queues; name a subclass of rq.Queue."),
        ("tests.contrib.rq.jobs.Job", "is not a class of RQ queues; name a subclass of rq.Queue."),
    ],
)
def test_what_is_no_class_of_queues_is_an_error_of_one_sentence(
    one_url: str, start: Start, path: str, says: str
) -> None:
    code, said = ended(start("bide", "rq-timer", "mail", "-u", one_url, "--queue-class", path))
    assert (code, said.count("\n")) == (2, 1)
    assert says in said


def test_the_command_reports_what_is_wrong_in_a_sentence(start: Start) -> None:
    code, said = ended(start("bide", "rq-timer", "-u", "redis://127.0.0.1:1", "mail"))
    assert code == 1
    assert said.startswith("Error: Cannot reach the server at 127.0.0.1:1")
    code, said = ended(start("bide", "rq-timer"))
    assert code == 2
    assert "Missing argument 'QUEUE...'" in said


def test_bide_works_without_rq_and_says_what_to_install(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['rq'] = None\n")
    without = {"PYTHONPATH": str(tmp_path)}
    code, said = ended(start("bide", "rq-timer", "mail", **without))
    assert (code, said) == (
        2,
        "Error: bide.contrib.rq needs RQ: run `pip install 'bide[rq]'`.\n",
    )
    code, said = ended(start("bide", "--version", **without))
    assert code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(
    one_queue: DelayQueue, one_url: str, start: Start, number: signal.Signals
) -> None:
    one_queue.enqueue(jobs.add, 1, delay=3600)
    process = start("bide", "rq-timer", "mail", "-u", one_url)
    eventually(lambda: hearing(one_queue))
    process.send_signal(number)
    code, said = ended(process)
    assert code == 0
    assert "stopped after 0 jobs" in said
    assert "Traceback" not in said


def test_a_signal_ends_it_though_the_server_hangs(
    tmp_server: Callable[..., Server], start: Start
) -> None:
    server = tmp_server()
    with redis.Redis.from_url(server.url) as connection:
        process = start("bide", "rq-timer", "mail", "-u", server.url)
        eventually(lambda: hearing(DelayQueue("mail", connection)))
    try:
        os.kill(server.pid, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        code, said = ended(process)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert code == 0
    assert "Traceback" not in said


def test_killed_timers_lose_nothing_and_move_nothing_twice(
    one_queue: DelayQueue, one_url: str, start: Start
) -> None:
    """Three at work, one killed again and again; the jobs themselves write the ledger."""
    lots = random.Random(11)
    timers = [start("bide", "rq-timer", "mail", "-u", one_url) for _ in range(3)]
    eventually(lambda: hearing(one_queue) == 3)
    made = []
    parent = one_queue.enqueue(jobs.write_down, "ledger")
    worker = rq.SimpleWorker([one_queue], connection=one_queue.connection)
    for turn in range(48):
        for _ in range(20):
            depends = parent if lots.random() < 0.2 else None
            delay = lots.uniform(0.001, 1.5)
            job = one_queue.enqueue(jobs.write_down, "ledger", delay=delay, depends_on=depends)
            made.append(job.id)
        if turn % 6 == 0:
            eventually(lambda: hearing(one_queue) >= 2)
            victim = timers.pop(0)
            victim.kill()
            victim.wait()
            timers.append(start("bide", "rq-timer", "mail", "-u", one_url))
            parent = one_queue.enqueue(jobs.write_down, "ledger")
        worker.work(burst=True)
    keys = (one_queue.delay_key, "rq:queue:delay_gate", one_queue.key)

    def drained() -> bool:
        worker.work(burst=True)
        return not one_queue.connection.exists(*keys)

    eventually(drained)
    ledger = one_queue.connection.hgetall("ledger")
    assert {ledger[id.encode()] for id in made} == {b"1"}
    assert one_queue.deferred_job_registry.get_job_ids() == []


@pytest.mark.parametrize("cut", ["connections", "scripts"])
def test_a_timer_that_is_cut_off_under_load_loses_nothing(one_queue: DelayQueue, cut: str) -> None:
    """Replies are lost: what was done is done, and what was not is done again."""
    timers = [Timer(one_queue) for _ in range(3)]
    threads = [threading.Thread(target=timer.work) for timer in timers]
    for thread in threads:
        thread.start()
    lots = random.Random(5)
    made = []
    for number in range(400):
        made.append(one_queue.enqueue(jobs.add, number, delay=lots.uniform(0.001, 0.5)).id)
        if number % 20 == 0 and cut == "connections":
            for client in one_queue.connection.client_list(_type="normal"):
                if client["cmd"] in ("evalsha", "blmove"):
                    with contextlib.suppress(redis.ConnectionError):  # it was our own
                        one_queue.connection.client_kill_filter(_id=client["id"])
        elif number % 20 == 0:
            one_queue.connection.script_flush()
    eventually(lambda: one_queue.count == len(made))
    for timer, thread in zip(timers, threads, strict=True):
        timer.stop()
        thread.join(20)
        assert not thread.is_alive()
    assert sorted(one_queue.job_ids) == sorted(made)
