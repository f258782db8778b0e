"""A Timer moves each job once, never early, and does nothing while nothing is due."""

from __future__ import annotations

import gc
import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
import redis
import rq
from rq.job import Job
from rq.utils import utcformat

import bide
import bide.contrib.rq.timer
from bide.contrib.rq import DelayQueue, Timer
from bide.contrib.rq.queue import RqKeys, load
from bide.contrib.rq.timer import Mover
from bide.embedded import Server
from bide.errors import BideError, ServerRefused, ServerUnavailable, UsageError
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import at_work, burst, due, hearing, like_rq, run, server_now
from tests.support.eventually import eventually


def calls(connection: redis.Redis) -> int:
    """Scripts the server has run."""
    stats: dict[str, Any] = connection.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))


@pytest.mark.slow
def test_no_job_is_moved_early_or_twice_by_many_timers(queue: DelayQueue) -> None:
    lots = random.Random(7)
    made: list[str] = []
    dues: dict[str, float] = {}
    with at_work(queue), at_work(queue), at_work(queue):
        for _ in range(300):
            job = queue.enqueue(jobs.add, 1, delay=lots.uniform(0.0001, 0.5))
            made.append(job.id)
            if (score := due(queue, job)) is not None:
                dues[job.id] = score
        eventually(lambda: queue.count == len(made))
    assert sorted(queue.job_ids) == sorted(made)
    assert len(dues) > 100
    at = {}
    for one in Job.fetch_many(queue.job_ids, queue.connection):
        assert one is not None
        assert one.enqueued_at is not None
        at[one.id] = one.enqueued_at.timestamp()
    assert not [id for id, score in dues.items() if at[id] < score]
    assert list(at) == sorted(at, key=lambda id: at[id])
    run(queue)
    assert {len(job.results()) for job in Job.fetch_many(made, queue.connection) if job} == {1}


def test_due_order_holds_within_a_move(queue: DelayQueue) -> None:
    order = [queue.create_job(jobs.add, args=(i,)) for i in range(250)]
    for i, job in enumerate(order):
        queue.enqueue_delay_job(job, 1000 + i / 1000)
    assert burst(queue) == 250
    assert queue.job_ids == [job.id for job in order]


def test_enqueued_at_is_the_servers_time_in_rqs_form(one_connection: redis.Redis) -> None:
    source, _ = load("move")
    start = source.index("local function moment")
    moment = source[start : source.index("\nend\n", start) + 5]
    days = [datetime(y, m, 1, tzinfo=UTC) for y in range(1970, 2200) for m in (1, 3, 12)]
    days += [datetime(2000, 2, 29, 23, 59, 59, tzinfo=UTC), datetime(2100, 2, 28, tzinfo=UTC)]
    lots = random.Random(3)
    days += [datetime.fromtimestamp(lots.randrange(7_000_000_000), UTC) for _ in range(3000)]
    moments = [day.replace(microsecond=lots.randrange(1_000_000)) for day in days]
    arguments = [
        int(at.replace(microsecond=0).timestamp()) * 10**6 + at.microsecond for at in moments
    ]
    script = f"{moment} for i, us in ipairs(ARGV) do ARGV[i] = moment(us) end return ARGV"
    said = one_connection.eval(script, 0, *arguments)
    assert [text.decode() for text in said] == [utcformat(at) for at in moments]


def test_nothing_is_asked_while_nothing_is_due(queue: DelayQueue) -> None:
    """Between two moves, a second apart, stand the calls of the moves themselves."""
    first = queue.enqueue(jobs.add, 1, delay=0.3)
    second = queue.enqueue(jobs.add, 1, delay=1.3)
    with at_work(queue):
        eventually(lambda: first.id in queue.job_ids)
        before = calls(queue.connection)
        eventually(lambda: second.id in queue.job_ids)
        assert calls(queue.connection) - before <= 2


def test_an_enqueue_that_is_not_the_earliest_wakes_nobody(queue: DelayQueue) -> None:
    queue.enqueue(jobs.add, 1, delay=3600)
    asleep = calls(queue.connection) + 3  # it looks when it starts, when it hears, and at the gate
    pubsub: Any = queue.connection.pubsub
    with at_work(queue), pubsub() as listener:
        listener.subscribe("rq:delay_hint:mail")
        eventually(lambda: calls(queue.connection) == asleep)
        before = asleep
        for _ in range(20):
            queue.enqueue(jobs.add, 1, delay=7200)
        soon = queue.enqueue(jobs.add, 1, delay=60)
        eventually(lambda: calls(queue.connection) >= before + 21)
        heard = list(iter(partial(listener.get_message, timeout=0.5), None))
        said = [float(one["data"]) for one in heard if one["type"] == "message"]
        assert said == [due(queue, soon)]
        assert calls(queue.connection) == before + 21  # the enqueues alone


@pytest.mark.usefixtures("no_looks")
def test_a_job_that_becomes_the_earliest_is_on_time(queue: DelayQueue) -> None:
    queue.enqueue(jobs.add, 1, delay=3600)
    with at_work(queue), at_work(queue):
        job = queue.enqueue(jobs.add, 1, delay=0.05)
        eventually(lambda: queue.job_ids == [job.id])


@pytest.mark.usefixtures("no_looks")
def test_a_job_that_is_rescheduled_to_be_the_earliest_is_on_time(queue: DelayQueue) -> None:
    queue.enqueue(jobs.add, 1, delay=3600)
    job = queue.enqueue(jobs.add, 1, delay=7200)
    with at_work(queue):
        assert queue.reschedule(job, "50ms")
        eventually(lambda: queue.job_ids == [job.id])


def test_a_lost_wakeup_costs_a_bounded_wait(
    queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bide.contrib.rq.timer, "LONGEST_SLEEP", 0.2)
    job = queue.enqueue(jobs.add, 1, delay=3600)
    with at_work(queue):
        queue.connection.zadd(queue.delay_key, {job.id: 0})  # and no message
        eventually(lambda: queue.job_ids == [job.id])


@pytest.mark.usefixtures("no_looks")
def test_wakeups_that_were_lost_with_their_connection_are_made_good(queue: DelayQueue) -> None:
    job = queue.enqueue(jobs.add, 1, delay=3600)
    with at_work(queue):
        queue.connection.zadd(queue.delay_key, {job.id: 0})  # and no message
        queue.connection.client_kill_filter(_type="pubsub")
        eventually(lambda: queue.job_ids == [job.id])
        eventually(lambda: hearing(queue) == 1)


def test_one_timer_moves_for_several_queues(connection: redis.Redis) -> None:
    queues = [DelayQueue(name, connection) for name in ("a", "b", "c")]
    made = [queue.enqueue(jobs.add, 1, delay=0.02) for queue in queues]
    with at_work(queues[0], "b", rq.Queue("c", connection), "c"):
        eventually(lambda: [queue.job_ids for queue in queues] == [[job.id] for job in made])


def test_a_burst_moves_what_is_due_and_ends(queue: DelayQueue) -> None:
    for ts in range(1, 251):
        queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), ts)
    later = queue.enqueue(jobs.add, 1, delay=3600)
    assert burst("mail", connection=queue.connection) == 250
    assert queue.count == 250
    assert queue.delayed_jobs() == [later]


def test_a_server_that_forgets_its_scripts_is_told_again(queue: DelayQueue) -> None:
    with at_work(queue):
        queue.connection.script_flush()
        job = queue.enqueue(jobs.add, 1, delay=0.01)
        queue.connection.script_flush()
        eventually(lambda: queue.job_ids == [job.id])


def test_nothing_of_it_is_left_when_it_stops(queue: DelayQueue) -> None:
    threads = threading.active_count()
    clients = len(queue.connection.client_list())
    with at_work(queue) as timer:
        assert threading.active_count() > threads
        queue.enqueue(jobs.add, 1, delay=0.01)
        eventually(lambda: queue.count == 1)
    assert threading.active_count() == threads
    eventually(lambda: len(queue.connection.client_list()) == clients)
    with at_work(queue):  # and others may come
        pass
    timer.stop()
    assert timer.work() == 0


def test_a_full_server_refuses_new_jobs_whole_and_moves_the_old(
    tmp_server: Callable[..., Server],
) -> None:
    with like_rq(tmp_server().url) as connection:
        queue = DelayQueue("mail", connection)
        parent = queue.enqueue(jobs.add, 1)
        due_job = queue.enqueue(jobs.add, 1, delay="1us")
        gated = queue.enqueue(jobs.add, 1, delay="1us", depends_on=parent)
        other = queue.enqueue(jobs.add, 1, delay=3600)
        run(queue)
        before = set(connection.keys())
        connection.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            queue.enqueue(jobs.add, 1, delay=60)
        assert set(connection.keys()) == before
        assert burst(queue) == 2
        assert queue.cancel_delayed(other)
        assert sorted(queue.job_ids) == sorted([due_job.id, gated.id])


def test_a_queue_that_cannot_be_moved_does_not_hold_up_others(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = DelayQueue("bad", connection), DelayQueue("good", connection)
    kept = bad.enqueue_delay_job(bad.create_job(jobs.add, args=(1,)), 1)
    connection.set(bad.key, "not a list")
    with pytest.raises(ServerRefused, match="rq:queue:bad is a string, not a list"):
        burst(bad)
    with at_work(good, bad), caplog.at_level(logging.WARNING, "bide.rq"):
        job = good.enqueue(jobs.add, 1, delay=0.01)
        eventually(lambda: good.job_ids == [job.id])
        assert bad.delayed_jobs() == [kept]
        assert any("cannot move jobs of bad (WRONGTYPE" in text for text in caplog.messages)
        assert any("rq:queue:bad: delete that key" in text for text in caplog.messages)
        connection.delete(bad.key)
        eventually(lambda: bad.job_ids == [kept.id])
    connection.set("rq:delay_queue:worse", "no set")
    with pytest.raises(redis.ResponseError, match="not a sorted set"):
        DelayQueue("worse", connection).enqueue(jobs.add, 1, delay=1, job_id="lost")
    assert not connection.exists("rq:job:lost")


def test_a_wakeup_does_not_cut_short_the_pause_after_a_failure(queue: DelayQueue) -> None:
    mover = Mover(RqKeys.of(queue))
    mover.failed()
    until = mover.due
    assert until > time.monotonic()
    mover.hear(0.0)
    assert mover.due == until
    mover.look()
    assert mover.due == 0.0


def test_a_server_that_goes_away_is_waited_for(tmp_server: Callable[..., Server]) -> None:
    server = tmp_server(persist=True)
    with like_rq(server.url) as connection:
        queue = DelayQueue("mail", connection)
        before = queue.enqueue(jobs.add, 1, delay=0.3)
        with at_work(queue):
            server.kill()
            server.restart()
            eventually(lambda: queue.job_ids == [before.id])
            eventually(lambda: hearing(queue) == 1)
            parent = queue.enqueue(jobs.add, 1)
            job = queue.enqueue(jobs.add, 1, delay=0.01, depends_on=parent)
            run(queue)  # which may still be looking when the other is moved
            eventually(lambda: queue.job_ids == [job.id] or job.is_finished)


def test_its_connections_are_closed_when_it_has_ended(tmp_server: Callable[..., Server]) -> None:
    """Over TCP, where a connection stands in a cycle that only the garbage collector frees."""
    with redis.Redis.from_url(tmp_server(tcp=True).url) as connection:
        queue = DelayQueue("mail", connection)
        gc.disable()
        try:
            for _ in range(3):
                burst(queue)
            eventually(lambda: connection.info("clients")["connected_clients"] == 1)
        finally:
            gc.enable()


@pytest.mark.parametrize("doing", [{}, {"burst": True}])
def test_a_server_that_is_not_there_is_an_error_of_one_sentence(doing: dict[str, bool]) -> None:
    gone = redis.Redis(host="127.0.0.1", port=1, password="secret")
    with pytest.raises(
        ServerUnavailable, match=r"^Cannot reach the server at 127.0.0.1:1 "
    ) as said:
        Timer("mail", connection=gone).work(**doing)
    assert "secret" not in str(said.value)


def test_a_user_without_permissions_is_an_error_of_one_sentence(
    one_connection: redis.Redis,
) -> None:
    one_connection.acl_setuser("nobody", enabled=True, nopass=True, keys=["*"], commands=["+ping"])
    options = one_connection.connection_pool.connection_kwargs
    path = options["path"]
    poor = redis.Redis(unix_socket_path=path, username="nobody", password="x")
    with pytest.raises(
        BideError, match=r"refuses access \(.* check the user and its permissions\.$"
    ):
        Timer("mail", connection=poor).work(burst=True)
    one_connection.acl_deluser("nobody")


@pytest.mark.parametrize("permission", ["HMGET", "HSET", "RPUSH", "~rq:job:", "registry"])
def test_what_a_timer_may_not_move_stays_where_it_is(
    one_connection: redis.Redis, permission: str
) -> None:
    """A permission is missing, or a key is not what it should be: no job is lost on the way."""
    queue = DelayQueue("mail", one_connection)
    due = [queue.enqueue_delay_job(queue.create_job(jobs.add, args=(n,)), n + 1) for n in range(3)]
    before = {job.id: one_connection.hgetall(job.key) for job in due}
    keys = ["*"] if permission != "~rq:job:" else ["rq:queue*", "rq:delay*", "rq:sched*"]
    minus = [f"-{permission.lower()}"] if permission.isupper() else []
    one_connection.acl_setuser(
        "poor", enabled=True, nopass=True, keys=keys, channels=["*"], commands=["+@all", *minus]
    )
    if permission == "registry":
        one_connection.set("rq:scheduled:mail", "not a set")
    path = one_connection.connection_pool.connection_kwargs["path"]
    poor = redis.Redis(unix_socket_path=path, username="poor", password="x")
    with pytest.raises(BideError):
        Timer("mail", connection=poor).work(burst=True)
    assert [job.id for job in queue.delayed_jobs()] == [job.id for job in due]
    assert {job.id: one_connection.hgetall(job.key) for job in due} == before
    assert one_connection.llen(queue.key) == 0
    one_connection.acl_deluser("poor")
    one_connection.delete("rq:scheduled:mail")
    assert burst(queue) == 3


def test_an_id_that_is_no_text_stops_no_timer(queue: DelayQueue) -> None:
    queue.connection.zadd(queue.delay_key, {b"\xff\xfe": 1})
    job = queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), 2)
    assert burst(queue) == 1
    assert queue.job_ids == [job.id]


def test_the_gates_name_is_no_queues(connection: redis.Redis) -> None:
    with pytest.raises(UsageError, match="'delay_gate' is reserved for delayed jobs"):
        DelayQueue("delay_gate", connection).enqueue(jobs.add, 1, delay=1)
    with pytest.raises(UsageError, match="'delay_gate' is reserved for delayed jobs"):
        Timer("delay_gate", connection=connection)


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        ([], "at least one queue"),
        ("mail", "give connection="),
        ([7], "rq.Queue or a name, not int"),
    ],
)
def test_what_a_timer_cannot_serve_is_refused(queues: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Timer(queues)


@pytest.mark.slow
def test_a_cluster_is_refused_in_one_sentence(tmp_server: Callable[..., Server]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        bus = str(free.getsockname()[1])
    server = tmp_server(tcp=True, extra=("--cluster-enabled", "yes", "--cluster-port", bus))
    with like_rq(server.url) as connection:
        connection.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: connection.cluster("info")["cluster_state"] == "ok")
        with redis.RedisCluster.from_url(server.url) as cluster:
            for make in (DelayQueue, lambda name, to: Timer(name, connection=to)):
                with pytest.raises(UsageError, match=r"^RQ's keys have no hash tag, .*cluster"):
                    make("mail", cluster)
        queue = DelayQueue("mail", connection)
        with pytest.raises(UsageError, match="this connection is to a cluster"):
            queue.enqueue(jobs.add, 1, delay=60)
        with pytest.raises(UsageError, match="this connection is to a cluster"):
            Timer(queue).work()
        assert connection.dbsize() == 0


def test_the_servers_clock_is_asked_and_not_ours(
    queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    before = server_now(queue.connection)
    job = queue.enqueue(jobs.add, 1, delay=0.05)
    assert (due(queue, job) or 0) >= before + 0.05
    with at_work(queue):
        eventually(lambda: queue.job_ids == [job.id])


def test_queues_of_two_servers_need_two_timers(one_connection: redis.Redis) -> None:
    there = redis.Redis(port=1)
    mine = [DelayQueue(name, one_connection) for name in ("mail", "low")]
    assert Timer(mine).name
    with pytest.raises(UsageError, match="The queues are on different servers"):
        Timer([*mine, DelayQueue("far", there)])


def test_what_is_no_queue_and_what_is_no_client(one_connection: redis.Redis) -> None:
    with pytest.raises(UsageError, match=r"not DelayQueue of bide, which needs no Timer"):
        Timer([bide.DelayQueue("mail")])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="connection must be a client"):
        DelayQueue("mail", "redis://127.0.0.1:1")


def test_a_connection_that_decodes_replies(one_connection: redis.Redis) -> None:
    options = one_connection.connection_pool.connection_kwargs
    decodes = redis.Redis(unix_socket_path=options["path"], decode_responses=True)
    one_connection.zadd("rq:delay_queue:mail", {"nobody": 1})
    assert Timer(DelayQueue("mail", decodes)).work(burst=True) == 0
    assert not one_connection.exists("rq:delay_queue:mail")


def test_a_task_of_bide_is_no_function_of_rq(one_connection: redis.Redis) -> None:
    task = bide.Queue("mail").task(jobs.add)
    queue = DelayQueue("mail", one_connection)
    with pytest.raises(UsageError, match="is a task of bide, and RQ runs plain functions"):
        queue.enqueue(task, 1, delay="1s")
    with pytest.raises(UsageError, match="is a task of bide"):
        queue.enqueue_call(task, (1,))


def test_a_delay_in_the_place_of_a_moment_is_logged(
    one_connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    queue = DelayQueue("mail", one_connection)
    queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), 60)
    assert "got ts=60, a moment before 1974" in caplog.text
    caplog.clear()
    queue.enqueue_delay_job(queue.create_job(jobs.add, args=(1,)), time.time() + 60)
    assert caplog.text == ""
