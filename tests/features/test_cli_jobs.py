"""`bide jobs ls`, `bide jobs show`, `bide upcoming`: what is said of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import DelayQueue, Queue, Retry, Unique
from bide.client import config
from tests.support.console import at_terminal, bide, error_of, said

HOSTILE = "\x1b[2Jgone\r\nforged [bold]x[/bold] \u202egnp \x07"
CONTROLS = "\x1b\r\x07\u202e"


@pytest.fixture
def mail(one_url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


def work(home: Path, url: str, *queues: str) -> None:
    options = [part for queue in queues or ("mail",) for part in ("-q", queue)]
    said(bide(home, "worker", "shop", "--burst", *options, url=url))


def ids(done: str) -> list[str]:
    return [line.split()[0] for line in done.splitlines()[1:]]


def read(home: Path, url: str, *args: str) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(said(bide(home, *args, "--json", url=url)))["jobs"]
    return jobs


# -- deduplicated calls


def test_a_job_says_under_which_key_calls_are_deduplicated(home: Path, mail: Queue) -> None:
    for i in range(3):
        mail.batch("web", i, into="shop:greet", quiet="1h", max_wait=None, job_id=f"g{i}")
    mail.enqueue("shop:greet", "x", unique=Unique(key="once"), job_id="once")
    shown = said(bide(home, "jobs", "show", "g0", url=mail.url))
    assert "batch: due 1h after the latest item, or with 100 items; 3 so far" in shown
    assert "shop:greet:web" in shown
    assert "[0, 1, 2]" in shown
    assert "unique until it has finished" in said(bide(home, "jobs", "show", "once", url=mail.url))
    (once,) = read(home, mail.url, "jobs", "show", "once")
    assert once["unique"] == {"key": "shop:greet:once", "how": "unique until it has finished"}
    mail.enqueue("shop:greet", "x", job_id="plain")
    (plain,) = read(home, mail.url, "jobs", "show", "plain")
    assert plain["unique"] is None
    assert "calls" not in said(bide(home, "jobs", "show", "plain", url=mail.url))


# -- items of data


def test_items_of_data_are_shown_with_their_data(home: Path, one_url: str) -> None:
    pile = DelayQueue("orders", url=one_url)
    pile.push({"user": 1}, id="soon", delay="1h")
    pile.push("bad", id="bad")
    with pile.take() as items:
        items[0].fail("no such user")
    pile.close()
    listed = said(bide(home, "jobs", "ls", url=one_url))
    assert '(data)  {"user": 1}' in listed
    assert "bide.Fail: no such user" in listed
    shown = said(bide(home, "jobs", "show", "soon", url=one_url))
    assert 'data      {"user": 1}' in shown
    assert "task" not in shown
    assert '{"user": 1}' in said(bide(home, "upcoming", url=one_url))
    (soon,) = read(home, one_url, "jobs", "show", "soon")
    assert (soon["data"], soon["state"], soon["unreadable"]) == ({"user": 1}, "delayed", [])
    assert said(bide(home, "jobs", "retry", "bad", "--yes", url=one_url)) is not None
    assert "(data)" in said(bide(home, "jobs", "ls", "-s", "waiting", url=one_url))


# -- ls


@pytest.mark.slow
def test_jobs_are_listed_by_what_may_need_a_look(home: Path, one_url: str, mail: Queue) -> None:
    failed = mail.enqueue("shop:boom", "no such order")
    done = mail.enqueue("shop:greet")
    work(home, one_url)
    later = mail.enqueue("shop:greet", delay="1h")
    now = mail.enqueue("shop:greet")
    shown = said(bide(home, "jobs", "ls", url=one_url))
    assert ids(shown) == [now.id, later.id, failed.id, done.id]
    lines = shown.splitlines()
    assert lines[0].split() == ["id", "state", "when", "task"]
    assert lines[2].split()[1:3] == ["delayed", "in"]
    assert lines[3].endswith("ValueError: no such order")


def test_queues_and_states_narrow_it(home: Path, one_url: str, mail: Queue) -> None:
    other = Queue("other", url=one_url)
    a, b = mail.enqueue("shop:greet"), other.enqueue("shop:greet")
    c = other.enqueue("shop:greet", delay=100)
    assert ids(said(bide(home, "jobs", "ls", url=one_url))) == [a.id, b.id, c.id]
    assert ids(said(bide(home, "jobs", "ls", "-q", "other", url=one_url))) == [b.id, c.id]
    assert ids(said(bide(home, "jobs", "ls", "-s", "waiting", url=one_url))) == [a.id, b.id]
    other.close()


@pytest.mark.slow
def test_filters_narrow_it(home: Path, one_url: str, mail: Queue) -> None:
    a = mail.enqueue("shop:boom", "no such order")
    b = mail.enqueue("shop:boom", "KeyError: [x]")
    c = mail.enqueue("shop:greet", delay="2h")
    d = mail.enqueue("shop:greet", delay="1d")
    work(home, one_url)

    def listed(*args: str) -> set[str]:
        return set(said(bide(home, "jobs", "ls", "--ids", *args, url=one_url)).split())

    assert listed("--task", "shop:boom") == {a.id, b.id}
    assert listed("--task", "shop:b*") == {a.id, b.id}
    assert listed("--task", "shop:b") == set()
    assert listed("--error", "such") == {a.id}
    assert listed("--error", "*such") == set()
    assert listed("--error", "ValueError: no*") == {a.id}
    assert listed("--older-than", "1h") == set()
    assert listed("--older-than", "0") == {a.id, b.id}
    assert listed("--due-before", "1h") == {a.id, b.id}
    assert listed("--due-before", "3h", "-s", "delayed") == {c.id}
    assert listed("--due-before", "2035-01-31T09:00Z") == {a.id, b.id, c.id, d.id}


def test_a_page_says_that_there_is_more(home: Path, one_url: str, mail: Queue) -> None:
    made = mail.enqueue_many([mail.prepare("shop:greet", delay=60 + i) for i in range(7)])
    done = bide(home, "jobs", "ls", "-n", "3", url=one_url)
    assert ids(done.stdout) == [job.id for job in made[:3]]
    assert done.stderr == "More than 3 jobs match; see --limit and --offset.\n"
    one = bide(home, "jobs", "ls", "-n", "1", url=one_url)
    assert one.stderr == "More than 1 job matches; see --limit and --offset.\n"
    done = bide(home, "jobs", "ls", "-n", "3", "--offset", "4", url=one_url)
    assert ids(done.stdout) == [job.id for job in made[4:]]
    assert done.stderr == ""
    report = json.loads(bide(home, "jobs", "ls", "-n", "3", "--json", url=one_url).stdout)
    assert (len(report["jobs"]), report["more"]) == (3, True)


def test_every_one_of_many_pages_is_listed_once(home: Path, one_url: str, mail: Queue) -> None:
    made = mail.enqueue_many([mail.prepare("shop:greet", delay=600) for _ in range(2_500)])
    listed = said(bide(home, "jobs", "ls", "--ids", "-n", "9999", url=one_url)).split()
    assert listed == [job.id for job in made]


def test_no_job_is_said_aside(home: Path, one_url: str, mail: Queue) -> None:
    done = bide(home, "jobs", "ls", url=one_url)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "No queue has been used yet.\n"
    mail.enqueue("shop:greet")
    assert bide(home, "jobs", "ls", "-s", "failed", url=one_url).stderr == "No job matches.\n"
    assert read(home, one_url, "jobs", "ls", "-s", "failed") == []


@pytest.mark.slow
def test_at_a_terminal_lines_fit_and_ids_are_whole(home: Path, one_url: str, mail: Queue) -> None:
    job = mail.enqueue("shop:boom", HOSTILE * 20)
    work(home, one_url)
    for columns in (80, 120):
        shown = at_terminal(home, "jobs", "ls", url=one_url, columns=columns, NO_COLOR="1")
        assert shown.code == 0
        _, line = shown.text.splitlines()
        assert line.startswith(job.id)
        assert len(line) <= columns
        assert line.endswith("…")
        assert line.isprintable()


@pytest.mark.slow
def test_colours_are_for_terminals(home: Path, one_url: str, mail: Queue) -> None:
    mail.enqueue("shop:greet")
    assert "\x1b[" in at_terminal(home, "jobs", "ls", url=one_url).text
    assert "\x1b[" not in at_terminal(home, "jobs", "ls", url=one_url, NO_COLOR="1").text
    assert "\x1b[" not in at_terminal(home, "jobs", "ls", url=one_url, TERM="dumb").text
    assert "\x1b" not in said(bide(home, "jobs", "ls", url=one_url))


# -- show


@pytest.mark.slow
def test_a_job_is_shown_whole(home: Path, one_url: str, mail: Queue) -> None:
    job = mail.enqueue("shop:greet", "Zoë 🦉", times=2, priority=7, meta={"order": 3})
    work(home, one_url)
    shown = said(bide(home, "jobs", "show", job.id, url=one_url))
    facts = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert facts["job"] == job.id
    assert facts["queue"] == "mail"
    assert facts["state"] == "completed"
    assert facts["task"] == "shop:greet"
    assert facts["arguments"] == '"Zoë 🦉", times=2'
    assert facts["priority"] == "7"
    assert facts["result"] == '"hello Zoë 🦉hello Zoë 🦉"'
    assert facts["meta"] == '{"order": 3}'
    assert "after it was due" in facts["started"]
    assert "ago)" in facts["due"]


def test_what_its_producer_said_of_it_is_shown(home: Path, one_url: str, mail: Queue) -> None:
    job = mail.enqueue("shop:greet", "Zoë", delay=60, description="reminder \x1b[2J of order 3")
    plain = mail.enqueue("shop:greet", "Zoë", delay=60)
    listed = said(bide(home, "jobs", "ls", url=one_url))
    assert "reminder \\x1b[2J of order 3" in listed
    assert listed.count("reminder") == 1
    shown = said(bide(home, "jobs", "show", job.id, url=one_url))
    assert "description  reminder \\x1b[2J of order 3" in shown
    assert "description" not in said(bide(home, "jobs", "show", plain.id, url=one_url))
    seen = read(home, one_url, "jobs", "show", job.id, plain.id)
    assert [s["description"] for s in seen] == [
        "reminder \x1b[2J of order 3", 'shop:greet("Zoë")'
    ]  # fmt: skip


def test_how_a_job_may_run_is_shown(home: Path, one_url: str, mail: Queue) -> None:
    policy = Retry(3, max_time="2h", never_on="shop.Refused")
    own = mail.enqueue("shop:greet", retry=policy, timeout="90s", retention="7d", delay=60)
    plain = mail.enqueue("shop:greet", job_id="order-1", delay=60)

    def facts(id: str) -> dict[str, str]:
        lines = said(bide(home, "jobs", "show", id, url=one_url)).splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    shown = facts(own.id)
    assert shown["enqueued"].endswith("ago)") or shown["enqueued"].endswith("(now)")
    assert shown["attempt"] == "0 of 4"
    text = "3 retries, exponential from 1s to 1h, within 2h, never on shop.Refused"
    assert shown["retry"] == text
    assert (shown["time-out"], shown["retention"]) == ("90s", "7d")
    shown = facts(plain.id)
    assert shown["enqueued"] == "not known, because its producer chose its id"
    assert shown["retry"] == "the task's, otherwise none"
    assert shown["time-out"] == "the task's, otherwise 5m"
    assert shown["retention"] == "the task's, otherwise the queue's"
    assert "attempt" not in shown
    found, other = read(home, one_url, "jobs", "show", own.id, plain.id)
    assert found["enqueued"] < found["due"]
    assert (found["max_attempts"], found["timeout"], found["retention"]) == (4, 90, 604_800)
    assert found["retry_policy"] == {
        "max": 3, "backoff": "exponential", "base": 1, "cap": 3600, "max_time": 7200, "on": [],
        "never_on": ["shop.Refused"], "text": text,
    }  # fmt: skip
    unknown = ("enqueued", "max_attempts", "retry_policy", "timeout", "retention", "run_time")
    assert [other[name] for name in unknown] == [None] * 6


@pytest.mark.slow
def test_a_failed_job_shows_its_attempts_log_and_progress(
    home: Path, one_url: str, mail: Queue
) -> None:
    job = mail.enqueue("shop:chatty", HOSTILE, retry=1)
    work(home, one_url)
    job.promote() if job.refresh().state != "failed" else None
    work(home, one_url)
    shown = said(bide(home, "jobs", "show", job.id, url=one_url))
    assert shown.count("Traceback (most recent call last):") == 2
    assert "  1  " in shown
    assert "  2  " in shown
    assert "half way" in shown
    assert "said \\x1b[2J" in shown
    assert not any(char in shown for char in CONTROLS)
    assert "[bold]x[/bold]" in shown


def test_everything_is_in_json(home: Path, one_url: str, mail: Queue) -> None:
    job = mail.enqueue("shop:chatty", HOSTILE)
    work(home, one_url)
    (shown,) = read(home, one_url, "jobs", "show", job.id)
    (listed,) = read(home, one_url, "jobs", "ls")
    assert set(listed) == {
        "id", "queue", "state", "task", "description", "priority", "enqueued", "due", "started",
        "finished", "run_time", "attempt",
        "worker", "lateness", "cancelling", "error", "masked",
    }  # fmt: skip
    assert set(shown) == {*listed} | {
        "now", "expires", "expired", "parents", "waits_for", "waits_for_count",
        "cancelled_by", "args", "kwargs", "meta", "schedule", "schedule_time", "result",
        "unreadable", "attempts",
        "progress", "logs", "why", "unique", "group", "rescheduled",
        "signature", "max_attempts", "retry_policy", "timeout", "retention",
    }  # fmt: skip
    assert shown["args"] == [HOSTILE]
    assert shown["error"]["message"] == HOSTILE
    assert "Traceback" in shown["attempts"][0]["error"]["traceback"]
    assert shown["logs"][0]["text"] == f"said {HOSTILE}"
    assert shown["progress"]["fraction"] == 0.5
    assert shown["finished"].endswith("+00:00")
    raw = bide(home, "jobs", "show", job.id, "--json", url=one_url).stdout
    assert raw.isascii()
    assert not any(char in raw for char in "\x1b\r\x07")


@pytest.mark.usefixtures("signing")
def test_pickles_stay_unread(home: Path, one_url: str) -> None:
    queue = Queue("mail", url=one_url, serializer="pickle")
    job = queue.enqueue("shop:greet", {1: 2})
    assert "pickled, and not read here" in said(bide(home, "jobs", "show", job.id, url=one_url))
    (shown,) = read(home, one_url, "jobs", "show", job.id)
    assert shown["args"] is None
    assert shown["task"] == "shop:greet"
    assert "pickled" in shown["unreadable"][0]
    queue.close()


def test_a_body_that_cannot_be_read_hides_nothing_else(
    home: Path, one_url: str, mail: Queue
) -> None:
    job, other = mail.enqueue("shop:greet"), mail.enqueue("shop:greet")
    with redis.Redis.from_url(one_url) as client:
        client.hset(mail.keys["jobs"], job.id, b"\xffnot a body")
    assert ids(said(bide(home, "jobs", "ls", url=one_url))) == [job.id, other.id]
    assert "not one of bide's" in said(bide(home, "jobs", "show", job.id, url=one_url))
    (shown,) = read(home, one_url, "jobs", "show", job.id)
    assert (shown["task"], shown["args"]) == ("?", None)


def test_jobs_are_found_in_whatever_queue_they_are(home: Path, one_url: str, mail: Queue) -> None:
    other = Queue("other", url=one_url)
    a, b = mail.enqueue("shop:greet"), other.enqueue("shop:greet")
    shown = read(home, one_url, "jobs", "show", b.id, a.id)
    assert [(job["id"], job["queue"]) for job in shown] == [(b.id, "other"), (a.id, "mail")]
    piped = bide(home, "jobs", "show", "-", "--json", url=one_url, stdin=f"{a.id} x\n\n{b.id}\n")
    assert [job["id"] for job in json.loads(said(piped))["jobs"]] == [a.id, b.id]
    for queue in (mail, other):
        queue.enqueue("shop:greet", job_id="same")
    assert "in mail and in other" in error_of(bide(home, "jobs", "show", "same", url=one_url), 2)
    (one,) = read(home, one_url, "jobs", "show", "same", "-q", "other")
    assert one["queue"] == "other"
    other.close()


def test_a_job_that_is_not_there_is_exit_code_3(home: Path, one_url: str, mail: Queue) -> None:
    assert "There is no job 'x'" in error_of(bide(home, "jobs", "show", "x", url=one_url), 3)
    job = mail.enqueue("shop:greet")
    done = bide(home, "jobs", "show", "x", job.id, url=one_url)
    assert done.returncode == 3
    assert job.id in done.stdout
    assert "There is no job 'x'" in done.stderr


# -- upcoming


def test_what_is_due_next_over_all_queues(home: Path, one_url: str, mail: Queue) -> None:
    other = Queue("other", url=one_url)
    a = mail.enqueue("shop:greet", delay="2h", priority=9)
    b = other.enqueue("shop:greet", delay="1h", priority=0)
    c = mail.enqueue("shop:greet", delay="3h", priority=1)
    mail.enqueue("shop:greet")
    done = bide(home, "upcoming", url=one_url)
    assert [line.split()[-1] for line in said(done).splitlines()] == ["id", b.id, a.id, c.id]
    assert "1 job is due already" in done.stderr
    assert said(done).splitlines()[0].split() == ["in", "at", "queue", "task", "id"]
    upcoming = read(home, one_url, "upcoming", "-n", "2")
    assert [job["id"] for job in upcoming] == [b.id, a.id]
    assert set(upcoming[0]) == {"id", "queue", "task", "due", "in"}
    assert 3500 < upcoming[0]["in"] < 3600
    assert [job["id"] for job in read(home, one_url, "upcoming", "--within", "90m")] == [b.id]
    none = bide(home, "upcoming", "-q", "other", "--within", "1s", url=one_url)
    assert "No job is due within 1s." in none.stderr
    assert len(read(home, one_url, "upcoming", "-n", "500")) == 3
    many = bide(home, "upcoming", "-n", "501", url=one_url)
    assert (many.returncode, "not in the range 1<=x<=500" in many.stderr) == (2, True)
    none = bide(home, "upcoming", "--within", "0", url=one_url)
    assert "No job is due within 0." in none.stderr
    other.close()


def test_show_says_whether_a_signature_is_good(home: Path, one_url: str, mail: Queue) -> None:
    keys, others = f"one:{'1' * 32}", f"one:{'2' * 32}"
    plain = mail.enqueue("shop:greet", "a")
    with config.override(signing_keys=keys):
        signed = mail.enqueue("shop:greet", "a")

    def show(*args: str, **options: str) -> str:
        return said(bide(home, "jobs", "show", *args, url=one_url, **options))

    def verdicts(**options: str) -> list[str]:
        shown = json.loads(show(plain.id, signed.id, "--json", **options))
        return [job["signature"] for job in shown["jobs"]]

    assert verdicts() == ["none", "unchecked"]
    assert verdicts(BIDE_SIGNING_KEYS=keys) == ["none", "good"]
    assert "signature" not in show(signed.id)
    assert "signature  none" in show(plain.id, BIDE_SIGNING_KEYS=keys)
    assert "signature  good" in show(signed.id, BIDE_SIGNING_KEYS=keys)
    assert "signature  not good" in show(signed.id, BIDE_SIGNING_KEYS=others)
