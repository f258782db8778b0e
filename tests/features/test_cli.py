"""The command line, as its users meet it: what it prints, and that an error is one sentence."""

from __future__ import annotations

import contextlib
import json
import re
from contextlib import closing
from pathlib import Path

import pytest
import redis

from bide import Queue
from tests.support.console import bide, error_of, said

pytestmark = pytest.mark.slow


def test_enqueue_then_work_then_info(home: Path, one_url: str) -> None:
    done = bide(home, "enqueue", "shop:greet", "world", "times=2", url=one_url)
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.split()[0]
    worked = bide(home, "worker", "shop", "--burst", url=one_url)
    assert worked.returncode == 0, worked.stderr
    assert "hello world 2" in worked.stderr
    assert "stopped after 1 job\n" in worked.stderr
    info = json.loads(bide(home, "info", "--json", url=one_url).stdout)
    assert info["queues"]["default"]["completed"] == 1
    assert info["workers"] == []
    queue = Queue(url=one_url)
    assert queue.fetch(job_id).result == "hello worldhello world"
    queue.close()


def test_enqueue_waits_for_what_the_server_can_give(home: Path, one_url: str) -> None:
    words = ("enqueue", "shop:greet", "world", "--json", "--durability")
    done = bide(home, *words, "local", url=one_url)
    assert json.loads(done.stdout)["confirmed"] == "local"
    refused = bide(home, *words, "replica", url=one_url)
    assert "no replica is connected" in error_of(refused)


def test_info_shows_every_state_for_people(home: Path, one_url: str) -> None:
    bide(home, "enqueue", "shop:greet", "--in", "5m", "-q", "mail", url=one_url)
    shown = bide(home, "info", url=one_url).stdout
    for word in ("mail", "delayed", "waiting", "active", "completed", "failed", "cancelled"):
        assert word in shown
    assert re.search(r"in (5m|4m5\ds)", shown)


def test_info_of_an_unused_server_says_how_to_begin(home: Path, one_url: str) -> None:
    assert "bide enqueue" in bide(home, "info", url=one_url).stdout


def test_enqueue_reads_json_where_it_is_json(home: Path, one_url: str) -> None:
    args = ["[1, 2]", "007", 'times={"a": null}', "--json", "--no-check"]
    done = bide(home, "enqueue", "shop:greet", *args, url=one_url)
    report = json.loads(done.stdout)
    queue = Queue(url=one_url)
    job = queue.fetch(report["id"])
    assert job.args == ([1, 2], "007")
    assert job.kwargs == {"times": {"a": None}}
    queue.close()


def test_an_id_that_exists_changes_nothing_and_says_so(home: Path, one_url: str) -> None:
    first = bide(home, "enqueue", "shop:greet", "--id", "once", "--in", "1h", url=one_url)
    again = bide(home, "enqueue", "shop:greet", "--id", "once", url=one_url)
    assert first.returncode == again.returncode == 0
    assert again.stdout == "once exists and is delayed; nothing was changed.\n"


def test_a_delay_that_has_passed_means_now(home: Path, one_url: str) -> None:
    shown = said(bide(home, "enqueue", "shop:greet", "world", "--in", "-5m", url=one_url))
    with closing(Queue(url=one_url)) as queue:
        (job,) = queue.jobs("waiting")
    assert job.id in shown


def test_at_takes_a_moment_with_a_zone(home: Path, one_url: str) -> None:
    done = bide(
        home, "enqueue", "shop:greet", "--at", "2035-01-31T09:00:00+01:00", "--json", url=one_url
    )
    assert json.loads(done.stdout)["due"] == "2035-01-31T08:00:00+00:00"


def test_the_prefix_separates_applications(home: Path, one_url: str) -> None:
    bide(home, "enqueue", "shop:greet", "--prefix", "staging", url=one_url)
    assert json.loads(bide(home, "info", "--json", url=one_url).stdout)["queues"] == {}
    staging = bide(home, "info", "--json", url=one_url, BIDE_PREFIX="staging").stdout
    assert json.loads(staging)["queues"]["default"]["waiting"] == 1


def test_enqueue_under_a_key_adds_one(home: Path, one_url: str) -> None:
    words = ("enqueue", "shop:greet", "--unique", "nightly", "--in", "1h")
    first = json.loads(bide(home, *words, "--json", url=one_url).stdout)
    again = json.loads(bide(home, *words, "--json", url=one_url).stdout)
    results = (first["result"], again["result"], again["id"])
    assert results == ("created", "duplicate", first["id"])
    told = bide(home, *words, url=one_url).stdout
    assert told == f"{first['id']} holds the key and is delayed; nothing was changed.\n"


def test_no_check_enqueues_by_name_alone(home: Path, one_url: str) -> None:
    done = bide(home, "enqueue", "elsewhere:task", "--no-check", url=one_url)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["enqueue", "shop:greet", "--in", "soon"], 2, "'1h30m'"),
        (["enqueue", "shop:greet", "--at", "2035-01-31T09:00:00"], 2, "has no time zone"),
        (["enqueue", "shop:greet", "--at", "tomorrow"], 2, "is not a moment"),
        (["enqueue", "shop:greet", "--in", "1", "--at", "2035-01-31T09:00Z"], 2, "not both"),
        (["enqueue", "shop:greet", "-p", "10"], 2, "from 0 to 9"),
        (["enqueue", "shop:greet", "--id", "a b"], 2, "job_id"),
        (["enqueue", "shop:greet", "x=1", "x=2"], 2, "given twice"),
        (["enqueue", "shop.greet"], 2, "did you mean 'shop:greet'"),
        (["enqueue", "nowhere:greet"], 1, "cannot be imported"),
        (["enqueue", "shop:nothing"], 1, "no public function 'nothing'"),
        (["enqueue", "shop:greet", "-q", "{x}"], 2, "queue name"),
        (["worker", "nowhere"], 1, "cannot be imported"),
        (["worker", "shop", "-c", "0"], 2, "concurrency"),
        (["worker", "shop", "--lease", "1ms"], 2, "lease"),
        (["info", "-u", "http://example.com"], 2, "redis://HOST:PORT/DB"),
        (["info", "-u", "redis://u:secret@127.0.0.1:1"], 1, "redis://u:***@127.0.0.1:1"),
        (
            ["enqueue", "shop:greet", "-u", "redis://127.0.0.1:1"],
            1,
            "start it, or give its address",
        ),
        (
            ["worker", "shop", "-u", "redis://127.0.0.1:1", "--burst"],
            1,
            "Cannot reach the server",
        ),
        (
            ["worker", "shop", "-u", "unix:///nowhere.sock", "--burst"],
            1,
            "Cannot reach the server",
        ),
    ],
)
def test_an_error_is_one_sentence_with_its_fix(
    home: Path, one_url: str, args: list[str], code: int, says: str
) -> None:
    said = error_of(bide(home, *args, url=one_url), code)
    assert says in said
    assert "secret" not in said


def test_a_full_server_is_said_to_be_full(home: Path, one_url: str) -> None:
    client = redis.Redis.from_url(one_url)
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used // 2)
    try:
        said = error_of(bide(home, "enqueue", "shop:greet", url=one_url))
        assert "maxmemory" in said
        assert client.keys("bide:{*") == []
    finally:
        client.config_set("maxmemory", 0)
        client.close()


@pytest.mark.parametrize("given", [":wrong@", ""])
@pytest.mark.parametrize("command", [["info"], ["enqueue", "shop:greet", "world"]])
def test_a_wrong_password_or_none_is_said_to_be_refused(
    home: Path, one_url: str, given: str, command: list[str]
) -> None:
    """Also where the first call is so long that the server cuts strangers off without a word."""
    client = redis.Redis.from_url(one_url)
    client.config_set("requirepass", "right")
    try:
        url = one_url.replace("unix://", f"unix://{given}")
        said = error_of(bide(home, *command, "-u", url))
        assert "refuses access" in said
        assert "wrong" not in said
    finally:
        redis.Redis.from_url(one_url, password="right").config_set("requirepass", "")
        client.close()


def test_what_is_not_a_command_line_is_refused_by_click(home: Path) -> None:
    done = bide(home, "worker")
    assert done.returncode == 2
    assert "MODULE" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_printed(home: Path) -> None:
    assert bide(home, "--version").stdout.startswith("bide, version ")


TASKS = """
from bide import Queue

mail = Queue("mail")


@mail.task
def send(number: int) -> None: ...
"""


def test_a_task_goes_to_its_own_queue_unless_another_is_named(home: Path, one_url: str) -> None:
    (home / "post.py").write_text(TASKS)
    assert " on mail: " in bide(home, "enqueue", "post:send", "1", url=one_url).stdout
    assert " on low: " in bide(home, "enqueue", "post:send", "1", "-q", "low", url=one_url).stdout


def test_what_is_not_given_is_the_tasks_own_as_far_as_it_is_known(home: Path, one_url: str) -> None:
    (home / "post.py").write_text(
        TASKS.replace("@mail.task", '@mail.task(delay="1h", priority=9, group="g")')
    )
    with contextlib.closing(Queue("mail", url=one_url)) as mail:
        own = mail.fetch(bide(home, "enqueue", "post:send", "1", url=one_url).stdout.split()[0])
        assert (own.state, own.priority, own.group) == ("delayed", 9, "g")
    words = ("enqueue", "post:send", "1", "--no-check")
    with contextlib.closing(Queue("default", url=one_url)) as default:
        bides = default.fetch(bide(home, *words, url=one_url).stdout.split()[0])
        assert (bides.state, bides.priority, bides.group) == ("waiting", 5, None)


def test_arguments_that_the_worker_would_refuse_are_refused_at_once(
    home: Path, one_url: str
) -> None:
    (home / "post.py").write_text(TASKS)
    refused = bide(home, "enqueue", "post:send", "one", url=one_url)
    assert "argument 'number' of post:send: Expected `int`, got `str`" in error_of(refused)
    too_many = bide(home, "enqueue", "post:send", "1", "2", url=one_url)
    assert too_many.returncode == 2
    queue = Queue("mail", url=one_url)
    assert queue.counts().waiting == 0
    queue.close()
