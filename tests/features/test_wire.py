"""Programs in other languages enqueue with one call; what they send, and what bad input does."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from bide import Queue, State
from bide.model.payload.body import MAX_BODY
from bide.protocol.keys import keys_of
from bide.protocol.scripts import load
from tests.support.compare import differs
from tests.support.console import bide, error_of, said
from tests.support.programs import redis_cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "wire.md").read_text("utf-8")
GUIDE = (ROOT / "docs" / "howto" / "producers.md").read_text("utf-8")
MAILER = re.findall(r"```python\n(# mailer.py\n.*?)```", GUIDE, flags=re.S)[0]

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
needs_redis_cli = pytest.mark.skipif(redis_cli() is None, reason="redis-cli is not installed")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "mailer.py").write_text(MAILER)
    return tmp_path


@pytest.fixture
def queue(one_url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


def work(home: Path, url: str) -> None:
    done = bide(home, "worker", "mailer", "-q", "mail", "--burst", url=url)
    assert done.returncode == 0, done.stderr


def send(direct: redis.Redis, *argv: Any) -> Any:
    """As a program does that knows nothing but the text and the keys."""
    script = load("enqueue")
    keys = keys_of("mail").of(script.keys)
    return direct.eval(script.text, len(keys), *keys, *argv)


# -- what other programs need


@pytest.mark.slow
def test_the_text_is_printed_as_it_is_sent(home: Path) -> None:
    script = load("enqueue")
    assert bide(home, "script", "enqueue").stdout == script.text
    assert said(bide(home, "script", "enqueue", "--sha")).strip() == script.sha


@pytest.mark.slow
def test_and_the_keys_of_a_queue_in_their_order(home: Path) -> None:
    printed = said(bide(home, "script", "enqueue", "--keys", "-q", "mail", "--prefix", "shop"))
    assert tuple(printed.split()) == keys_of("mail", "shop").of(load("enqueue").keys)


@pytest.mark.slow
def test_or_all_of_it_as_json(home: Path) -> None:
    script = load("enqueue")
    assert json.loads(said(bide(home, "script", "enqueue", "--json", "-q", "mail"))) == {
        "name": "enqueue",
        "sha": script.sha,
        "keys": list(keys_of("mail").of(script.keys)),
        "text": script.text,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--keys"], "name it with --queue"),
        (["--json"], "name it with --queue"),
        (["-q", "mail"], "goes --keys or --json"),
        (["--sha", "-q", "mail"], "goes --keys or --json"),
        (["--keys", "--sha", "-q", "mail"], "Give one of --keys, --sha and --json"),
        (["--keys", "-q", "a b"], "holds a brace, a space"),
    ],
)
def test_what_cannot_be_meant_is_refused(home: Path, args: list[str], text: str) -> None:
    assert text in error_of(bide(home, "script", "enqueue", *args), 2)
    assert "'claim' is not" in error_of(bide(home, "script", "claim"), 2)


def test_the_page_says_every_field_of_a_body() -> None:
    from bide.model.payload.body import Body

    table = PAGE.partition("## The body")[2].partition("## ")[0]
    told = {
        name
        for cell in re.findall(r"^\| (`.*?`) \|", table, flags=re.M)
        for name in re.findall(r"\w+", cell)
    }
    assert told == set(Body.__struct_fields__)


# -- redis-cli, Node and Go


@needs_redis_cli
def test_what_the_guide_shows_with_redis_cli_is_so(home: Path, one_url: str, queue: Queue) -> None:
    (block,) = re.findall(r"```console\n(\$ bide script enqueue >.*?)```", GUIDE, flags=re.S)
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    shown = "".join(f"{line}\n" for line in block.splitlines() if not line.startswith("$ "))
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)],
        cwd=home,
        env=os.environ | {"PATH": f"{_tools(home, one_url)}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert differs(shown, done.stdout) is None
    work(home, one_url)
    job = queue.fetch("order-42")
    assert (job.state, job.result) == (State.COMPLETED, "hello to ann@example.org")


def _tools(home: Path, url: str) -> Path:
    """A directory with a `redis-cli` for this server, as at a terminal, and this `bide`."""
    tools = home / "tools"
    tools.mkdir()
    server = urlsplit(url)
    where = f"-s {server.path}" if server.scheme == "unix" else f"-u {url}"
    for name, command in (
        ("redis-cli", f"{redis_cli()} {where} --no-raw"),
        ("bide", f"{sys.executable} -m bide"),
    ):
        file = tools / name
        file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return tools


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in Go, compiled once."""
    program = tmp_path_factory.mktemp("go") / "enqueue"
    source = ROOT / "examples" / "go" / "enqueue.go"
    subprocess.run(["go", "build", "-o", program, source], check=True, timeout=300)
    return program


@pytest.fixture(
    params=[pytest.param("node", marks=needs_node), pytest.param("go", marks=needs_go)],
)
def program(request: pytest.FixtureRequest) -> list[str]:
    """The command line of a producer in another language."""
    if request.param == "node":
        return ["node", str(ROOT / "examples" / "node" / "enqueue.mjs")]
    return [str(request.getfixturevalue("go_program"))]


@pytest.mark.slow
def test_a_program_enqueues_without_a_package(
    program: list[str], home: Path, one_url: str, direct: redis.Redis, queue: Queue
) -> None:
    (home / "enqueue.json").write_text(
        said(bide(home, "script", "enqueue", "--json", "-q", "mail"))
    )
    direct.script_flush()
    told = [
        _produce(program, home, one_url, "ann@example.org"),
        _produce(program, home, one_url, "größe <&>", "2"),
    ]
    assert direct.script_exists(load("enqueue").sha) == [True], "the first call was an EVAL"
    work(home, one_url)
    jobs = [queue.fetch(one["id"]) for one in told]
    assert [job.result for job in jobs] == ["hello to ann@example.org", "2 to größe <&>"]
    assert all(one["isNew"] for one in told)
    due = [datetime.fromisoformat(one["due"]) for one in told]
    assert all(abs(job.due - at).total_seconds() < 0.001 for job, at in zip(jobs, due, strict=True))


@pytest.mark.slow
def test_a_program_reports_what_the_server_refuses(
    program: list[str], home: Path, one_url: str
) -> None:
    script = json.loads(said(bide(home, "script", "enqueue", "--json", "-q", "mail")))
    (home / "enqueue.json").write_text(
        json.dumps(script | {"text": "return redis.error_reply('no')", "sha": "0" * 40})
    )
    with pytest.raises(AssertionError, match=r"\bno\b"):
        _produce(program, home, one_url, "ann@example.org")


@pytest.mark.slow
def test_a_program_reports_no_due_time_of_a_job_that_existed(
    program: list[str], home: Path, one_url: str
) -> None:
    script = json.loads(said(bide(home, "script", "enqueue", "--json", "-q", "mail")))
    (home / "enqueue.json").write_text(
        json.dumps(script | {"text": "return {'ok', 1, 0}", "sha": "0" * 40})
    )
    told = _produce(program, home, one_url, "ann@example.org")
    assert (told["isNew"], told["due"]) == (False, None)


def _produce(program: list[str], home: Path, url: str, *args: str) -> Any:
    done = subprocess.run(
        [*program, "send_email", *args],
        cwd=home,
        env=os.environ | {"BIDE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- the call


def test_the_reply_says_which_are_new_and_when_they_are_due(direct: redis.Redis) -> None:
    body = '{"task":"send_email","args":["ann"]}'
    word, now, *jobs = send(
        direct, "a", "+0", 5, body, "b", "+1000000", 9, body, "a", "+5", 5, body
    )
    assert (word, jobs) == (b"ok", [now, now + 1_000_000, 0])
    assert send(direct, "a", "+0", 5, body)[2:] == [0], "its repeat"


@pytest.mark.parametrize(
    "bad",
    [
        ("", "+0", 5),
        ("a b", "+0", 5),
        ("a{b}", "+0", 5),
        ("a\n", "+0", 5),
        ("x", "", 5),
        ("x", "0", 5),
        ("x", "-5", 5),
        ("x", "+1.5", 5),
        ("x", "+1e3", 5),
        ("x", "2030-01-01", 5),
        ("x", "+" + "9" * 17, 5),
        ("x", "+0", 10),
        ("x", "+0", -1),
        ("x", "+0", 2.5),
        ("x", "+0", "high"),
        ("x", "+0", "nan"),
        ("x", "+0", ""),
    ],
)
def test_what_cannot_be_meant_is_refused_with_all_of_its_call(
    direct: redis.Redis, bad: tuple[Any, ...]
) -> None:
    body = '{"task":"send_email","args":["ann"]}'
    with pytest.raises(redis.ResponseError, match="BADARG enqueue"):
        send(direct, "good", "+0", 5, body, *bad, body)
    with pytest.raises(redis.ResponseError, match="BADARG enqueue"):
        send(direct, "good", "+0", 5)
    assert not direct.keys("*")


GOOD = '{"task":"send_email","args":["ann"]}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "type", "message"),
    [
        ("", "PayloadError", "not one of bide's: Input data was truncated"),
        ("send_email ann", "PayloadError", "not one of bide's: JSON is malformed"),
        ("null", "PayloadError", "Expected `object`"),
        ('["send_email"]', "PayloadError", "Expected `object`"),
        ("{}", "PayloadError", "missing required field `task`"),
        ('{"args":["ann"]}', "PayloadError", "missing required field `task`"),
        ('{"task":5}', "PayloadError", "Expected `str`, got `int` - at `$.task`"),
        ('{"task":"send_email","args":"ann"}', "PayloadError", "Expected `array`"),
        ('{"task":"send_email","kwargs":["ann"]}', "PayloadError", "Expected `object`"),
        (
            '{"task":"send_email","timeout":"1m"}',
            "PayloadError",
            "Expected `float | null`, got `str` - at `$.timeout`",
        ),
        ('{"task":"send_email","timeout":0}', "PayloadError", "> 0.0"),
        ('{"task":"send_email","retry":"often"}', "PayloadError", "retry policy"),
        ('{"task":"send_email","on_crash":"shrug"}', "PayloadError", "Invalid enum value 'shrug'"),
        ('{"task":"send_email","meta":5}', "PayloadError", "Expected `object | null`"),
        ('{"task":"send_email","argz":["ann"]}', "PayloadError", "unknown field `argz`"),
        (
            '{"task":"send_email",\n"args":["ann"]}',
            "PayloadError",
            "one line of JSON; this one has",
        ),
        (GOOD + GOOD, "PayloadError", "trailing characters"),
        (b'{"task":"\xff\xfe"}', "PayloadError", "not one of bide's"),
        ("[" * 100_000, "PayloadError", "not one of bide's"),
        (f'{{"task":"send_email","args":["{"x" * MAX_BODY}"]}}', "PayloadError", "takes 1,000,03"),
        ('{"task":"send_email"}', "PayloadError", "send_email .*'to'"),
        ('{"task":"send_email","args":[5]}', "PayloadError", "argument 'to' of send_email"),
        ('{"task":"send_email","kwargs":{"to":5}}', "PayloadError", "argument 'to' of send_email"),
        ('{"task":"send_mail"}', "TaskNotFound", "'send_mail' here .there are: .*send_email"),
        ('{"task":""}', "TaskNotFound", "No task is named '' here"),
        ('{"task":"os:system","args":["true"]}', "TaskNotFound", "'os:system' is not served here"),
        ('{"task":"x\\u0000\\ny"}', "TaskNotFound", "is named"),
        ('{"task":"send_email","codec":"pickle"}', "PayloadError", "a newline and the arguments"),
        ('{"task":"send_email","codec":"pickle"}\n.', "PayloadError", "--allow-pickle"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_body_ends_its_own_job_with_a_clear_error_and_no_other(
    home: Path, one_url: str, direct: redis.Redis, queue: Queue, body: Any, type: str, message: str
) -> None:
    send(direct, "bad", "+0", 9, body)
    send(direct, "good", "+0", 5, GOOD)
    _burst(one_url)
    job = queue.fetch("bad")
    # What nobody serves may be of a deployment under way: it waits, and is not run either.
    assert job.state is (State.DELAYED if type == "TaskNotFound" else State.FAILED)
    assert job.error is not None
    assert job.error.type == f"bide.{type}"
    assert re.search(message.replace("$", r"\$").replace("|", r"\|"), job.error.message), (
        job.error.message
    )
    assert len(job.error.message) < 400
    assert queue.fetch("good").result == "hello to ann"


@pytest.fixture(scope="module")
def _mailer() -> Iterator[str]:
    """The page's module, for workers in this process."""
    import types

    from bide.testing.bed import isolated_registry

    module = types.ModuleType("mailer_of_page")
    with isolated_registry():
        sys.modules["mailer_of_page"] = module
        exec(MAILER, module.__dict__)
        yield "mailer_of_page"
        del sys.modules["mailer_of_page"]


@pytest.fixture(autouse=True)
def _served(_mailer: str) -> None:
    """Every worker of this process can run it."""


def _burst(url: str) -> None:
    from bide import Worker

    Worker("mail", url=url, modules="mailer_of_page").run(burst=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "id", [b"\xff\xfe", b"ok-\xc3", "ü-\udc80".encode("utf-8", "surrogatepass")]
)
def test_an_id_that_is_no_text_ends_its_own_job_and_can_be_seen_and_deleted(
    home: Path, one_url: str, direct: redis.Redis, queue: Queue, id: bytes
) -> None:
    """A reply that cannot be read would be asked for again and again, and hold up the queue."""
    send(direct, id, "+0", 9, GOOD)
    send(direct, "good", "+0", 5, GOOD)
    assert len(json.loads(said(bide(home, "upcoming", "--json", url=one_url)))["jobs"]) == 0
    work(home, one_url)
    assert queue.fetch("good").result == "hello to ann"
    (job,) = queue.jobs("failed")
    assert job.error is not None
    assert "The id of this job is not UTF-8" in job.error.message
    assert "PayloadError" in said(bide(home, "jobs", "ls", "-q", "mail", url=one_url))
    gone = bide(home, "jobs", "delete", "-q", "mail", "-s", "failed", "--yes", url=one_url)
    assert gone.returncode == 0, gone.stderr
    assert queue.counts().failed == 0
    assert not direct.hexists(queue.keys["jobs"], id)


@pytest.mark.slow
def test_an_id_that_python_would_not_take_is_refused_or_fails_and_harms_no_other(
    home: Path, one_url: str, direct: redis.Redis, queue: Queue
) -> None:
    with pytest.raises(redis.ResponseError, match="BADARG enqueue"):
        send(direct, "x" * 129, "+0", 5, GOOD)
    send(direct, "a\u00a0b", "+0", 5, GOOD, "x" * 128, "+0", 5, GOOD)
    work(home, one_url)
    assert [job.result for job in queue.jobs("completed")] == ["hello to ann"]
    (failed,) = queue.jobs("failed")
    assert "has characters that cannot be printed" in str(failed.error)


def test_a_queue_that_no_worker_has_served_can_be_made_known(
    home: Path, one_url: str, direct: redis.Redis
) -> None:
    send(direct, "a", "+0", 5, GOOD)
    assert not json.loads(said(bide(home, "queues", "ls", "--json", url=one_url)))["queues"]
    direct.hsetnx("bide:queues", "mail", "0")
    listed = json.loads(said(bide(home, "queues", "ls", "--json", url=one_url)))["queues"]
    assert listed["mail"]["waiting"] == 1
