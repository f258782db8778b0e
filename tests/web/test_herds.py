"""Herds: none may hide, in however much else is due; and how long one takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bide import Queue, Worker
from bide.ops.ahead import Timeline
from bide.web.reads import herds
from tests.web.serving import Page


def fine(order: int) -> int:
    return order


def soon(**later: float) -> datetime:
    """A whole six hours, which are a stretch of a month's timeline, from tomorrow on."""
    at = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return at + timedelta(days=2) + timedelta(**later)


def at_once(mail: Queue, at: datetime, number: int) -> None:
    mail.enqueue_many([mail.prepare("shop:remind", (i,), at=at) for i in range(number)])


def spread(mail: Queue, at: datetime, number: int) -> None:
    """One a minute: many in a stretch, and no herd."""
    mail.enqueue_many(
        [mail.prepare("shop:remind", (i,), at=at + timedelta(minutes=i)) for i in range(number)]
    )


def listed(page: Page, span: str = "month") -> tuple[list[tuple[datetime, int]], int]:
    found: dict[str, Any] = page.get("/api/timeline", span=span).json
    ahead = [(datetime.fromisoformat(one["at"]), one["count"]) for one in found["herds"]]
    return ahead, found["unlisted"]


def test_one_is_found_beside_stretches_that_are_fuller(page: Page, mail: Queue) -> None:
    for i in range(4):
        spread(mail, soon(hours=6 * i), 300)
    at = soon(days=2, minutes=17, seconds=3)
    at_once(mail, at, 100)
    assert listed(page) == ([(at, 100)], 0)


def test_one_is_found_in_a_stretch_that_is_fuller_elsewhere(page: Page, mail: Queue) -> None:
    at = soon(hours=3, seconds=7)
    at_once(mail, at, 120)
    for i in range(150):  # 150 in a quarter of an hour, six seconds apart
        mail.enqueue("shop:remind", i, at=soon(seconds=6 * i))
    assert listed(page) == ([(at, 120)], 0)


def test_halves_of_a_second_are_one(page: Page, mail: Queue) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=40)
    at_once(mail, at, 60)
    at_once(mail, at + timedelta(milliseconds=700), 60)
    assert listed(page, "minute") == ([(at, 120)], 0)


def test_how_large_one_may_be_that_was_not_found_is_told(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(herds, "CALLS", 8)
    monkeypatch.setattr(herds, "_AT_ONCE", 1)
    at = soon(days=3)
    at_once(mail, at, 400)
    for i in range(6):
        spread(mail, soon(hours=6 * i), 300)
    assert listed(page) == ([(at, 400)], 300)
    assert "more herds than are listed, of 300 jobs at most" in page.get("/", span="month").text


def test_how_large_one_is_that_is_not_listed_is_told(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(herds, "SHOWN", 2)
    for i, number in enumerate((110, 150, 130)):
        at_once(mail, soon(hours=i), number)
    assert listed(page) == ([(soon(hours=1), 150), (soon(hours=2), 130)], 110)


def test_its_rate_is_of_what_ran_though_none_is_kept(page: Page, mail: Queue) -> None:
    jobs = mail.enqueue_many([mail.prepare(fine, (i,)) for i in range(30)])
    Worker([mail], modules=[__name__]).work(burst=True)
    for job in jobs:
        job.delete()
    at_once(mail, soon(), 100)
    (herd,) = page.get("/api/timeline", span="month").json["herds"]
    assert 0 < herd["per_second"] <= 0.5
    assert herd["takes"] == pytest.approx(100 / herd["per_second"])


def test_one_that_is_overdue_is_not_ahead() -> None:
    line = Timeline(2_500_000, 0, 1_000_000, 0, 0, (100, 100, 100, 99), (0,) * 4, (0,) * 4)
    assert [place.at_us for place in herds._full("mail", line)] == [2_000_000]
