"""A Timer is seen while it is alive: by `rq info`, `bide health` and `bide doctor`."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import rq

import bide.contrib.rq.timer
from bide.contrib.rq import DelayQueue, Timer
from bide.contrib.rq_sets import look
from bide.embedded import Server
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import at_work, burst, like_rq, run, server_now
from tests.support.console import bide as command
from tests.support.console import said
from tests.support.eventually import eventually


def records(connection: redis.Redis) -> list[bytes]:
    """The keys of the Timers' records."""
    found: Any = connection.smembers("rq:workers:delay_gate")
    return sorted(key for key in found if connection.exists(key))


def alive(connection: redis.Redis, count: int) -> Callable[[], bool]:
    return lambda: len(records(connection)) == count


def overdue(queue: DelayQueue, count: int = 3) -> None:
    for _ in range(count):
        queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), 1)


def checks(home: Path, url: str, code: int = 0) -> list[dict[str, str]]:
    report = json.loads(said(command(home, "doctor", "--json", url=url), code))
    return [check for check in report["checks"] if check["check"] == "rq timer"]


def test_a_timer_at_work_is_among_rqs_workers_until_it_stops(
    one_queue: DelayQueue, one_url: str
) -> None:
    connection = one_queue.connection
    with at_work(one_queue, name="clerk"), at_work(one_queue, "low", name="clerk"):
        eventually(alive(connection, 2))
        for key in records(connection):
            assert 0 < connection.ttl(key) <= 30
        first, _ = rq.Worker.all(connection=connection)
        assert first.name.startswith("clerk.")
        assert first.pid == os.getpid()
        assert first.queue_names() == ["delay_gate"]
        assert first.last_heartbeat is not None
        assert rq.Worker.count(queue=one_queue) == 0  # none of these runs its jobs
        info = subprocess.run(
            [sys.executable, "-m", "rq.cli", "info", "--raw", "-u", one_url],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert info.stdout.count("worker clerk.") == 2
    assert records(connection) == []
    assert connection.smembers("rq:workers") == set()


def test_it_beats_again_and_what_was_lost_is_written_again(
    queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bide.contrib.rq.timer, "HEARTBEAT_EVERY", 0.05)
    connection = queue.connection
    with at_work(queue):
        eventually(alive(connection, 1))
        (key,) = records(connection)
        first = connection.hget(key, "last_heartbeat")
        eventually(lambda: connection.hget(key, "last_heartbeat") != first)
        connection.flushall()
        eventually(lambda: records(connection) == [key])
        (worker,) = rq.Worker.all(connection=connection)
        assert worker.birth_date is not None


def test_what_timers_left_that_died_is_cleared_away(queue: DelayQueue) -> None:
    queue.connection.sadd("rq:workers", "rq:worker:dead")
    queue.connection.sadd("rq:workers:delay_gate", "rq:worker:dead")
    with at_work(queue):
        eventually(alive(queue.connection, 1))
        members: Any = queue.connection.smembers("rq:workers:delay_gate")
        assert members == queue.connection.smembers("rq:workers") == set(records(queue.connection))


def test_a_timer_that_may_not_write_its_record_moves_all_the_same(
    one_queue: DelayQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bide.contrib.rq.timer, "HEARTBEAT_EVERY", 0.01)
    connection = one_queue.connection
    kept = ("rq:queue*", "rq:delay*", "rq:job*", "rq:scheduled*")
    connection.acl_setuser(
        "poor", enabled=True, nopass=True, keys=kept, channels=["*"], commands=["+@all"]
    )
    path = connection.connection_pool.connection_kwargs["path"]
    timer = Timer(
        "mail", connection=redis.Redis(unix_socket_path=path, username="poor", password="x")
    )
    thread = threading.Thread(target=timer.work)
    with caplog.at_level(logging.WARNING, "bide.rq"):
        thread.start()
        for number in range(3):
            job = one_queue.enqueue(jobs.add, number, delay=0.02)
            eventually(lambda: job.id in one_queue.job_ids)  # noqa: B023
        timer.stop()
        thread.join(20)
    assert len([text for text in caplog.messages if "cannot write its heartbeat" in text]) == 1
    connection.acl_deluser("poor")


def test_health_says_what_is_overdue_and_that_no_timer_is_alive(
    one_queue: DelayQueue, one_url: str, tmp_path: Path
) -> None:
    later = one_queue.enqueue(jobs.add, 1, delay=3600)
    health = ("health",)
    assert said(command(tmp_path, *health, url=one_url)).startswith("ok: ")
    overdue(one_queue)
    shown = said(command(tmp_path, *health, url=one_url), 1)
    assert shown == "3 jobs overdue in rq:delay_queue:mail, no timer alive.\n"
    report = json.loads(said(command(tmp_path, *health, "--json", url=one_url), 1))
    assert report["problems"] == [shown.strip()]
    rqs = report["rq"]["rq:delay_queue:mail"]
    assert (rqs["overdue"], rqs["waiting"], rqs["timers"]) == (3, 1, 0)
    assert rqs["lateness"] > 3600
    with at_work(one_queue):
        eventually(lambda: one_queue.count == 3)
        eventually(alive(one_queue.connection, 1))
        assert said(command(tmp_path, *health, url=one_url)).startswith("ok: ")
        report = json.loads(said(command(tmp_path, *health, "--json", url=one_url)))
        assert report["rq"]["rq:delay_queue:mail"]["timers"] == 1
    assert one_queue.delayed_jobs() == [later]


def test_health_of_named_queues_is_of_bides_queues(
    one_queue: DelayQueue, one_url: str, tmp_path: Path
) -> None:
    overdue(one_queue)
    shown = said(command(tmp_path, "health", "-q", "mail", url=one_url), 1)
    assert shown == "mail: no live worker serves it and it has never been used.\n"


def test_a_timer_that_has_died_is_not_alive(
    one_queue: DelayQueue, one_url: str, tmp_path: Path
) -> None:
    connection = one_queue.connection
    connection.sadd("rq:workers:delay_gate", "rq:worker:dead")  # its record has expired
    connection.sadd("rq:workers:delay_gate", "rq:worker:odd", "rq:worker:list")
    connection.hset("rq:worker:odd", "delay_sets", "[1]")  # another program's
    connection.hset("rq:worker:list", "delay_sets", "\x00")
    overdue(one_queue, 1)
    shown = said(command(tmp_path, "health", url=one_url), 1)
    assert shown == "1 job overdue in rq:delay_queue:mail, no timer alive.\n"


@pytest.mark.parametrize("registered", ["by the queue", "by the timer"])
def test_a_set_of_another_key_is_seen_too(
    one_queue: DelayQueue, one_url: str, tmp_path: Path, registered: str
) -> None:
    connection = one_queue.connection
    one_queue.delay_key = "shop:later"
    if registered == "by the queue":
        overdue(one_queue)
    else:
        with at_work(one_queue):
            eventually(alive(connection, 1))
            assert [each.key for each in look(connection)] == ["shop:later"]
        connection.zadd("shop:later", {"a": 1, "b": 2, "c": 3})  # as delay-rq does
    shown = said(command(tmp_path, "health", url=one_url), 1)
    assert shown == "3 jobs overdue in shop:later, no timer alive.\n"
    with at_work(one_queue):
        eventually(alive(connection, 1))
        eventually(lambda: not connection.exists("shop:later"))
        said(command(tmp_path, "health", url=one_url))


def test_a_dependent_on_a_set_of_another_key_is_seen(one_queue: DelayQueue) -> None:
    one_queue.delay_key = "shop:later"
    parent = one_queue.enqueue(jobs.add, 1)
    one_queue.enqueue(jobs.add, 1, delay=1, depends_on=parent)
    assert one_queue.connection.smembers("rq:delay_queues") == {b"shop:later"}


def test_jobs_at_the_gate_need_a_timer_too(
    one_queue: DelayQueue, one_url: str, tmp_path: Path
) -> None:
    parent = one_queue.enqueue(jobs.add, 1)
    one_queue.enqueue(jobs.add, 1, delay=3600, depends_on=parent)
    said(command(tmp_path, "health", url=one_url))
    run(one_queue)
    shown = said(command(tmp_path, "health", url=one_url), 1)
    assert shown == "1 job overdue in rq:queue:delay_gate, no timer alive.\n"
    burst(one_queue)
    said(command(tmp_path, "health", url=one_url))


def test_health_says_what_is_too_late_though_a_timer_is_alive(
    one_queue: DelayQueue, one_url: str, tmp_path: Path
) -> None:
    """What the Timer leaves there is no delayed job, and is late for nobody."""
    connection = one_queue.connection
    other = rq.Queue("other", connection)
    made = other.create_job(jobs.add, (1,))
    made.save()
    connection.zadd(one_queue.delay_key, {made.id: 1})
    with at_work(one_queue):
        eventually(alive(connection, 1))
        eventually(lambda: look(connection)[0].timers == 1)
    connection.hset(*record_of(one_queue, {one_queue.delay_key: [1, 1]}))
    limit = ("--max-lateness", "1m")
    assert said(command(tmp_path, "health", *limit, url=one_url)).startswith("ok: ")
    connection.zadd(one_queue.delay_key, {"late": server_now(connection) - 90})
    assert "ok: " in said(command(tmp_path, "health", url=one_url))
    shown = said(command(tmp_path, "health", *limit, url=one_url), 1)
    assert shown.startswith("rq:delay_queue:mail: a job is overdue by 9")


def record_of(queue: DelayQueue, sets: dict[str, list[int]]) -> tuple[str, str, str]:
    """A Timer is alive that has just written this."""
    queue.connection.sadd("rq:workers:delay_gate", "rq:worker:alive")
    return "rq:worker:alive", "delay_sets", json.dumps(sets)


def test_jobs_of_a_queue_whose_timer_has_died_are_late_in_a_shared_set(
    one_connection: redis.Redis, one_url: str, tmp_path: Path
) -> None:
    mail, low = (DelayQueue(name, one_connection) for name in ("mail", "low"))
    mail.delay_key = low.delay_key = "shop:later"
    overdue(low)
    with at_work(mail) as timer:
        eventually(lambda: timer._movers[0].left.staying == 3)
        timer._presence.due = 0.0
        timer._look()
        eventually(lambda: timer._presence.due > 0)
        (seen,) = look(one_connection)
        assert (seen.overdue, seen.timers, seen.left) == (3, 1, 0)
        health = command(tmp_path, "health", "--max-lateness", "1m", url=one_url)
        assert "shop:later: a job is overdue by" in said(health, 1)
        assert [check["verdict"] for check in checks(tmp_path, one_url)] == ["warn"]


def test_doctor_says_how_it_stands_with_each_set(
    one_queue: DelayQueue, one_url: str, tmp_path: Path
) -> None:
    connection, key = one_queue.connection, one_queue.delay_key
    assert checks(tmp_path, one_url) == []
    one_queue.enqueue(jobs.add, 1, delay=3600)
    (check,) = checks(tmp_path, one_url)
    assert (check["verdict"], check["says"]) == ("warn", f"1 job in {key}, no timer alive")
    assert check["fix"] == "Start one: bide rq-timer mail."
    overdue(one_queue)
    (check,) = checks(tmp_path, one_url, 1)
    assert (check["verdict"], check["says"]) == ("fail", f"3 jobs overdue in {key}, no timer alive")
    connection.hset(*record_of(one_queue, {key: [0, 0]}))
    (check,) = checks(tmp_path, one_url)
    assert check["verdict"] == "warn"
    assert check["says"] == f"3 jobs overdue by more than 1s in {key}, timers: 1 alive"
    connection.hset(*record_of(one_queue, {key: [3, 2]}))
    well, strange = checks(tmp_path, one_url)
    assert (well["verdict"], well["says"]) == ("ok", f"4 jobs in {key}, timers: 1 alive")
    assert strange["verdict"] == "warn"
    assert strange["says"] == f"2 members of {key} stay: they are no delayed jobs of its queue"


def test_a_timer_says_how_many_members_it_leaves(
    queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bide.contrib.rq.timer, "HEARTBEAT_EVERY", 0.05)
    connection = queue.connection
    other = rq.Queue("other", connection)
    for number in range(2):
        job = other.create_job(jobs.add, (number,))
        job.save()
        connection.zadd(queue.delay_key, {job.id: 1})
    connection.zadd(queue.delay_key, {"unsaved": server_now(connection)})
    with at_work(queue):
        eventually(lambda: [(each.left, each.strange) for each in look(connection)] == [(3, 2)])


def test_a_key_that_another_program_uses_is_passed_over(one_queue: DelayQueue) -> None:
    rq.Queue("bad", one_queue.connection).enqueue(jobs.add, 1)
    one_queue.connection.set("rq:delay_queue:bad", "no set")
    one_queue.enqueue(jobs.add, 1, delay=60)
    assert [each.key for each in look(one_queue.connection)] == ["rq:delay_queue:mail"]


@pytest.mark.parametrize("key", ["rq:queues", "rq:delay_queues", "rq:worker:odd"])
def test_what_another_program_wrote_hides_no_job_that_is_overdue(
    one_queue: DelayQueue, one_url: str, tmp_path: Path, key: str
) -> None:
    overdue(one_queue)
    connection = one_queue.connection
    connection.sadd("rq:workers:delay_gate", "rq:worker:odd", "rq:worker:odder")
    for numbers in ([1], [-1, 0], [1e400, 0], ["1", 0], 1):
        record = json.dumps({one_queue.delay_key: numbers})
        connection.hset("rq:worker:odder", "delay_sets", record)
        assert [(each.overdue, each.timers) for each in look(connection)] == [(3, 0)]
    connection.sadd("rq:delay_queues", one_queue.delay_key)
    connection.set(key, "of another program")
    assert [(each.overdue, each.timers) for each in look(connection)] == [(3, 0)]
    assert "3 jobs overdue" in said(command(tmp_path, "health", url=one_url), 1)
    assert checks(tmp_path, one_url, 1)[0]["verdict"] == "fail"


def test_without_the_right_to_look_health_says_nothing_and_doctor_that(
    tmp_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = tmp_server()
    with like_rq(server.url) as connection:
        overdue(DelayQueue("mail", connection))
        connection.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~bide:*", "&*", "+@all")
    url = server.url.replace("unix://", "unix://poor:pw@")
    assert said(command(tmp_path, "health", url=url)).startswith("ok: ")
    (check,) = checks(tmp_path, url)
    assert (check["verdict"], "denied" in check["says"]) == ("note", True)


@pytest.mark.slow
def test_health_and_doctor_look_without_rq(
    one_queue: DelayQueue, one_url: str, tmp_path: Path
) -> None:
    overdue(one_queue)
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['rq'] = None\n")
    for words in (["health"], ["doctor"]):
        done = command(tmp_path, *words, url=one_url, PYTHONPATH=str(tmp_path))
        assert "3 jobs overdue in rq:delay_queue:mail, no timer alive" in said(done, 1)
