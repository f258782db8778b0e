"""`bide fsck` as its users see it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
import redis

from bide import Queue
from bide.protocol.keys import keys_of
from tests.support.console import bide

KEYS = keys_of("mail")


@pytest.fixture
def job(one_url: str) -> str:
    with closing(Queue("mail", url=one_url)) as queue:
        return queue.enqueue("app:task", job_id="order-17").id


def test_a_clean_server_says_so(home: Path, one_url: str, job: str) -> None:
    done = bide(home, "fsck", url=one_url)
    assert (done.returncode, done.stdout) == (0, "All agrees.\n")


def test_each_finding_is_a_line_and_says_what_was_done(home: Path, one_url: str, job: str) -> None:
    with redis.Redis.from_url(one_url) as direct:
        direct.zrem(KEYS.names["due"][4], job)
        direct.hset(KEYS["meta"], "colour", "red")
        looked = bide(home, "fsck", url=one_url)
        assert looked.returncode == 1
        assert looked.stdout.splitlines() == [
            "mail  unknown    colour is a field of meta that this version of bide does not know; "
            "left as it is",
            "mail  unlisted   order-17 has a body, and no set lists it; with --repair it becomes "
            "due now",
            "2 findings; `bide fsck --repair` repairs 1 of them.",
        ]
        assert direct.zcard(KEYS.names["due"][4]) == 0
        repaired = bide(home, "fsck", "--repair", url=one_url)
        assert repaired.returncode == 1
        assert repaired.stdout.splitlines()[1:] == [
            "mail  unlisted   order-17 has a body, and no set lists it; becomes due now",
            "1 finding repaired, 1 is left as it is.",
        ]
        assert direct.zcard(KEYS.names["due"][4]) == 1


def test_findings_as_json(home: Path, one_url: str, job: str) -> None:
    with redis.Redis.from_url(one_url) as direct:
        direct.hset(KEYS["results"], job, "1")
    done = bide(home, "fsck", "--repair", "--json", "-q", "mail", url=one_url)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (1, False)
    assert report["findings"] == [
        {
            "queue": "mail",
            "kind": "result",
            "id": "order-17",
            "says": "has a result, but is due:5",
            "fix": "its result is removed",
            "repaired": True,
        }
    ]
    clean = json.loads(bide(home, "fsck", "--json", url=one_url).stdout)
    assert (clean["ok"], clean["findings"]) == (True, [])


def test_what_is_odd_is_shown_and_moves_no_cursor(home: Path, one_url: str, job: str) -> None:
    with redis.Redis.from_url(one_url) as direct:
        direct.hset(KEYS["run"], b"\x1b[2J\xff", "x")
    done = bide(home, "fsck", url=one_url)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout


def test_a_queue_that_was_never_used_is_not_found(home: Path, one_url: str, job: str) -> None:
    done = bide(home, "fsck", "-q", "mial", url=one_url)
    assert done.returncode == 3
    assert "did you mean 'mail'?" in done.stderr
