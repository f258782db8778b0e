"""What schedules will fire, on the timeline: all of it to its end, or a word about what is not."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from datetime import timedelta
from heapq import merge
from typing import Any

import pytest

from bide import Queue
from bide.views import schedules
from bide.views._async import AsyncSite
from bide.views.job import mask_secrets
from tests.support.serving import Page


def drawn(page: Page, span: str) -> tuple[int, dict[str, Any]]:
    found = page.get("/api/timeline", span=span).json
    return sum(sum(each["scheduled"].values()) for each in found["stretches"]), found


@pytest.mark.slow
def test_each_minute_of_a_month_is_there(page: Page, mail: Queue) -> None:
    mail.schedules.upsert("tick", "shop:tick", cron="* * * * *", tz="Europe/Berlin")
    number, found = drawn(page, "month")
    assert 30 * 1440 - 1 <= number <= 30 * 1440 + 360
    assert (found["scheduled_until"], found["schedules_left_out"]) == (None, 0)
    assert "Jobs of cron expressions are shown" not in page.get("/", span="month").text


def test_an_interval_ends_with_its_limit(page: Page, mail: Queue) -> None:
    mail.schedules.upsert("tick", "shop:tick", every="1s", limit=50_000)
    assert drawn(page, "day")[0] == 50_000
    assert 3599 <= drawn(page, "hour")[0] <= 3631


def test_an_interval_ends_with_its_end(page: Page, mail: Queue) -> None:
    first = mail.schedules.upsert("tick", "shop:tick", every="1s").next
    assert first is not None
    end = first + timedelta(seconds=40)
    mail.schedules.upsert("tick", "shop:tick", every="1s", end=end)
    assert 39 <= drawn(page, "hour")[0] <= 41


def test_what_is_not_drawn_is_told(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "TIMES", 25)
    mail.schedules.upsert("one", "shop:tick", cron="* * * * *")
    mail.schedules.upsert("two", "shop:tick", cron="*/2 * * * *", tz="Europe/Berlin")
    number, found = drawn(page, "hour")
    assert number == 25
    until = found["scheduled_until"]
    assert max(each["at"] for each in found["stretches"]) <= until < found["to"]
    assert "Jobs of cron expressions are shown only until" in page.get("/").text


def test_schedules_that_are_not_read_are_told(
    page: Page, mail: Queue, one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "MOST", 2)
    with closing(Queue("orders", url=one_url)) as orders:
        for queue in (mail, orders):
            for name in ("one", "two"):
                queue.schedules.upsert(name, "shop:tick", every="10m")
    assert drawn(page, "hour")[1]["schedules_left_out"] == 2
    assert "2 more schedules are not shown" in page.get("/").text


def test_whoever_else_is_served_does_not_wait_for_it(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.schedules.upsert("one", "shop:tick", cron="* * * * *")
    found: list[set[str]] = []

    def watched(*iterators: Any) -> Any:
        found.append({threading.current_thread().name})
        return merge(*iterators)

    monkeypatch.setattr(schedules, "merge", watched)
    drawn(page, "hour")
    assert found
    assert all("asyncio" in name for (name,) in found), "a thread of its own"


def test_a_second_look_does_not_reckon_again(
    mail: Queue, one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.schedules.upsert("one", "shop:tick", cron="0 0 * * *")

    async def look_twice() -> None:
        site = AsyncSite(one_url, None, None, mask_secrets)
        span = (4_000_000_000_000_000, 4_000_864_000_000_000, 864_000_000_000)
        try:
            first = await schedules.schedule_times(site, {"mail": 1}, *span)
            assert first.counts["mail"].total() == 10
            monkeypatch.setattr(schedules, "merge", None)
            assert await schedules.schedule_times(site, {"mail": 1}, *span) == first
        finally:
            await site.client.close()

    asyncio.run(look_twice())
