"""Bursts: each is found beside other jobs that are due, and its time to run is estimated."""

from __future__ import annotations

import io
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from rich.console import Console

from bide import Queue, Worker
from bide.cli.overview import _picture
from bide.client import blocking
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.jobs import Timeline
from bide.protocol.commands.queues import WorkerReport
from bide.protocol.keys import keys_of
from bide.views import timeline
from tests.support.serving import Page


def fine(order: int) -> int:
    return order


def soon(**later: float) -> datetime:
    """A whole six hours, which are a stretch of a month's timeline, from tomorrow on."""
    at = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return at + timedelta(days=2) + timedelta(**later)


def at_once(mail: Queue, at: datetime, number: int) -> None:
    mail.enqueue_many([mail.prepare("shop:remind", (i,), at=at) for i in range(number)])


def spread(mail: Queue, at: datetime, number: int) -> None:
    """One a minute: many in a stretch, and no burst."""
    mail.enqueue_many(
        [mail.prepare("shop:remind", (i,), at=at + timedelta(minutes=i)) for i in range(number)]
    )


def listed(page: Page, span: str = "month") -> tuple[list[tuple[datetime, int]], int]:
    found: dict[str, Any] = page.get("/api/timeline", span=span).json
    ahead = [(datetime.fromisoformat(one["at"]), one["count"]) for one in found["bursts"]]
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
    monkeypatch.setattr(timeline, "CALLS", 8)
    monkeypatch.setattr(timeline, "_AT_ONCE", 1)
    at = soon(days=3)
    at_once(mail, at, 400)
    for i in range(6):
        spread(mail, soon(hours=6 * i), 300)
    assert listed(page) == ([(at, 400)], 300)
    assert "more bursts, each of 300 jobs at most" in page.get("/", span="month").text


def test_how_large_one_is_that_is_not_listed_is_told(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "SHOWN", 2)
    for i, number in enumerate((110, 150, 130)):
        at_once(mail, soon(hours=i), number)
    assert listed(page) == ([(soon(hours=1), 150), (soon(hours=2), 130)], 110)


def alive(mail: Queue, name: str, concurrency: int, *queues: str) -> None:
    """A worker that is heard of."""
    about = WorkerReport("host", 1, list(queues or ("mail",)), concurrency=concurrency)
    client = blocking.Client(mail.url)
    client.run(queue_commands.heartbeat(keys_of(None), name, about))
    client.close()


def ran(direct: redis.Redis, line: str, ago: int = 1) -> None:
    """What is counted of attempts that ended in a minute: `r10=4`, 4 took 0.128 s to 0.256 s."""
    direct.hset(keys_of("mail")["minutes"], f"{int(time.time() // 60) - ago}", line)


MEAN = 0.192
"""Seconds, of such as `r10`."""


def estimate(page: Page) -> tuple[float | None, str, str]:
    """Seconds for the one burst; the sentences that the page and `bide top` have."""
    (burst,) = page.get("/api/timeline", span="month").json["bursts"]
    text = " ".join(re.sub("<[^>]*>", " ", page.get("/", span="month").text).split())
    (shown,) = re.findall(r"(?:Running them|How long it) takes .*?\.(?= Show)", text)
    seen = {
        "timeline": page.get("/api/timeline", span="month").json,
        "queues": page.get("/api/queues").json,
        "workers": page.get("/api/workers").json,
    }
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(_picture(seen, "server", 200))
    (top,) = re.findall(r"UTC; time to run: (.*?) *\n", console.export_text())
    return burst["takes"], shown, top


def test_its_time_is_estimated_from_how_long_attempts_took_and_how_many_run_at_once(
    page: Page, mail: Queue, direct: redis.Redis
) -> None:
    at_once(mail, soon(), 1_000)
    assert estimate(page) == (
        None,
        "How long it takes to run them is not known: no live worker serves the queue.",
        "not known",
    )
    alive(mail, "w1", 7)
    alive(mail, "w2", 3, "mail", "other")
    alive(mail, "w3", 50, "other")
    assert estimate(page) == (
        None,
        "How long it takes to run them is not known: no attempt has ended in the last hour.",
        "not known",
    )
    ran(direct, "l3=4 r10=3")
    ran(direct, "r10=1", ago=50)
    ran(direct, "r32=9", ago=70)
    takes, shown, top = estimate(page)
    assert takes == pytest.approx(1_000 * MEAN / 10)
    assert shown == (
        "Running them takes about 19s: an attempt took 192ms on average in the last hour, "
        "and 10 run at once."
    )
    assert top == "about 19s"
    mail.pause()
    assert estimate(page) == (
        None,
        "How long it takes to run them is not known: the queue is paused.",
        "not known",
    )


def test_its_time_is_no_shorter_than_the_limits_of_the_queue_allow(
    page: Page, mail: Queue, direct: redis.Redis
) -> None:
    at_once(mail, soon(), 100)
    alive(mail, "w1", 100)
    ran(direct, "r10=1")
    assert estimate(page)[0] == pytest.approx(MEAN)
    mail.configure(concurrency=5)
    assert estimate(page)[0] == pytest.approx(100 * MEAN / 5)
    mail.configure(rate="5/10s")
    takes, shown, _ = estimate(page)
    assert takes == pytest.approx(200)
    assert shown.endswith("and 5 run at once; the limit of the queue is 0.5/s.")


def test_what_ran_is_known_though_none_is_kept(page: Page, mail: Queue) -> None:
    jobs = mail.enqueue_many([mail.prepare(fine, (i,)) for i in range(30)])
    Worker([mail], modules=[__name__]).run(burst=True)
    for job in jobs:
        job.delete()
    alive(mail, "w1", 4)
    at_once(mail, soon(), 100)
    (burst,) = page.get("/api/timeline", span="month").json["bursts"]
    assert burst["takes"] == pytest.approx(100 * burst["run"] / 4)


def test_one_that_is_overdue_is_not_ahead() -> None:
    line = Timeline(2_500_000, 0, 1_000_000, 0, 0, (100, 100, 100, 99), (0,) * 4, (0,) * 4)
    assert [place.at_us for place in timeline._full("mail", line)] == [2_000_000]
