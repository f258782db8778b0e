"""What has been: how late jobs began, in figures too; and what is said of what is not kept."""

from __future__ import annotations

import re

import pytest
import redis

from bide import Queue, Retention, Worker
from bide.model.latency import LONGEST, MINUTE_US
from bide.protocol.keys import keys_of
from tests.support.serving import Page


def fine(order: int) -> int:
    return order


def work(mail: Queue, number: int) -> None:
    mail.enqueue_many([mail.prepare(fine, (i,)) for i in range(number)])
    Worker([mail], modules=[__name__]).run(burst=True)


def write(url: str, line: str) -> None:
    """Have counts in the minute before this one."""
    with redis.Redis.from_url(url) as server:
        seconds, _ = server.time()
        this = int(seconds) * 1_000_000 // MINUTE_US
        server.hset(keys_of("mail", "bide")["minutes"], str(this - 1), line)


def test_the_heat_map_is_a_table_too(page: Page, mail: Queue, one_url: str) -> None:
    mail.enqueue(fine, 1, delay=60)
    write(one_url, "l0=1234 l9=7 l32=3")
    text = page.get("/lateness").text
    table = re.search(r'<details class="as-table".*?</details>', text, re.DOTALL)
    assert table
    (row,) = re.findall(r"<tr><th.*?</tr>", table[0].partition("<tbody>")[2], re.DOTALL)
    cells = dict(re.findall(r'data-label="([^"]*)">([\d,]+)<', row))
    assert {name: n for name, n in cells.items() if n != "0"} == {
        "below 1ms": "1,234",
        "below 128ms": "7",
        "more": "3",
    }


def test_who_was_later_than_can_be_told_was_so_late_or_more(
    page: Page, mail: Queue, one_url: str
) -> None:
    mail.enqueue(fine, 1, delay=60)
    write(one_url, "l0=98 l32=2")
    found = page.get("/api/lateness").json
    assert found["longest"] == LONGEST
    assert found["queues"]["mail"]["p99"] == LONGEST
    for path in ("/lateness", "/queue?q=mail"):
        text = page.get(path).text
        assert text.count("6d5h or more") == 1


def test_how_late_jobs_began_is_told_though_none_is_kept(page: Page, mail: Queue) -> None:
    work(mail, 3)
    mail.purge()
    for job in mail.jobs("completed"):
        job.delete()
    assert page.get("/api/queue", q="mail").json["lateness"]["began"] == 3
    assert "3 started" in page.get("/queue", q="mail").text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("span", "kept", "is_told"),
    [
        ("hour", Retention(completed="1h", failed="1h"), False),
        ("day", Retention(completed="1h", failed="1h"), True),
        ("day", Retention(completed="1d", failed="5m"), True),
        ("minute", Retention(completed=0), True),
        ("minute", Retention(count=3), True),
        ("minute", Retention(count=4), False),
    ],
)
def test_it_is_told_where_the_past_may_be_forgotten(
    span: str, kept: Retention, is_told: bool, page: Page, mail: Queue
) -> None:
    mail.configure(retention=kept)
    work(mail, 3)
    found = page.get("/api/timeline", span=span).json["kept_for"]
    assert list(found) == ["mail"] * is_told
    assert (
        "Finished jobs are shown only while they are kept" in page.get("/", span=span).text
    ) is is_told
