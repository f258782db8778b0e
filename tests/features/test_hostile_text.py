"""What others have written stays text, and passwords stay where they are."""

from __future__ import annotations

import io
import logging
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis

from bide import BideError, DelayQueue, Queue, Worker, logs
from bide.client import config
from bide.logs import Log
from bide.model.payload.body import ITEM_MARK, Body, encode_body
from bide.protocol.keys import keys_of
from tests.support import jobs
from tests.support.console import at_terminal, bide

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\nERROR forged\u202e\u2028[red]x[/red]\x9b1m"
KEYS = keys_of("work")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a program logs that has set up logging by itself."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(filename)s %(message)s"))
    log = logging.getLogger("bide")
    log.addHandler(handler)
    before = log.level
    log.setLevel(logging.DEBUG)
    yield stream
    log.removeHandler(handler)
    log.setLevel(before)


def plant(raw: redis.Redis, id: str, body: bytes, queue: str = "work") -> None:
    """Write a job as no script would let it be written."""
    keys = keys_of(queue)
    raw.zadd(keys.names["due"][4], {id: 1})
    raw.hset(keys["jobs"], id, body)


def is_harmless(text: str) -> bool:
    return all(char == "\n" or char.isprintable() for char in text)


BODIES = {
    "task": encode_body(Body(ESCAPES)),
    "callback": encode_body(Body("tests.support.jobs:add", [1], on_success=f"a:{ESCAPES}")),
    "argument": encode_body(Body("tests.support.jobs:add", [ESCAPES])),
    "keyword": encode_body(Body("tests.support.jobs:add", [1], {ESCAPES: 1})),
    "raised": encode_body(Body("tests.support.jobs:fail", [ESCAPES], retry=None)),
    "field": b'{"task":"a","' + ESCAPES.encode() + b'":1}',
    "no body": ESCAPES.encode(),
}


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize("beside_ours", [False, True])
def test_logs_of_a_program_with_a_form_of_its_own_cannot_be_forged(
    one_url: str, written: io.StringIO, beside_ours: bool
) -> None:
    if beside_ours:
        logs.setup("json", stream=io.StringIO())
    queue = Queue("work", url=one_url)
    with redis.Redis.from_url(one_url) as raw:
        for id, body in BODIES.items():
            plant(raw, id, body)
        for i in range(3):
            plant(raw, f"{i}{ESCAPES}", encode_body(Body("tests.support.jobs:add", [1])))
        plant(raw, "long" * 50, encode_body(Body("tests.support.jobs:add", [1])))
    Worker(queue, modules=["tests.support.jobs"]).run(burst=True)
    lines = [line for line in written.getvalue().split("\n") if line]
    records = [line for line in lines if line.startswith(("ERROR ", "WARNING ", "DEBUG ", "INFO "))]
    assert not any(line.startswith("ERROR forged") for line in records)
    assert all(is_harmless(line) for line in records), records
    assert any("outcome.py" in line for line in records), "a record tells where it was made"
    counts = queue.counts()
    assert counts.completed == 1, "a callback that is not there fails nobody"
    assert counts.delayed == 2, "a task and a parameter that are not there are waited for"
    assert counts.failed == len(BODIES) - 3 + 4
    for i in range(3):
        assert "has characters that cannot be printed" in str(queue.fetch(f"{i}{ESCAPES}").error)
    assert "longer than 128 bytes" in str(queue.fetch("long" * 50).error)
    queue.close()


def test_nor_those_of_who_takes_data(one_url: str, written: io.StringIO) -> None:
    pile = DelayQueue("orders", url=one_url)
    pile.push(1)
    with redis.Redis.from_url(one_url) as raw:
        plant(raw, f"a{ESCAPES}", ITEM_MARK + b"no", "orders")
        plant(raw, f"b{ESCAPES}", b"no", "orders")
    assert pile.pop(num=9) == [1]
    with redis.Redis.from_url(one_url) as raw:
        plant(raw, f"c{ESCAPES}", ITEM_MARK + b"no", "orders")
    with pile.take(num=9) as items:
        assert not items
    records = written.getvalue()
    assert "has failed" in records
    assert is_harmless(records), records
    pile.close()


@pytest.mark.parametrize("args", [("jobs", "ls"), ("upcoming",), ("info",), ("queues", "ls")])
def test_commands_print_them_as_escapes(home: Path, one_url: str, args: tuple[str, ...]) -> None:
    queue = Queue("work", url=one_url)
    queue.enqueue(jobs.add, 1, delay=60)
    with redis.Redis.from_url(one_url) as raw:
        for id, body in BODIES.items():
            plant(raw, id, body)
        plant(raw, f"a{ESCAPES}", BODIES["task"])
        raw.hset("bide:queues", f"q{ESCAPES}", 1)
        raw.hset("bide:workers", f"w{ESCAPES}", "1 {}")
    done = bide(home, *args, url=one_url)
    assert is_harmless(done.stdout + done.stderr), done.stdout
    assert done.returncode == 0, done.stderr
    queue.close()


LONG = "x" * 20_000
CUT = "x" * 128 + "…"


def is_cut(text: str) -> bool:
    """Whether ids stand in a text, and none with more than 128 characters."""
    return CUT in text and "x" * 129 not in text


@pytest.mark.usefixtures("own_logging")
def test_logs_and_errors_show_as_much_of_an_id_as_an_id_may_have(
    one_url: str, written: io.StringIO
) -> None:
    queue, pile = Queue("work", url=one_url), DelayQueue("orders", url=one_url)
    pile.push(1)
    with redis.Redis.from_url(one_url) as raw:
        plant(raw, LONG, BODIES["argument"])
        plant(raw, f"{LONG}2", ESCAPES.encode())
        plant(raw, LONG, ITEM_MARK + b"no", "orders")
    Worker(queue, modules=["tests.support.jobs"]).run(burst=True)
    assert pile.pop(num=9) == [1]
    assert queue.counts().failed == 2
    assert is_cut(written.getvalue())
    with pytest.raises(BideError) as caught:
        queue.fetch(f"{LONG}3")
    assert is_cut(str(caught.value))
    job = queue.fetch(LONG)
    assert job.id == LONG
    assert is_cut(repr(job))
    for wrong in (job.promote, job.wait):
        with pytest.raises(BideError) as caught:
            wrong()
        assert is_cut(str(caught.value))
    queue.close()
    pile.close()


@pytest.mark.parametrize("args", [("jobs", "ls"), ("upcoming",), ("fsck",)])
def test_commands_cut_what_is_longer_than_an_id_may_be(
    home: Path, one_url: str, args: tuple[str, ...]
) -> None:
    with redis.Redis.from_url(one_url) as raw:
        raw.hset("bide:queues", "work", 1)
        for id, due in (("1", 1), ("2", 2**51)):
            plant(raw, f"{LONG}{id}", BODIES["argument"])
            raw.zadd(KEYS.names["due"][4], {f"{LONG}{id}": due})
        raw.zadd(KEYS["active"], {f"{LONG}1": 1})  # in two sets, which fsck finds
    shown = bide(home, *args, url=one_url)
    assert is_cut(shown.stdout), shown.stderr
    whole = bide(home, *args, "--json", url=one_url)
    assert LONG in whole.stdout
    assert LONG in bide(home, "jobs", "ls", "--ids", url=one_url).stdout


@pytest.mark.parametrize("verb", ["show", "promote", "cancel", "retry", "delete"])
def test_so_do_commands_about_one_job(home: Path, one_url: str, verb: str) -> None:
    with redis.Redis.from_url(one_url) as raw:
        raw.hset("bide:queues", "work", 1)
        plant(raw, LONG, BODIES["argument"])
    for id in (LONG, f"{LONG}2"):
        done = bide(home, "jobs", verb, id, url=one_url)
        assert "x" * 129 not in done.stdout + done.stderr


def test_so_do_commands_about_workers(home: Path, one_url: str) -> None:
    about = msgspec.json.encode({"queues": ["work"], "unserved": ["a:b"], "schema": 0}).decode()
    with redis.Redis.from_url(one_url) as raw:
        raw.hset("bide:queues", "work", 1)
        for last in "12":
            raw.hset("bide:workers", f"{LONG}{last}", f"{time.time_ns() // 1000} {about}")
        raw.hset("bide:{work}:jobs", "a", BODIES["task"])
    for args in [
        ("workers",),
        ("workers", "stop", f"{LONG}1"),
        ("workers", "stop", LONG),
        ("workers", "stop", f"{LONG}3"),
        ("queues", "forget", "work"),
    ]:
        done = bide(home, *args, url=one_url)
        assert is_cut(done.stdout + done.stderr), (args[:2], done.stdout, done.stderr)
    with redis.Redis.from_url(one_url) as raw:
        assert raw.hexists("bide:workers", f"{LONG}1 stop")


def test_so_do_commands_about_schedules(home: Path, one_url: str) -> None:
    queue = Queue("work", url=one_url)
    queue.schedules.upsert("usual", "a:b", every=3600)
    with redis.Redis.from_url(one_url) as raw:
        for key in (KEYS["schedule"], KEYS["scheduled"]):
            raw.hset(key, LONG, raw.hget(key, "usual"))
        raw.zadd(KEYS["schedules"], {LONG: time.time_ns() // 1000 + 10**9})
    for args in [("ls",), ("next",), ("next", f"{LONG}2")]:
        done = bide(home, "cron", *args, url=one_url)
        assert is_cut(done.stdout + done.stderr), (args[:1], done.stdout, done.stderr)
    for verb in ("run", "pause", "resume", "delete"):
        done = bide(home, "cron", verb, LONG, url=one_url)
        assert "x" * 129 not in done.stdout + done.stderr
    queue.close()


@pytest.mark.slow
def test_markup_is_text(home: Path, one_url: str) -> None:
    """At a terminal, where there are colours."""
    queue = Queue("work", url=one_url)
    queue.enqueue(jobs.add, 1, description="[red]x[/red]", delay=60)
    shown = at_terminal(home, "jobs", "ls", url=one_url)
    assert "[red]x[/red]" in shown.text
    queue.close()


def test_a_number_stays_a_number_in_a_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bide.test"):
        Log("bide.test").info("%d %.2f %s %r", 3, 0.5, "a\nb", ValueError("\x1b"))
    assert caplog.messages == [r"3 0.50 a\nb ValueError('\x1b')"]


# -- passwords

SECRET = "s3cret-pa55"


def urls() -> list[str]:
    return [
        f"redis://me:{SECRET}@127.0.0.1:1/0",
        f"redis://127.0.0.1:1/0?username=me&password={SECRET}",
        f"unix:///nowhere/sock?db=0&password={SECRET}",
        f"redis://me:{SECRET}@127.0.0.1:x/0",
        f"redis+odd://me:{SECRET}@127.0.0.1/0",
        f"redis://me:{SECRET}@/0",
        f"redis://me:{SECRET}@h/zero",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("url", urls())
def test_no_error_traceback_or_repr_shows_a_password(
    url: str, home: Path, written: io.StringIO
) -> None:
    shown: list[str] = []
    try:
        queue = Queue("work", url=url, retry_for=0)
        shown += [repr(queue), str(queue), repr(DelayQueue("work", url=url))]
        queue.enqueue(jobs.add, 1)
    except BideError as error:
        shown += [repr(error), *traceback.format_exception(error)]
    else:
        raise AssertionError("there is no such server")
    try:
        worker = Worker("work", url=url)
        shown.append(repr(worker))
        worker.run(burst=True)
    except BideError as error:
        shown += [repr(error), *traceback.format_exception(error)]
    done = bide(home, "info", "-u", url)
    shown += [done.stdout, done.stderr, written.getvalue()]
    with config.override(url=url):
        shown.append(repr(config.settings()))
    assert not any(SECRET in text for text in shown), [text for text in shown if SECRET in text]


def test_what_is_set_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIDE_URL", urls()[0])
    monkeypatch.setenv("BIDE_SIGNING_KEYS", f"one:{SECRET * 4}")
    assert SECRET not in repr(config.settings()) + repr(config.signing_keys())


def test_a_wrong_password_is_not_shown_either(home: Path, one_url: str) -> None:
    mark = "&" if "?" in one_url else "?"
    done = bide(home, "info", url=f"{one_url}{mark}username=nobody&password={SECRET}")
    assert done.returncode == 1
    assert "refuses access" in done.stderr
    assert SECRET not in done.stderr
