"""`bide queues forget`: a misspelt queue leaves the list, and a used one stays."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bide import Queue
from bide.cli import queues
from bide.errors import BideError
from bide.views._sync import Site
from tests.support.console import bide, error_of, said
from tests.support.workers import at_work, eventually


@pytest.fixture
def odrers(one_url: str) -> Iterator[Queue]:
    """A queue that is there because its name was misspelt; it holds a job."""
    with contextlib.closing(Queue("odrers", url=one_url)) as queue:
        queue.enqueue("shop:greet")
        yield queue


def listed(home: Path, url: str) -> list[str]:
    return [*json.loads(said(bide(home, "queues", "ls", "--json", url=url)))["queues"]]


def test_one_that_is_empty_is_forgotten(home: Path, one_url: str, odrers: Queue) -> None:
    odrers.purge()
    assert listed(home, one_url) == ["odrers"]
    assert said(bide(home, "queues", "forget", "odrers", url=one_url)) == "odrers is forgotten.\n"
    assert listed(home, one_url) == []
    assert said(bide(home, "fsck", url=one_url)) == "All agrees.\n"
    gone = error_of(bide(home, "queues", "forget", "odrers", url=one_url), 3)
    assert "There is no queue 'odrers'" in gone


def test_one_that_holds_something_stays_and_the_way_to_remove_that_is_told(
    home: Path, one_url: str, odrers: Queue
) -> None:
    odrers.pause()
    refused = error_of(bide(home, "queues", "forget", "odrers", url=one_url), 1)
    assert refused == (
        "Error: odrers holds 1 delayed, waiting or blocked job and is paused, so it is not "
        "forgotten; `bide queues purge odrers` removes them; `bide queues resume odrers` ends that."
    )
    assert listed(home, one_url) == ["odrers"]
    assert odrers.counts().waiting == 1
    said(bide(home, "queues", "purge", "odrers", "--yes", url=one_url))
    said(bide(home, "queues", "resume", "odrers", url=one_url))
    said(bide(home, "queues", "forget", "odrers", url=one_url))


def test_the_named_commands_remove_finished_jobs_and_settings_of_groups(
    home: Path, one_url: str, odrers: Queue
) -> None:
    for job in odrers.jobs("waiting"):
        job.cancel()
    odrers.group("g").configure(rate="1/s", concurrency=2)

    def named() -> list[str]:
        refused = error_of(bide(home, "queues", "forget", "odrers", url=one_url), 1)
        return re.findall("`bide (.*?)`", refused)

    (remove,) = named()
    said(bide(home, *shlex.split(remove), "--yes", url=one_url))
    show, limit = named()
    assert "1/s" in said(bide(home, *shlex.split(show), url=one_url))
    said(bide(home, *shlex.split(limit.replace("NAME", "g")), url=one_url))
    assert said(bide(home, "queues", "forget", "odrers", url=one_url)) == "odrers is forgotten.\n"


def test_one_that_a_worker_serves_stays(home: Path, one_url: str) -> None:
    with contextlib.closing(Queue("work", url=one_url)) as queue:
        with at_work(queue, name="web1") as worker:
            eventually(queue.workers)
            refused = error_of(bide(home, "queues", "forget", "work", url=one_url), 1)
            assert f"work is served by the worker {worker.name}; stop it first" in refused
        said(bide(home, "queues", "forget", "work", url=one_url))
        assert listed(home, one_url) == []


def test_a_job_that_comes_in_between_keeps_it_on_the_list(
    one_url: str, odrers: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list may be on another node than the queue, so no script sees both."""
    odrers.purge()
    site = Site(one_url, None)
    run = site.client.run

    def running(command: Any) -> Any:
        if command.script == "queue_unregister":
            odrers.enqueue("shop:greet")
        return run(command)

    monkeypatch.setattr(site.client, "run", running)
    with pytest.raises(BideError, match="odrers holds 1 delayed"):
        queues._forget(site, "odrers")
    assert site.queues() == ["odrers"]
    assert odrers.counts().waiting == 1
