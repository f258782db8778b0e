"""What has failed, of many queues and many jobs: one bound over all, and a page that says it."""

from __future__ import annotations

import gc
import html
import re
from collections.abc import Sequence
from contextlib import closing
from urllib.parse import parse_qs

import pytest
import redis

from bide import Queue, Retry, Worker
from bide.model.job import Snapshot
from bide.model.payload.body import ErrorInfo
from bide.queue.select import kind_of
from bide.views._async import AsyncSite
from tests.support.serving import Page


def broken(order: int) -> None:
    raise ValueError(f"card of order {order} was declined")


def fail(url: str, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        with closing(Queue(name, url=url)) as queue:
            queue.enqueue_many([queue.prepare(broken, (i,), retry=0) for i in range(size)])
            Worker([queue], modules=[__name__], concurrency=4).run(burst=True)


@pytest.mark.slow
def test_failures_are_grouped_by_what_went_wrong(page: Page, mail: Queue, one_url: str) -> None:
    mail.enqueue("gone:missing", retry=0)
    fail(one_url, {"mail": 3})
    groups = page.get("/api/failures").json["groups"]
    assert (groups[0]["error"], groups[0]["count"]) == ("ValueError", 3)
    assert groups[0]["tasks"] == {f"{__name__}:broken": 3}


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("no order 7", "no order 1234", True),
        ("no order 'a 1'", 'no order "b"', True),
        ("no order 'a'", "no order 'b'", True),
        (
            "no order 7c9e6679-7425-40de-944b-e07fc1f90ae7",
            "no order 16fd2706-8baf-433b-82eb-8c7fada847da",
            True,
        ),
        ("can't read Ann's card", "don't know Ann's card", False),
        (f"no order '{'a' * 300}'", f"no order '{'b' * 300}'", True),
        ("no order 'Ann's'", "no order 'Bob's'", True),
        ("no order 7", "no card 7", False),
    ],
)
def test_numbers_and_what_is_quoted_may_differ_within_a_kind(
    one: str, other: str, alike: bool
) -> None:
    kinds = {kind_of(ErrorInfo("ValueError", message)) for message in (one, other)}
    assert len(kinds) == (1 if alike else 2)


@pytest.mark.slow
def test_one_bound_is_shared_by_all_queues(
    page: Page, one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.views.jobs.LOOK_FAILED", 10)
    fail(one_url, {"few": 2, "many": 9, "more": 12})
    found = page.get("/api/failures").json
    assert (found["looked"], found["total"], found["left_out"]) == (10, 23, [])
    (group,) = found["groups"]
    assert group["queues"] == {"few": 2, "many": 4, "more": 4}
    text = page.get("/failures").text
    assert "10 of 23 failed jobs were searched: the newest of each queue." in text


def test_links_to_the_jobs_of_a_group_select_its_queue_and_states(
    page: Page, one_url: str, mail: Queue
) -> None:
    fail(one_url, {"mail": 1})
    mail.enqueue(broken, 2, retry=Retry(3, [3600]))
    Worker([mail], modules=[__name__]).run(burst=True)
    links = re.findall(r'href="/jobs\?([^"]*kind=[^"]*)"', page.get("/failures", q="mail").text)
    failed, retried = [parse_qs(html.unescape(link)) for link in links]
    assert (failed["state"], failed["q"]) == (["failed"], ["mail"])
    assert (retried["state"], retried["q"]) == (["delayed", "waiting"], ["mail"])


@pytest.mark.slow
def test_queues_that_are_not_looked_at_are_told(
    page: Page, one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.views.jobs.MOST_QUEUES", 1)
    fail(one_url, {"few": 1, "many": 3})
    found = page.get("/api/failures").json
    assert (found["looked"], found["total"], found["left_out"]) == (3, 4, ["few"])
    assert "but none of the 1 queues with the fewest failed jobs" in page.get("/failures").text


@pytest.mark.slow
def test_a_group_keeps_counts_and_no_jobs(
    page: Page, one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(one_url, {"mail": 20})
    monkeypatch.setattr("bide.queue._async.scan._READ", 2)
    held: list[int] = []
    fetch = AsyncSite.fetch

    async def watched(site: AsyncSite, queue: str, ids: Sequence[str]) -> list[Snapshot]:
        held.append(sum(type(each) is Snapshot for each in gc.get_objects()))
        return await fetch(site, queue, ids)

    monkeypatch.setattr(AsyncSite, "fetch", watched)
    (group,) = page.get("/api/failures").json["groups"]
    assert group["count"] == 20
    assert group["first"] <= group["last"]
    assert len(held) == 10
    assert held[-1] <= held[0] + 4


@pytest.mark.slow
def test_the_newest_of_a_group_is_its_sample(page: Page, one_url: str, mail: Queue) -> None:
    fail(one_url, {"mail": 3})
    newest = mail.enqueue(broken, 77, retry=0)
    Worker([mail], modules=[__name__]).run(burst=True)
    (group,) = page.get("/api/failures").json["groups"]
    assert group["sample"] == {"queue": "mail", "id": newest.id}
    assert "77" in group["message"]
    assert group["first"] < group["last"]


def test_one_whose_moment_is_damaged_does_not_hide_the_others(
    page: Page, one_url: str, direct: redis.Redis
) -> None:
    fail(one_url, {"mail": 3})
    for moment in (0, -5, float("inf"), float("-inf")):
        for job in page.get("/api/jobs", state="failed").json["jobs"]:
            direct.zadd("bide:{mail}:failed", {job["id"]: moment})
        assert page.get("/failures").status == 200, moment
        (group,) = page.get("/api/failures").json["groups"]
        assert group["count"] == 3
        assert group["sample"]["id"]
