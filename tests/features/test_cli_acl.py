"""What `bide acl` prints is enough for its role, and no more."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import AccessDenied, BideError, DelayQueue, Queue, Retention, State, Worker
from bide.cli.server import quoted
from bide.client.acl import rules
from bide.protocol.keys import keys_of
from bide.protocol.scripts import load, names
from tests.support import jobs
from tests.support.console import bide, error_of, said
from tests.support.users import as_role
from tests.support.workers import eventually, listeners

MODULES = ("tests.support.jobs",)
As = Callable[[str], str]


def inline(url: str, line: str) -> bytes:
    """Have a server read a line as it reads one that is typed."""
    with redis.Redis.from_url(url) as client:
        options = client.connection_pool.connection_kwargs
    with socket.socket(socket.AF_UNIX) as to:
        to.connect(options["path"])
        to.sendall(line.encode() + b"\r\n")
        return to.recv(1000)


@pytest.fixture
def as_user(url: str, home: Path, raw: redis.Redis) -> Iterator[As]:
    """The URL of a role's user, made of what is printed, for the queues `work` and `orders`."""
    printed = said(bide(home, "acl", "-q", "work", "-q", "orders"))
    for line in printed.splitlines():
        assert inline(url, line) == b"+OK\r\n"
    names = [line.split()[2] for line in printed.splitlines()]
    assert names == ["bide-worker", "bide-producer", "bide-operator", "bide-viewer"]
    for name in names:
        assert inline(url, f"ACL SETUSER {name} >secret") == b"+OK\r\n"
    for line in printed.splitlines():  # once more: a password stays
        assert inline(url, line) == b"+OK\r\n"
    mark = "&" if "?" in url else "?"
    yield lambda role: f"{url}{mark}username=bide-{role}&password=secret"
    for name in names:
        raw.acl_deluser(name)


@contextlib.contextmanager
def at_work(url: str, seeing: Queue) -> Iterator[None]:
    """A worker at work, once it hears whom it is to cancel; `seeing` may ask who listens."""
    worker = Worker("work", url=url, modules=MODULES, lease=5)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        eventually(lambda: listeners(seeing, "asked"))
        yield
    finally:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.slow
def test_what_several_servers_ask_for_is_told_by_the_url(home: Path) -> None:
    plain = said(bide(home, "acl", "worker", url="redis://127.0.0.1:1"))
    assert "+role" not in plain
    assert "+asking" not in plain
    assert "+waitaof" not in plain
    many = said(bide(home, "acl", "worker", url="redis+cluster://127.0.0.1:1"))
    assert "+asking" in many
    assert "+cluster|slots" in many
    watched = said(bide(home, "acl", "worker", url="redis+sentinel://127.0.0.1:1/main"))
    assert "+role" in watched
    assert "+waitaof" in said(bide(home, "acl", "producer", "--fsync"))
    assert "+waitaof" not in said(bide(home, "acl", "viewer", "--fsync"))


def test_a_producer_enqueues_waits_and_changes_and_a_worker_works(
    as_user: As, queue: Queue
) -> None:
    mail = Queue("work", url=as_user("producer"))
    with at_work(as_user("worker"), queue):
        assert mail.enqueue(jobs.add, 2, 3).wait(60) == 5
        later = mail.enqueue(jobs.add, 1, delay=600)
        later.promote()
        assert later.wait(60) == 1
        hangs = mail.enqueue(jobs.hang)
        eventually(lambda: hangs.refresh().state is State.ACTIVE)
        assert hangs.cancel()
        eventually(lambda: hangs.refresh().state is State.CANCELLED)
    with mail.events(timeout=0.1) as events:
        job = mail.enqueue(jobs.add, 1, delay=60)
        mail.pause()
        mail.resume()
        job.reschedule(delay=30)
        job.delete()
        kinds = [event.kind for event in events]
        assert kinds == ["added", "paused", "resumed", "rescheduled", "deleted"]
    assert mail.purge() == 0
    mail.close()


def test_data_are_pushed_by_one_and_taken_by_the_other(as_user: As) -> None:
    producer = DelayQueue("orders", url=as_user("producer"))
    consumer = DelayQueue("orders", url=as_user("worker"))
    producer.push_many([1, 2, 3])
    assert consumer.pop() == [1]
    with consumer.take(num=2, wait=5) as items:
        assert [item.data for item in items] == [2, 3]
        items.ack()
    assert producer.length() == 0
    producer.close()
    consumer.close()


def test_a_viewer_sees_all_and_changes_nothing(as_user: As, home: Path, url: str) -> None:
    mail = Queue("work", url=url)
    job = mail.enqueue(jobs.add, 2, delay=60)
    failed = mail.enqueue(jobs.fail, "no")
    Worker(mail, modules=MODULES).run(burst=True)
    seeing = as_user("viewer")
    assert "work" in said(bide(home, "info", url=seeing))
    assert job.id in said(bide(home, "jobs", "ls", url=seeing))
    assert "ValueError" in said(bide(home, "jobs", "show", failed.id, url=seeing))
    assert job.id in said(bide(home, "upcoming", url=seeing))
    assert "work" in said(bide(home, "queues", "ls", url=seeing))
    said(bide(home, "workers", url=seeing))
    assert "live worker" in bide(home, "health", "-q", "work", url=seeing).stdout
    before = mail.counts()._replace(now_us=0)
    for args in (
        ("jobs", "cancel", job.id),
        ("jobs", "promote", job.id),
        ("jobs", "delete", failed.id),
        ("jobs", "retry", failed.id),
        ("queues", "pause", "work"),
        ("queues", "purge", "work", "--yes"),
    ):
        assert "refuses access" in error_of(bide(home, *args, url=seeing))
    with contextlib.closing(Queue("work", url=seeing)) as queue, pytest.raises(AccessDenied):
        queue.enqueue(jobs.add, 1)
    assert mail.counts()._replace(now_us=0) == before
    mail.close()


def test_an_operator_runs_what_looks_and_what_changes(as_user: As, home: Path, url: str) -> None:
    operator = as_user("operator")

    def run(*args: str) -> str:
        return said(bide(home, *args, url=operator))

    mail = Queue("work", url=url)
    later, other = mail.enqueue(jobs.add, 2, delay=60), mail.enqueue(jobs.add, 3, delay=60)
    failed = mail.enqueue(jobs.fail, "no")
    Worker(mail, modules=MODULES).run(burst=True)
    audit = ("events", "-q", "work", "--name", "audit", "--timeout", "0.1s")
    after = bide(home, *audit, url=operator).stderr.split()[-1]
    run("jobs", "promote", later.id)
    run("jobs", "reschedule", later.id, "--in", "5m")
    run("jobs", "cancel", later.id)
    run("jobs", "retry", failed.id)
    run("jobs", "cancel", failed.id)
    run("jobs", "delete", failed.id, "--yes")
    told = bide(home, *audit, "--after", after, url=operator).stdout
    for kind in ("rescheduled", "cancelled", "deleted"):
        assert kind in told
    assert "is paused" in run("queues", "pause", "work")
    assert "is resumed" in run("queues", "resume", "work")
    assert "removed 1 job" in run("queues", "purge", "work", "--yes")
    assert other.id not in run("jobs", "ls")
    assert later.id in run("jobs", "show", later.id)
    assert "work" in run("info")
    run("upcoming")
    assert "live worker" in bide(home, "health", "-q", "work", url=operator).stdout
    told = bide(home, "doctor", url=operator).stdout
    assert "can be run" in told
    assert "INFO is denied" not in told
    with contextlib.closing(Queue("work", url=operator)) as queue:
        queue.configure(retention=Retention(count=5))
        queue.delete_many([later.id])
    assert "is forgotten" in run("queues", "forget", "work")
    mail.close()


def test_an_operator_stops_what_runs(as_user: As, home: Path, queue: Queue) -> None:
    with at_work(as_user("worker"), queue):
        hangs = queue.enqueue(jobs.hang)
        eventually(lambda: hangs.refresh().state is State.ACTIVE)
        operator = as_user("operator")
        assert "asked to stop" in said(bide(home, "jobs", "cancel", hangs.id, url=operator))
        eventually(lambda: hangs.refresh().state is State.CANCELLED)
        shown = json.loads(said(bide(home, "workers", "--json", url=operator)))
        (name,) = [worker["name"] for worker in shown["workers"]]
        assert "was asked to stop" in said(bide(home, "workers", "stop", name, url=operator))


@pytest.mark.slow
def test_an_operator_checks_and_repairs(
    as_user: As, home: Path, queue: Queue, raw: redis.Redis
) -> None:
    job = queue.enqueue(jobs.add, 1)
    operator = as_user("operator")
    assert said(bide(home, "fsck", url=operator)) == "All agrees.\n"
    keys = queue.keys
    raw.zrem(keys.names["due"][4], job.id)
    raw.delete(keys["wake"])
    raw.rpush(keys["wake"], "a", "b", "c")
    raw.hdel("bide:queues", "work")
    found = bide(home, "fsck", url=operator)
    assert (found.returncode, found.stderr) == (1, "")
    assert "3 findings" in found.stdout
    repaired = bide(home, "fsck", "--repair", url=operator)
    assert (repaired.returncode, repaired.stderr) == (1, "")
    assert "3 findings repaired" in repaired.stdout
    assert said(bide(home, "fsck", "-q", "work", url=operator)) == "All agrees.\n"


# -- what is refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "lacks", "needs"),
    [
        (("fsck",), r"\+type", "operator"),
        (("fsck", "-q", "work"), r"\+type", "operator -q work"),
        (("queues", "pause", "work"), r"\+h(set|del)", "operator producer worker -q work"),
        (("queues", "forget", "work"), r"\+(exists|unlink)", "operator -q work"),
        (("workers", "stop", "w1."), r"\+h(exists|set)", "operator"),
        (("jobs", "promote", "a", "-q", "work"), r"\+zrem", "operator producer worker -q work"),
        (
            ("enqueue", "tests.support.jobs:add", "-q", "work", "--no-check"),
            r"\+hsetnx",
            "producer worker -q work",
        ),
        (
            ("jobs", "ls", "-q", "staged"),
            r"~bide:\{staged\} and ~bide:\{staged\}:\*",
            "-q staged",
        ),
        (("queues", "ls", "--prefix", "shop"), "~shop:queues", "--prefix shop"),
    ],
)
def test_what_a_user_may_not_do_names_the_right_and_what_prints_it(
    as_user: As,
    home: Path,
    queue: Queue,
    raw: redis.Redis,
    args: tuple[str, ...],
    lacks: str,
    needs: str,
) -> None:
    queue.enqueue(jobs.add, 1, job_id="a", delay=60)
    raw.hset("bide:queues", "staged", 0)
    raw.hset("bide:workers", "w1.", f"{time.time_ns() // 1000} {{}}")
    for script in names():  # as a worker of this release does at its start
        raw.script_load(load(script).text)
    error = error_of(bide(home, *args, url=as_user("viewer")))
    assert re.search(
        rf"its user lacks the permissions? {lacks}; `bide acl {needs}` prints", error
    ), error


def test_a_call_that_is_no_scripts_names_its_right_too(
    url: str, home: Path, raw: redis.Redis
) -> None:
    theirs = as_role(url, raw, "producer", "work")
    raw.execute_command("ACL", "SETUSER", "producer", "-xread")  # type: ignore[no-untyped-call]
    error = error_of(bide(home, "events", "-q", "work", "--timeout", "5s", url=theirs))
    assert "its user lacks the permission +xread; `bide acl` prints what each role needs" in error
    raw.acl_deluser("producer")


@pytest.mark.parametrize("role", ["worker", "producer", "operator", "viewer"])
def test_no_role_reaches_another_queue_prefix_or_command(as_user: As, role: str) -> None:
    with redis.Redis.from_url(as_user(role)) as client:
        run: Any = client.execute_command
        for key in ("bide:{other}:jobs", "bide:{work2}", "staging:{work}:jobs", "anything"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                run("HGET", key, "a")
        for words in (
            ("KEYS", "*"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "requirepass"),
            ("ACL", "LIST"),
            ("EVAL", "return 1", "0"),
            ("SCRIPT", "FLUSH"),
            ("MONITOR",),
            ("DEBUG", "SLEEP", "0"),
            ("SHUTDOWN",),
        ):
            with pytest.raises(redis.exceptions.ResponseError):
                run(*words)
    with (
        contextlib.closing(Queue("other", url=as_user(role))) as queue,
        pytest.raises(BideError, match="refuses access"),
    ):
        queue.counts()


@pytest.mark.parametrize("name", ["a*", "a?[b]^", "quo\"te's", "back\\slash", "später"])
def test_odd_names_are_meant_as_they_are(url: str, home: Path, name: str) -> None:
    line = said(bide(home, "acl", "producer", "-q", name, "--user", "odd")).strip()
    assert inline(url, line) == b"+OK\r\n"
    assert inline(url, "ACL SETUSER odd >secret") == b"+OK\r\n"
    mark = "&" if "?" in url else "?"
    theirs = f"{url}{mark}username=odd&password=secret"
    with contextlib.closing(Queue(name, url=theirs)) as queue:
        queue.enqueue(jobs.add, 1)
    for other in ("ab", "aab]^", "a?b", "a?[b]", "backslash"):
        with contextlib.closing(Queue(other, url=theirs)) as queue, pytest.raises(AccessDenied):
            queue.enqueue(jobs.add, 1)
    assert inline(url, "ACL DELUSER odd") == b":1\r\n"


@pytest.mark.slow
def test_without_a_queue_it_is_all_of_a_prefix(one_url: str, home: Path) -> None:
    shown = said(bide(home, "acl", "worker", "--prefix", "shop", "--json"))
    (user,) = json.loads(shown)["users"]
    assert (user["name"], user["role"]) == ("shop-worker", "worker")
    assert user["rules"] == rules("worker", [], "shop")
    keys = [rule for rule in user["rules"] if rule[0] in "~&"]
    assert "~shop:{*}:*" in keys
    assert all(key[1:].startswith("shop:") for key in keys)


def test_one_user_is_of_one_role(home: Path) -> None:
    assert "give that one" in error_of(bide(home, "acl", "--user", "x"), 2)
    assert "brace" in error_of(bide(home, "acl", "-q", "a b"), 2)


def test_words_are_quoted_where_they_must_be() -> None:
    key = keys_of("mail")["meta"]
    assert quoted(f"~{key}") == "~bide:{mail}"
    assert quoted('a"\\ä') == '"a\\"\\\\\\xc3\\xa4"'
