"""Jobs that wait for others, on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bide import Queue
from tests.support.console import bide, said


@pytest.fixture
def mail(one_url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


@pytest.mark.slow
def test_for_whom_it_waits_and_because_of_whom_it_was_cancelled(
    home: Path, one_url: str, mail: Queue
) -> None:
    mail.enqueue("shop:boom", "no", job_id="first")
    told = said(
        bide(
            home,
            *("enqueue", "shop:greet", "-q", "mail", "--depends-on", "first", "--id", "second"),
            *("--in", "5m"),
            url=one_url,
        )
    )
    assert told == "second on mail: shop:greet, waits for 1 job\n"
    assert "blocked" in said(bide(home, "queues", "ls", url=one_url))
    assert "second" in said(bide(home, "jobs", "ls", "-s", "blocked", url=one_url))
    shown = said(bide(home, "jobs", "show", "second", url=one_url))
    assert re.search(r"due +5m after that", shown)
    assert re.search(r"not yet +it waits for first; no live worker serves", shown)
    said(bide(home, "worker", "shop", "--burst", "-q", "mail", url=one_url))
    shown = said(bide(home, "jobs", "show", "second", url=one_url))
    assert re.search(r"cancelled by +first", shown)
    (job,) = json.loads(said(bide(home, "jobs", "show", "second", "--json", url=one_url)))["jobs"]
    assert (job["parents"], job["waits_for"], job["cancelled_by"]) == (["first"], [], "first")


def test_one_that_waits_can_be_moved_and_made_to_run(home: Path, one_url: str, mail: Queue) -> None:
    mail.enqueue("shop:greet", job_id="first", delay=600)
    mail.enqueue("shop:greet", job_id="second", depends_on="first")
    listed = said(bide(home, "jobs", "ls", "-s", "blocked", url=one_url))
    assert re.search(r"second +blocked +– +shop:greet", listed)
    (job,) = json.loads(said(bide(home, "jobs", "show", "second", "--json", url=one_url)))["jobs"]
    assert job["due"] is None
    said(bide(home, "jobs", "reschedule", "second", "--at", "2035-01-01T00:00:00Z", url=one_url))
    shown = said(bide(home, "jobs", "show", "second", url=one_url))
    assert "if it does not wait any more by then" in shown
    listed = said(bide(home, "jobs", "ls", "-s", "blocked", url=one_url))
    assert re.search(r"second +blocked +in ", listed)
    said(bide(home, "jobs", "promote", "second", url=one_url))
    assert mail.fetch("second").state == "waiting"
