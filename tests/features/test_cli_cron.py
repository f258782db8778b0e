"""`bide cron`: what schedules there are, when they fire, and what can be done with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from bide import Queue
from bide.protocol.keys import keys_of
from tests.support.console import bide, error_of, said

GREET = "shop:greet"


@pytest.fixture
def mail(one_url: str) -> Iterator[Queue]:
    with closing(Queue("mail", url=one_url)) as queue:
        queue.schedules.upsert("hourly", GREET, every="1h", jitter=5, limit=3)
        queue.schedules.upsert("nine", GREET, cron="0 9 * * *", tz="Europe/Paris")
        yield queue


def test_schedules_are_listed_with_when_they_fire_next(
    home: Path, one_url: str, mail: Queue
) -> None:
    with closing(Queue("other", url=one_url)) as other:
        other.schedules.upsert("nine", GREET, at=[datetime(2035, 1, 1, tzinfo=UTC)])
        other.schedules.pause("nine")
        other.schedules.upsert("past", GREET, at=[datetime(1990, 1, 1, tzinfo=UTC)])
    lines = said(bide(home, "cron", "ls", url=one_url)).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["name", "queue"],
        ["hourly", "mail"],
        ["nine", "mail"],
        ["nine", "other"],
        ["past", "other"],
    ]
    assert "every 1h" in lines[1]
    assert lines[1].endswith("0 of 3")
    assert "0 9 * * * Europe/Paris" in lines[2]
    assert "paused" in lines[3]
    assert "over" in lines[4]
    only = json.loads(said(bide(home, "cron", "ls", "-q", "mail", "--json", url=one_url)))
    assert [one["name"] for one in only["schedules"]] == ["hourly", "nine"]
    assert set(only["schedules"][0]) == {
        "name", "queue", "task", "cron", "tz", "every", "at", "start", "end", "limit", "missed",
        "jitter", "priority", "paused", "over", "fired", "last", "next",
    }  # fmt: skip


def test_where_there_are_none_it_says_how_to_have_one(home: Path, one_url: str) -> None:
    done = bide(home, "cron", "ls", url=one_url)
    assert (done.stdout, "@queue.cron(...)" in done.stderr) == ("", True)
    done = bide(home, "cron", "next", url=one_url)
    assert (done.stdout, done.stderr) == ("", "No schedule fires.\n")


def test_what_cannot_be_read_here_is_listed_all_the_same(
    home: Path, one_url: str, mail: Queue, direct: redis.Redis
) -> None:
    mail.schedules.upsert("x", GREET, cron="0 9 * * *", tz="Europe/Rome")
    key = keys_of("mail")["schedule"]
    record = direct.hget(key, "x")
    assert isinstance(record, bytes)
    head, _, rest = record.partition(b":")
    direct.hset(key, "x", head + b":\n" + rest.partition(b"\n")[2].replace(b"Rome", b"Roma"))
    direct.hset(key, "odd", "x")
    lines = said(bide(home, "cron", "ls", url=one_url)).splitlines()
    assert len(lines) == 4
    assert lines[3].split()[0] == "x"
    assert " ? " in lines[3]
    assert "Europe/Roma" in error_of(bide(home, "cron", "next", "x", url=one_url), 2)
    done = bide(home, "cron", "next", "-n", "4", "--json", url=one_url)
    assert len(json.loads(said(done))["times"]) == 4
    assert re.match("x is left out: .*Europe/Roma", done.stderr)


def test_the_next_times_of_one_or_all(home: Path, one_url: str, mail: Queue) -> None:
    shown = json.loads(said(bide(home, "cron", "next", "nine", "-n", "4", "--json", url=one_url)))
    times = [datetime.fromisoformat(one["at"]) for one in shown["times"]]
    assert times == mail.schedules.next("nine", 4)
    assert 0 < shown["times"][0]["in"] <= 86_400 + 3_600
    lines = said(bide(home, "cron", "next", url=one_url)).splitlines()
    assert len(lines) == 11
    assert sum("hourly" in line for line in lines) == 3, "it has a limit"


def test_one_is_run_now(home: Path, one_url: str, mail: Queue) -> None:
    before = mail.schedules.fetch("hourly")
    id = said(bide(home, "cron", "run", "hourly", url=one_url)).split()[0]
    assert id.startswith("hourly@")
    assert mail.fetch(id).schedule == "hourly"
    assert mail.schedules.fetch("hourly") == before
    shown = said(bide(home, "jobs", "show", id, url=one_url))
    assert "schedule   hourly, run by hand" in shown


def test_a_job_says_of_which_time_it_is(home: Path, one_url: str, mail: Queue) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    mail.schedules.upsert("once", GREET, at=[at])
    body = mail._client._redis.hget(mail.keys["scheduled"], "once")
    id = f"once@{round(at.timestamp() * 1e6)}"
    with closing(mail._client._redis.pipeline()) as pipe:
        pipe.hset(mail.keys["jobs"], id, body)
        pipe.zadd(mail.keys.names["due"][4], {id: round(at.timestamp() * 1e6)})
        pipe.execute()
    local = at.astimezone()
    shown = said(bide(home, "jobs", "show", id, url=one_url))
    assert f"schedule   once, for {local:%F %T}.000" in shown
    (job,) = json.loads(said(bide(home, "jobs", "show", id, "--json", url=one_url)))["jobs"]
    assert (job["schedule"], job["schedule_time"]) == ("once", at.isoformat())
    plain = mail.enqueue(GREET, job_id="x@1795215600000000", delay=60)
    shown = said(bide(home, "jobs", "show", plain.id, url=one_url))
    assert "schedule" not in shown, "an id may look like that of a schedule's job"
    (job,) = json.loads(said(bide(home, "jobs", "show", plain.id, "--json", url=one_url)))["jobs"]
    assert (job["schedule"], job["schedule_time"]) == (None, None)


def test_pausing_resuming_removing(home: Path, one_url: str, mail: Queue) -> None:
    assert "bide cron resume nine" in said(bide(home, "cron", "pause", "nine", url=one_url))
    assert mail.schedules.fetch("nine").paused
    assert "next at" in said(bide(home, "cron", "resume", "nine", url=one_url))
    assert not mail.schedules.fetch("nine").paused
    done = said(bide(home, "cron", "delete", "nine", "hourly", url=one_url))
    assert done == "nine is deleted.\nhourly is deleted.\n"
    assert mail.schedules.all() == []


def test_what_is_not_there_or_not_clear(home: Path, one_url: str, mail: Queue) -> None:
    assert "did you mean 'nine'?" in error_of(bide(home, "cron", "delete", "nina", url=one_url), 3)
    assert "`bide cron ls` lists" in error_of(bide(home, "cron", "delete", "zzz", url=one_url), 3)
    with closing(Queue("other", url=one_url)) as other:
        other.schedules.upsert("nine", GREET, every=5)
        assert "add --queue" in error_of(bide(home, "cron", "delete", "nine", url=one_url), 2)
        said(bide(home, "cron", "delete", "nine", "-q", "other", url=one_url))
        assert other.schedules.all() == []
    assert len(mail.schedules.all()) == 2


def test_info_says_which_queues_have_schedules(home: Path, one_url: str, mail: Queue) -> None:
    shown = said(bide(home, "info", url=one_url))
    assert "mail has 2 schedules, the next fires in " in shown
    report = json.loads(said(bide(home, "info", "--json", url=one_url)))
    assert report["queues"]["mail"]["schedules"] == 2
    mail.schedules.pause("nine")
    mail.schedules.delete("hourly")
    assert "mail has 1 schedule: `bide cron ls -q mail`" in said(bide(home, "info", url=one_url))
