"""`bide queues`, `workers`, `info`, `health`: what is there, and whether it is well."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import Queue, Retention, Worker
from bide.client import blocking
from bide.embedded import Server
from bide.protocol.commands.queues import WorkerReport, heartbeat
from bide.protocol.commands.worker import claim
from bide.protocol.keys import keys_of
from tests.support import surface
from tests.support.console import at_terminal, bide, error_of, said
from tests.support.workers import at_work, burst, eventually

HOSTILE = "x\x1b[2Jy"


@pytest.fixture
def mail(one_url: str) -> Queue:
    queue = Queue("mail", url=one_url)
    for _ in range(3):
        queue.enqueue("shop:greet", delay="1h")
    return queue


def say(url: str, name: str, **about: object) -> None:
    """Have a worker say something of itself."""
    client = blocking.Client(url)
    client.run(heartbeat(keys_of(None), name, WorkerReport(**about)))  # type: ignore[arg-type]
    client.close()


def hold(url: str, worker: str, queue: str, task: str) -> str:
    """Have a worker claim a job of a queue; its id."""
    with contextlib.closing(Queue(queue, url=url)) as held:
        id = held.enqueue(task).id
        (job,) = held._client.run(claim(held.keys, worker, 1, 1, 10_000_000, 0)).jobs
        assert job.id == id
    return id


# -- queues


def test_queues_are_listed_with_their_jobs(home: Path, one_url: str, mail: Queue) -> None:
    with contextlib.closing(Queue("other", url=one_url)) as queue:
        queue.enqueue("shop:greet")
    lines = said(bide(home, "queues", "ls", url=one_url)).splitlines()
    assert [line.split()[0] for line in lines] == ["queue", "mail", "other"]
    assert lines[1].split()[1:4] == ["3", "0", "0"]
    assert lines[2].endswith("now")
    only = json.loads(said(bide(home, "queues", "ls", "--json", "-q", "mail", url=one_url)))
    assert list(only["queues"]) == ["mail"]
    assert set(only["queues"]["mail"]) == {
        "blocked", "delayed", "waiting", "active", "completed", "failed", "cancelled",
        "paused", "next_due_in", "totals", "limits", "schedules",
    }  # fmt: skip


def test_a_queue_is_paused_and_resumed(home: Path, one_url: str, mail: Queue) -> None:
    assert "bide queues resume mail" in said(bide(home, "queues", "pause", "mail", url=one_url))
    assert mail.counts().paused
    assert "paused" in said(bide(home, "queues", "ls", url=one_url))
    said(bide(home, "queues", "resume", "mail", url=one_url))
    assert not mail.counts().paused


def test_limits_are_set_shown_and_removed(home: Path, one_url: str, mail: Queue) -> None:
    def limit(*args: str) -> str:
        return said(bide(home, "queues", "limit", "mail", *args, url=one_url))

    assert limit() == "mail: no limits\n"
    assert limit("--rate", "100/s", "--concurrency", "5") == "mail: 100/s, 5 at once\n"
    assert limit("--rate", "2/m", "--burst", "3") == "mail: 2/m in bursts of 3, 5 at once\n"
    assert "2/m in bursts of 3, 5 at once" in said(bide(home, "info", url=one_url))
    report = json.loads(limit("--json"))["queues"]["mail"]
    assert report == {
        "rate": "2/m", "burst": 3, "concurrency": 5, "group_rate": None, "group_burst": None,
        "held_until": None, "limited_until": None, "declared": None, "overridden": {},
    }  # fmt: skip
    assert limit("--rate", "none", "--concurrency", "none") == "mail: no limits\n"


def test_a_rate_of_all_groups_is_set_shown_and_removed(
    home: Path, one_url: str, mail: Queue
) -> None:
    def limit(*args: str) -> str:
        return said(bide(home, "queues", "limit", "mail", *args, url=one_url))

    mail.enqueue("shop:remind", delay=60, group="g")
    assert limit("--group-rate", "5/s") == "mail: 5/s in each group\n"
    burst = ("--group-rate", "2/m", "--group-burst", "3")
    assert limit("--rate", "1/s", *burst) == "mail: 1/s, 2/m in bursts of 3 in each group\n"
    counts = mail.group("g").counts()
    assert (counts.rate, counts.burst, counts.has_own_rate) == ("2/m", 3, False)
    shown = said(bide(home, "queues", "groups", "mail", url=one_url))
    assert "2/m in bursts of 3 by the queue" in shown
    done = bide(home, "queues", "forget", "mail", url=one_url)
    assert "--group-rate none" in error_of(done, 1)
    assert limit("--rate", "none", "--group-rate", "none") == "mail: no limits\n"
    assert mail.group("g").counts().rate is None
    for args, says in (
        (("--group-rate", "fast"), "group_rate must be how many in which time"),
        (("--group-burst", "3"), "give it along with group_rate="),
        (("-g", "g", "--group-rate", "1/s"), "give --rate, or no --group"),
    ):
        assert says in error_of(bide(home, "queues", "limit", "mail", *args, url=one_url), 2)


def test_limits_of_a_group_are_set_shown_and_removed(home: Path, one_url: str, mail: Queue) -> None:
    def limit(*args: str, group: str = "g") -> str:
        line = said(bide(home, "queues", "limit", "mail", "-g", group, *args, url=one_url))
        return line.removeprefix(f"Group {group} of mail: ").rstrip()

    group = mail.group("g")
    assert limit() == "no limits but those of its jobs"
    assert limit("--rate", "100/s", "--concurrency", "5") == "100/s, 5 at once"
    assert limit("--rate", "2/m", "--burst", "3") == "2/m in bursts of 3, 5 at once"
    counts = group.counts()
    assert (counts.rate, counts.burst, counts.concurrency) == ("2/m", 3, 5)
    said(bide(home, "queues", "pause", "mail", "-g", "g", url=one_url))
    assert limit() == "paused, 2/m in bursts of 3, 5 at once"
    assert "paused, 2/m in bursts of 3" in said(bide(home, "queues", "groups", "mail", url=one_url))
    asked = bide(home, "queues", "limit", "mail", "-g", "g", "--json", url=one_url)
    assert json.loads(said(asked))["queues"]["mail"] == {
        "group": "g", "rate": "2/m", "burst": 3, "has_own_rate": True,
        "concurrency": 5, "paused": True,
    }  # fmt: skip
    said(bide(home, "queues", "resume", "mail", "-g", "g", url=one_url))
    assert limit("--rate", "none") == "5 at once"
    assert limit("--concurrency", "none") == "no limits but those of its jobs"
    assert mail.groups() == []
    assert limit(group="other") == "no limits but those of its jobs"
    assert mail.counts().limits.rate is None, "the queue's own stay"
    for args, says in (
        (("--rate", "fast"), "rate must be how many in which time"),
        (("--concurrency", "0"), "run 1 to 10000 at once, not 0"),
        (("--burst", "3"), "give it along with rate="),
    ):
        done = bide(home, "queues", "limit", "mail", "-g", "g", *args, url=one_url)
        assert says in error_of(done, 2)
    done = bide(home, "queues", "limit", "mail", "-g", "a b", url=one_url)
    assert "group" in error_of(done, 2)


def test_limits_that_cannot_be_meant_are_refused(home: Path, one_url: str, mail: Queue) -> None:
    for args, says in (
        (("--rate", "fast"), "rate must be how many in which time"),
        (("--concurrency", "many"), "--concurrency 'many' is not a number"),
        (("--concurrency", "0"), "concurrency must be a whole number"),
        (("--group", "g", "--group-rate", ""), "--group-rate applies to all groups"),
        (("--burst", "3"), "give it along with rate="),
    ):
        done = bide(home, "queues", "limit", "mail", *args, url=one_url)
        assert says in error_of(done, 2)
    assert "There is no queue" in error_of(bide(home, "queues", "limit", "post", url=one_url), 3)


@pytest.mark.slow
def test_a_hold_is_shown_and_ended(home: Path, one_url: str) -> None:
    queue = Queue("mail", url=one_url)
    job = queue.enqueue(surface.hold_once, 3600)
    burst(queue, max_jobs=1, max_idle=0.1)
    assert "held for" in said(bide(home, "queues", "ls", url=one_url))
    shown = said(bide(home, "jobs", "show", job.id, url=one_url))
    assert "not yet" in shown
    assert "a job holds the queue until" in shown
    (why, held, _) = json.loads(said(bide(home, "jobs", "show", job.id, "--json", url=one_url)))[
        "jobs"
    ][0]["why"]
    assert (why["kind"], held["kind"]) == ("not_due", "held")
    assert held["until"] is not None
    said(bide(home, "queues", "resume", "mail", url=one_url))
    assert "held for" not in said(bide(home, "queues", "ls", url=one_url))


@pytest.mark.slow
def test_purging_says_first_what_it_would_remove(home: Path, one_url: str, mail: Queue) -> None:
    mail.enqueue("shop:greet", depends_on=mail.jobs("delayed", count=1))
    done = bide(home, "queues", "purge", "mail", "--dry-run", url=one_url)
    assert said(done) == "Would remove 4 delayed, waiting or blocked jobs of mail.\n"
    assert "Remove 4 delayed" in error_of(bide(home, "queues", "purge", "mail", url=one_url), 2)
    refused = at_terminal(home, "queues", "purge", "mail", url=one_url, types={"[y/N]": "n\n"})
    assert (refused.code, "Nothing was changed." in refused.text) == (0, True)
    closed = at_terminal(home, "queues", "purge", "mail", url=one_url, types={"[y/N]": "\x04"})
    assert (closed.code, "Nothing was changed." in closed.text) == (0, True)
    assert mail.counts().delayed == 3


@pytest.mark.slow
def test_purging_asks_and_does_it(home: Path, one_url: str, mail: Queue) -> None:
    shown = at_terminal(home, "queues", "purge", "mail", url=one_url, types={"[y/N]": "y\n"})
    assert shown.code == 0
    assert "mail: removed 3 jobs." in shown.text
    assert mail.counts().delayed == 0


def test_purging_without_asking(home: Path, one_url: str, mail: Queue) -> None:
    assert "removed 3 jobs" in said(bide(home, "queues", "purge", "mail", "--yes", url=one_url))


# -- workers


def test_workers_are_listed(home: Path, one_url: str) -> None:
    assert "bide worker MODULE" in said(bide(home, "workers", url=one_url))
    started = 1_900_000_000_000_000
    say(
        one_url, "w1", host="a", pid=7, queues=["mail", "low"], executor="auto", concurrency=9,
        started_us=started, version="1.2", rss=42_000_000, skew=-0.25, lease=10.0,
    )  # fmt: skip
    a, b = hold(one_url, "w1", "mail", "shop:x"), hold(one_url, "w1", "low", "shop:late")
    say(one_url, "w2", host=HOSTILE, queues=["other"], unknown_tasks=["shop:new", HOSTILE])
    shown = said(bide(home, "workers", url=one_url))
    lacks = r"w2 claimed jobs of tasks that it does not have: shop:new, x\x1b[2Jy"
    assert lacks in shown.splitlines()
    with contextlib.closing(Queue("other", url=one_url)) as queue:
        queue.enqueue("shop:new")
    assert lacks in said(bide(home, "info", url=one_url)).splitlines()
    assert "w1" in shown
    assert "mail, low" in shown
    assert "2/9" in shown
    assert "42.0 MB" in shown
    assert "-0.2s" in shown
    assert "shop:x since " in shown
    assert " and 1 other" in shown
    assert r"x\x1b[2Jy" in shown
    for args in (["workers"], ["info"], ["top", "--once"]):
        of_other = said(bide(home, *args, "-q", "other", url=one_url))
        assert "w2" in of_other
        assert "w1" not in of_other
        mial = bide(home, *args, "-q", "mail", "-q", "mial", url=one_url)
        assert "There is no queue 'mial'" in error_of(mial, 3)
    with contextlib.closing(Queue("idle", url=one_url)) as queue:
        queue.enqueue("shop:x")
    for args in (["workers"], ["info"], ["top", "--once"]):
        assert "No worker serves idle" in said(bide(home, *args, "-q", "idle", url=one_url))
    report = json.loads(said(bide(home, "info", "-q", "idle", "--json", url=one_url)))
    assert report["workers"] == []
    (one,) = json.loads(said(bide(home, "workers", "-q", "low", "--json", url=one_url)))["workers"]
    assert 0 <= one.pop("seen_ago") < 30
    since = [job.pop("since") for job in one["doing"]]
    assert since == sorted(since)
    assert one == {
        "name": "w1", "host": "a", "pid": 7, "queues": ["mail", "low"], "executor": "auto",
        "concurrency": 9, "started": "2030-03-17T17:46:40+00:00", "version": "1.2",
        "paused": False,
        "alive": True, "busy": 2, "rss": 42_000_000, "skew": -0.25,
        "tasks": [], "unknown_tasks": [],
        "doing": [
            {"queue": "mail", "id": a, "task": "shop:x"},
            {"queue": "low", "id": b, "task": "shop:late"},
        ],
    }  # fmt: skip


def test_one_that_gives_no_sign_of_life_is_marked_while_it_holds_a_job(
    home: Path, one_url: str, direct: redis.Redis
) -> None:
    for name in ("dead", "gone"):
        say(one_url, name, queues=["mail"])
        told: Any = direct.hget("bide:workers", name)
        at_us, _, text = told.partition(b" ")
        direct.hset("bide:workers", name, b"%d %s" % (int(at_us) - 20_000_000, text))
    hold(one_url, "dead", "mail", "shop:x")
    shown = said(bide(home, "workers", url=one_url))
    assert re.search(
        r"dead has given no sign of life for 2\d[.\d]*s; if it is dead, its jobs", shown
    )
    assert "gone" not in shown
    (one,) = json.loads(said(bide(home, "workers", "--json", url=one_url)))["workers"]
    assert (one["name"], one["alive"], one["busy"]) == ("dead", False, 1)
    assert "no live worker" in said(bide(home, "health", "-q", "mail", url=one_url), 1)


@pytest.mark.slow
def test_a_worker_is_asked_to_stop(home: Path, one_url: str) -> None:
    queue = Queue("work", url=one_url)
    with at_work(queue, name="web1") as one, at_work(queue, name="web2") as two:
        eventually(lambda: len(queue.workers()) == 2)
        assert "may be web1." in error_of(bide(home, "workers", "stop", "web", url=one_url), 2)
        told = said(bide(home, "workers", "stop", "web1", url=one_url))
        assert told == f"{one.name} was asked to stop.\n"
        eventually(lambda: [seen.name for seen in queue.workers()] == [two.name])
        gone = error_of(bide(home, "workers", "stop", "web1", url=one_url), 3)
        assert gone == "Error: There is no worker 'web1'; `bide workers` lists them."
    queue.close()


# -- health


def test_a_server_that_answers_is_healthy(home: Path, one_url: str) -> None:
    assert said(bide(home, "health", url=one_url)).startswith("ok: ")


def test_a_queue_that_is_asked_for_needs_a_live_worker(home: Path, one_url: str) -> None:
    done = bide(home, "health", "-q", "mail", url=one_url)
    assert said(done, 1) == "mail: no live worker serves it and it has never been used.\n"
    say(one_url, "w", queues=["mail"])
    with contextlib.closing(Queue("mail", url=one_url)) as queue:
        queue.enqueue("shop:greet", delay="1h")
    said(bide(home, "health", "-q", "mail", url=one_url))
    assert "other: no live" in said(
        bide(home, "health", "-q", "mail", "-q", "other", url=one_url), 1
    )


def test_a_job_that_waits_for_too_long_is_said(home: Path, one_url: str) -> None:
    queue = Queue("mail", url=one_url)
    queue.enqueue("shop:greet")
    queue.pause()
    said(bide(home, "health", "--max-lateness", "1h", url=one_url))
    shown = said(bide(home, "health", "--max-lateness", "1us", url=one_url), 1)
    assert "mail: a job is overdue by" in shown
    assert "paused" in shown
    report = json.loads(said(bide(home, "health", "--max-lateness", "0", "--json", url=one_url), 1))
    assert report["ok"] is False
    assert report["queues"]["mail"]["lateness"] > 0
    assert len(report["problems"]) == 1


def test_a_server_that_does_not_answer_is_not_healthy(home: Path) -> None:
    assert "Cannot reach" in error_of(bide(home, "health", url="redis://127.0.0.1:1"))
    done = bide(home, "health", "--json", url="redis://127.0.0.1:1")
    report = json.loads(said(done, 1))
    assert report["ok"] is False
    assert "Cannot reach" in report["problems"][0]


def test_health_imports_no_code_of_the_application(home: Path, one_url: str) -> None:
    (home / "shop.py").write_text("raise SystemExit(9)")
    (home / "pyproject.toml").write_text('[tool.bide.worker]\nmodules = ["shop"]')
    said(bide(home, "health", url=one_url))


# -- doctor


def test_doctor_says_what_is_well_and_what_to_mend(home: Path, url: str) -> None:
    shown = said(bide(home, "doctor", url=url))
    for line in ("ok    eviction      noeviction", "warn  persistence", "warn  maxmemory"):
        assert line in shown
    assert "CONFIG SET appendonly yes" in shown
    report = json.loads(said(bide(home, "doctor", "--json", url=url)))
    assert report["ok"] is True
    checks = {check["check"]: check for check in report["checks"]}
    assert checks["clock"]["verdict"] == "ok"
    assert checks["scripts"]["verdict"] == "ok"
    assert set(checks["hz"]) == {"check", "verdict", "says", "fix"}


def test_doctor_ends_with_what_is_missing_for_production(
    home: Path, tmp_server: Callable[..., Server]
) -> None:
    server = tmp_server(extra=("--appendonly", "yes"))
    shown = said(bide(home, "doctor", url=server.url))
    _, _, needs = shown.partition("\n\nFor production, ")
    assert needs.startswith("4 of 9 points are missing (the exit code does not count them):\n")
    assert "persistence" not in needs
    assert "no worker is alive.\n                    docs/howto/production.md#several" in needs
    with at_work(Queue("mail", url=server.url), grace="1h"):
        report = json.loads(said(bide(home, "doctor", "--json", url=server.url)))
    points = {need["point"]: need for need in report["production"]}
    assert points["workers"]["says"] == "one worker serves mail"
    assert points["health port"]["says"].startswith("no --health-port on 1 of 1 worker")
    assert points["time-outs"]["state"] == "ok"
    assert report["ok"] is True


def test_doctor_fails_where_jobs_would_be_dropped(
    home: Path, tmp_server: Callable[..., Server]
) -> None:
    server = tmp_server(extra=("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"))
    shown = said(bide(home, "doctor", url=server.url), 1)
    assert "fail  eviction      allkeys-lru" in shown


def test_doctor_says_what_it_may_not_see(home: Path, tmp_server: Callable[..., Server]) -> None:
    server = tmp_server()
    permissions = "on >hunter2 ~* &* +@all -info -config -time -evalsha"
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "bounded", *permissions.split())
    url = server.url.replace("unix://", "unix://bounded:hunter2@")
    shown = said(bide(home, "doctor", url=url), 1)
    assert "INFO is denied" in shown
    assert "TIME is denied" in shown
    assert "fail  scripts       cannot be run" in shown
    assert "hunter2" not in shown


def test_doctor_prints_its_table_where_nobody_answers(home: Path) -> None:
    url = "redis://u:secret@127.0.0.1:1"
    done = bide(home, "doctor", url=url)
    shown = said(done, 1)
    assert "fail  server        Cannot reach the server at redis://u:***@127.0.0.1:1" in shown
    assert "note  eviction      not known: the server did not answer" in shown
    assert "note  scripts       not known: the server did not answer" in shown
    report = json.loads(said(bide(home, "doctor", "--json", url=url), 1))
    assert report["ok"] is False
    assert "secret" not in shown + json.dumps(report)


def test_doctor_asks_on_where_a_command_is_refused(
    home: Path, tmp_server: Callable[..., Server]
) -> None:
    server = tmp_server()
    with redis.Redis.from_url(server.url) as client:
        permissions = "on >hunter2 ~* &* +@all -time -ping -config"
        client.execute_command("ACL", "SETUSER", "bounded", *permissions.split())
    url = server.url.replace("unix://", "unix://bounded:hunter2@")
    shown = said(bide(home, "doctor", url=url))
    assert "note  round trip    not known: PING is denied" in shown
    assert "note  keepalive     not known: CONFIG GET is denied" in shown
    for check in ("ok    server", "warn  maxmemory", "ok    clients", "ok    scripts"):
        assert check in shown


# -- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(home: Path, shell: str) -> None:
    script = said(bide(home, "completion", shell))
    assert "_BIDE_COMPLETE" in script
    # A bash that breaks words at colons would not complete the name of a task.
    assert ("COMP_WORDBREAKS=${COMP_WORDBREAKS//:}" in script) == (shell == "bash")


@pytest.mark.slow
def test_queues_are_completed(home: Path, one_url: str, mail: Queue) -> None:
    def complete(words: str, url: str = one_url) -> str:
        count = str(len(words.split(" ")) - 1)
        return bide(
            home, url=url, _BIDE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=count
        ).stdout.strip()

    assert complete("bide queues pause m") == "plain,mail"
    assert complete("bide health -q ") == "plain,mail"
    assert complete("bide health -q x") == ""
    assert complete("bide health -q ", "redis://127.0.0.1:1") == ""
    assert complete("bide que") == "plain,queues"
    mail.schedules.upsert("nightly", "shop:greet", cron="0 3 * * *")
    assert complete("bide cron run n") == "plain,nightly"
    assert complete("bide cron next x") == ""
    with at_work(mail, name="w1"):
        (worker,) = eventually(lambda: mail.workers())
        assert complete("bide workers stop w") == f"plain,{worker.name}"
        tasks = "plain,tests.support.jobs:registered"
        assert complete("bide enqueue tests.support.jobs") == tasks
        assert complete("bide jobs cancel --task tests.support.jobs") == tasks


def test_the_command_line_returns_to_what_the_code_declares(home: Path, one_url: str) -> None:
    queue = Queue("mail", url=one_url, rate="5/s", concurrency=3)
    Worker([queue]).run(burst=True)
    queue.configure(rate="9/s", concurrency=None, retention=Retention(count=9))

    def limit(*args: str, code: int = 0) -> str:
        done = bide(home, "queues", "limit", "mail", *args, url=one_url)
        return error_of(done, code) if code else said(done)

    assert limit() == "mail: 9/s (the code declares 5/s, 3 at once, without effect)\n"
    assert (
        limit("--rate", "declared") == "mail: 5/s (the code declares 3 at once, without effect)\n"
    )
    report = json.loads(limit("--json"))["queues"]["mail"]
    assert report["overridden"] == {"concurrency": 3}
    assert limit("--concurrency", "declared") == "mail: 5/s, 3 at once\n"
    queue.configure(rate=None, concurrency=None)
    assert limit("--declared") == "mail: 5/s, 3 at once\n"
    assert queue.counts().retention.count == 9
    said(bide(home, "queues", "limit", "mail", "--group", "g", "--rate", "1/s", url=one_url))
    assert "has declared group_rate=" in limit("--group-rate", "declared", code=2)
    assert "give it alone" in limit("--declared", "--rate", "1/s", code=2)
    assert "give it alone" in limit("--declared", "--group", "g", code=2)
    assert "rate must be how many" in limit("--group", "g", "--rate", "declared", code=2)
    assert "give a number, none or declared" in limit("--concurrency", "x", code=2)
    with closing(Queue("other", url=one_url)) as other:
        other.enqueue("shop:greet")
        other.configure(retention=Retention(count=8))
        queue.configure(rate="9/s")
        done = bide(home, "queues", "limit", "mail", "other", "--declared", url=one_url)
        assert "No worker of queue other has declared limits" in error_of(done, 2)
        assert queue.counts().limits.rate == "9/s"
    queue.close()
