"""What a worker owes to its neighbours: leases kept or given up, contexts apart, an end in time."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import redis

from bide import Queue, State, UsageError, Worker
from bide.client.blocking import Client
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.keys import DUE_SETS, keys_of
from tests.support import jobs
from tests.support.cpu_waits import Witness
from tests.support.workers import Later

MODULE = "tests.support.jobs"
Start = Callable[[Worker], threading.Thread]


@pytest.fixture
def queue(one_url: str) -> Iterator[Queue]:
    queue = Queue("work", url=one_url)
    yield queue
    queue.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts workers in threads, and stops them warmly at the end."""
    with ExitStack() as stack:

        def start(worker: Worker) -> threading.Thread:
            thread = threading.Thread(target=worker.run)
            thread.start()

            def end() -> None:
                jobs.gate.set()
                worker.stop()
                thread.join(20)
                assert not thread.is_alive()

            stack.callback(end)
            return thread

        yield start


def worker(queue: Queue, **options: object) -> Worker:
    return Worker([queue], modules=[MODULE], **options)  # type: ignore[arg-type]


def until_finished(*ids: str, queue: Queue) -> None:
    while queue.counts().completed < len(ids):
        pass


def ran_once(ids: list[str], witness: Witness, lease: float) -> None:
    """Each job ran once, and once more only where the machine kept a worker from renewing."""
    seen = [id for id, _ in jobs.seen]
    assert sorted(set(seen)) == ids
    assert len(seen) - len(ids) <= 2 * len(witness.starved(lease))


@pytest.mark.slow
def test_an_outcome_that_waits_to_be_sent_keeps_its_lease(
    queue: Queue, start: Start, witness: Witness
) -> None:
    """The second job blocks the loop for longer than a lease, just when the first has ended."""
    ids = [queue.enqueue(jobs.block_noted, 2.0).id for _ in range(2)]
    start(worker(queue, lease=1, concurrency=4))
    jobs.wait_seen(1)
    start(worker(queue, lease=1, concurrency=4))
    until_finished(*ids, queue=queue)
    ran_once(ids, witness, 1)


@pytest.mark.slow
def test_jobs_of_a_claim_that_was_read_too_late_go_back(
    queue: Queue, start: Start, witness: Witness
) -> None:
    """Two jobs block the loop while the claim of two more is under way: those have passed on."""
    ids = [queue.enqueue(jobs.block_noted, seconds).id for seconds in (2.0, 2.0, 0.0, 0.0)]
    start(worker(queue, lease=1, concurrency=4))
    jobs.wait_seen(1)
    start(worker(queue, lease=1, concurrency=4))
    until_finished(*ids, queue=queue)
    ran_once(ids, witness, 1)


def test_workers_with_one_name_are_still_two(queue: Queue, start: Start) -> None:
    ids = [queue.enqueue(jobs.who).id for _ in range(200)]
    for _ in range(2):
        start(worker(queue, name="mailer", concurrency=2))
    until_finished(*ids, queue=queue)
    assert sorted(note[0] for note in jobs.seen) == ids


def test_a_prefix_of_the_environment_is_everyones(
    one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIDE_PREFIX", "staging")
    queue = Queue("work", url=one_url)
    assert queue.keys["jobs"] == "staging:{work}:jobs"
    job = queue.enqueue(jobs.add, 1)
    assert Worker("work", url=one_url, modules=MODULE).run(burst=True) == 1
    assert job.refresh().state is State.COMPLETED
    queue.close()


def test_queues_that_differ_in_their_server_or_prefix_are_refused(one_url: str) -> None:
    here, staging = Queue("a", url=one_url), Queue("b", url=one_url, prefix="staging")
    with pytest.raises(UsageError, match="prefix"):
        Worker([here, staging])
    with pytest.raises(UsageError, match="url"):
        Worker([here, Queue("b", url="redis://127.0.0.1:1")])
    assert Worker([here, staging], prefix="other")._keys[0].prefix == "other"


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("task", [jobs.see_tenant, jobs.see_tenant_async])
def test_what_one_job_sets_in_its_context_the_next_does_not_see(
    queue: Queue, task: Any, concurrency: int
) -> None:
    """Also where it waited for the slot of one that ended."""
    seen = [queue.enqueue(task, name) for name in "abcdefghij"]
    worker(queue, concurrency=concurrency).run(burst=True)
    assert {job.refresh().result for job in seen} == {"nobody"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "args", "kind"),
    [
        (jobs.nested, (5000,), "bide.PayloadError"),
        (jobs.nested, (800,), None),
        (jobs.raise_unprintable, (), "SyntaxError"),
    ],
)
def test_an_outcome_that_cannot_be_told_well_is_told_somehow(
    queue: Queue, task: Callable[..., object], args: tuple[int, ...], kind: str | None
) -> None:
    job = queue.enqueue(task, *args)
    worker(queue).run(burst=True)
    job.refresh()
    assert job.state in (State.COMPLETED, State.FAILED)
    if kind is not None:
        assert job.error is not None
        assert job.error.type == kind


@pytest.mark.slow
def test_a_job_that_cannot_be_started_waits_a_little_and_the_others_run(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    begin = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("bide-w1") and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    ids = [queue.enqueue(jobs.add, i).id for i in range(4)]
    start(worker(queue, name="w1"))
    until_finished(*ids, queue=queue)
    assert refused
    assert [queue.fetch(id).attempt for id in ids] == [1] * 4


def test_a_broken_run_record_spoils_no_other_outcome(queue: Queue, start: Start) -> None:
    bad, good = queue.enqueue(jobs.wait_and_fail, retry=1), queue.enqueue(jobs.wait_thread)
    start(worker(queue))
    jobs.wait_seen(2)
    raw = queue._client._redis
    line = raw.hget(queue.keys["run"], bad.id)
    assert isinstance(line, bytes)
    raw.hset(queue.keys["run"], bad.id, line[:35] + b"nonsense")
    jobs.gate.set()
    until_finished(good.id, queue=queue)
    while bad.refresh().state is State.ACTIVE:
        pass
    assert bad.error is not None


def test_an_enqueue_succeeds_though_the_queue_cannot_be_made_known(one_url: str) -> None:
    queue = Queue("own", url=one_url)
    raw = queue._client._redis
    raw.set("bide:queues", "not a hash")
    job = queue.enqueue(jobs.add, 1)
    assert job.created
    assert queue.counts().waiting == 1
    queue.close()


def test_a_worker_of_another_version_is_still_listed(one_url: str) -> None:
    client = Client(one_url)
    queue = Queue("x", url=one_url)
    everywhere = keys_of(None)
    now_us = client.run(queue_commands.register_queues(everywhere, ["x"])) or queue.counts().now_us
    queue._client._redis.hset("bide:workers", "odd", f'{now_us} {{"colour": "red"}}')
    (seen,) = client.run(queue_commands.workers(everywhere))
    assert (seen.name, seen.about.host) == ("odd", "?")
    client.close()
    queue.close()


def test_one_suspect_does_not_stop_a_busy_worker_for_long(queue: Queue) -> None:
    """A worker is asked to drain at most once in ten seconds, and only for a suspect overdue."""
    client = Client(queue.url)
    job = queue.enqueue(jobs.add, 1)
    raw = client._redis
    now_us = queue.counts().now_us
    raw.zrem(queue.keys.names["due"][4], job.id)
    raw.zadd(queue.keys.names["due"][DUE_SETS.index("alone")], {job.id: now_us - 11_000_000})
    first = client.run(worker_commands.claim(queue.keys, "w1", 1, 5, 10_000_000, busy=1))
    second = client.run(worker_commands.claim(queue.keys, "w2", 1, 5, 10_000_000, busy=1))
    assert (first.drain, second.drain) == (True, False)
    raw.zadd(queue.keys.names["due"][DUE_SETS.index("alone")], {job.id: now_us - 61_000_000})
    third = client.run(worker_commands.claim(queue.keys, "w3", 1, 5, 10_000_000, busy=1))
    assert [taken.id for taken in third.jobs] == [job.id], "at last it runs beside others"
    assert not third.alone
    client.close()


def test_stop_before_work_is_remembered(queue: Queue) -> None:
    queue.enqueue(jobs.add, 1)
    stopped = worker(queue)
    stopped.stop()
    assert stopped.run() == 0
    stopped.stop()  # and after it has ended it does no harm


@pytest.mark.slow
def test_a_worker_can_work_again(queue: Queue) -> None:
    again = worker(queue, grace=0.01)
    for _ in range(2):
        job = queue.enqueue(jobs.add, 1)
        assert again.run(burst=True) == 1
        assert job.refresh().state is State.COMPLETED


def test_a_stop_at_the_start_of_a_run_does_not_end_the_next(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    grace = 0.3
    again = worker(queue, grace=grace)

    async def stopping(*args: Any) -> None:
        again.stop()
        await asyncio.sleep(0)

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("bide.worker.worker.warn", stopping)
            assert await again.arun() == 0
        running = asyncio.create_task(again.arun(burst=True))
        await asyncio.to_thread(jobs.wait_seen, 1)
        await asyncio.sleep(2 * grace)
        jobs.gate.set()
        assert await running == 1

    job = queue.enqueue(jobs.wait_async)
    asyncio.run(main())
    assert job.refresh().state is State.COMPLETED


def test_a_run_is_not_refused_for_claims_of_an_earlier_one_that_could_not_sign_off(
    queue: Queue, direct: redis.Redis
) -> None:
    again = worker(queue)
    first = again.name
    assert again.run(burst=True) == 0
    assert again.name == first
    direct.hset(queue.keys["claims"], first, f"{queue.counts().now_us} 1000000 ")
    queue.enqueue(jobs.add, 1)
    assert Later(partial(again.run, burst=True)).result(30) == 1
    assert again.name != first


def test_a_worker_that_is_refused_for_long_asks_and_logs_ever_more_seldom(
    queue: Queue,
    direct: redis.Redis,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bide.worker.loop._LONGEST", 0.01)
    overtaken = worker(queue)
    direct.hset(queue.keys["claims"], overtaken.name, f"{queue.counts().now_us} 45 ")
    with caplog.at_level(logging.WARNING, "bide"):
        start(overtaken)
        queue.enqueue(jobs.add, 1).wait(60)
    said = [record for record in caplog.records if "a later claim of this worker" in record.message]
    assert len(said) == 2, "of 44 claims, the first and the 31st"


FORKED = """
import multiprocessing, sys
from bide import Worker

worker = Worker("q", url=sys.argv[1], name="w")

def run():
    worker.run(burst=True)
    print(worker.name, flush=True)

for _ in range(2):
    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
run()
"""


def test_processes_that_share_a_worker_object_run_under_names_of_their_own(one_url: str) -> None:
    """The server would take a claim of the one for a repeat of the other, with the same jobs."""
    command = [sys.executable, "-c", FORKED, one_url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    names = ended.stdout.split()
    assert len({*names}) == 3, names


@pytest.mark.slow
@pytest.mark.parametrize("task", [jobs.deaf, jobs.in_a_thread])
def test_jobs_that_do_not_end_are_left_behind(
    queue: Queue, task: Callable[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    job = queue.enqueue(task)
    stopping = worker(queue)
    thread = threading.Thread(target=stopping.run)
    with caplog.at_level(logging.WARNING, "bide"):
        thread.start()
        jobs.wait_seen(1)
        stopping.stop()
        stopping.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert job.refresh().state is State.WAITING
    assert "releases 1 running job\n" in caplog.text


def test_a_drain_ends_by_itself(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long job keeps the worker busy, a suspect waits for an idle one: others still run."""
    monkeypatch.setattr("bide.worker.loop._DRAIN", 0.3)
    queue.enqueue(jobs.wait_async)
    start(worker(queue, concurrency=10))
    jobs.wait_seen(1)
    suspect = queue.enqueue(jobs.add, 1, delay=60)
    raw = queue._client._redis
    raw.zrem(queue.keys.names["due"][4], suspect.id)
    alone = queue.keys.names["due"][DUE_SETS.index("alone")]
    raw.zadd(alone, {suspect.id: queue.counts().now_us - 11_000_000})
    while not raw.hexists(queue.keys["meta"], "drain_until"):
        queue.enqueue(jobs.add, 2)
    ran = queue.enqueue(jobs.add, 3)
    while ran.refresh().state is not State.COMPLETED:
        pass


def test_a_job_that_times_out_before_its_first_step_ends(queue: Queue, start: Start) -> None:
    ids = [queue.enqueue(jobs.hang, timeout=1e-6).id for _ in range(100)]
    worker(queue).run(burst=True)
    assert [queue.fetch(id).state for id in ids] == [State.FAILED] * 100


def test_a_record_with_an_impossible_due_time_is_taken_as_unknown(queue: Queue) -> None:
    client = Client(queue.url)
    job = queue.enqueue(jobs.add, 1)
    client.run(worker_commands.claim(queue.keys, "dead", 1, 1, 10_000_000, 0))
    raw = client._redis
    line = raw.hget(queue.keys["run"], job.id)
    assert isinstance(line, bytes)
    raw.hset(queue.keys["run"], job.id, line.rpartition(b" ")[0] + b" nan")
    raw.zadd(queue.keys["active"], {job.id: 1})
    assert worker(queue).run(burst=True) == 1
    assert job.refresh().state is State.COMPLETED
    client.close()


def test_a_wakeup_that_is_not_text_makes_nobody_deaf(
    queue: Queue, start: Start, witness: Witness
) -> None:
    start(worker(queue))
    raw = queue._client._redis
    queue.enqueue(jobs.add, 1)
    jobs.wait_seen(1)
    raw.lpush(queue.keys["wake"], b"\xff\xfe")
    while raw.llen(queue.keys["wake"]):
        pass
    for n in range(2, 6):
        job = queue.enqueue(jobs.add, n)
        jobs.wait_seen(n)
        assert witness.lateness(job.refresh()) < 1.0, "it waited for a timer instead of a message"


def test_one_broken_queue_leaves_the_others_alone(
    one_url: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Queue("bad", url=one_url), Queue("good", url=one_url)
    bad._client._redis.set(bad.keys["active"], "not a sorted set")
    with caplog.at_level(logging.WARNING, "bide"):
        start(Worker([bad, good], modules=[MODULE]))
        for n in range(50):
            good.enqueue(jobs.add, n)
        jobs.wait_seen(50)
    said = [record for record in caplog.records if "queue bad" in record.message]
    assert len(said) == 1
    bad._client._redis.delete(bad.keys["active"])
    bad.close()
    good.close()
