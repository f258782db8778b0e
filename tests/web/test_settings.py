"""What an operator changes of a queue: limits, retention, groups; and what is retried."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime

import pytest

from bide import PauseQueue, Queue, Retention, Retry, Worker
from bide.web import app
from tests.support.serving import Page, serve
from tests.support.workers import at_work, eventually


def settings(desk: Page, queue: str = "mail") -> dict[str, str]:
    """The fields of the form of a queue, as the page shows them."""
    text = desk.get("/queue", q=queue).text
    form = text[text.index('id="settings"') :]
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', form)) | {"verb": "configure-queue"}


def of_group(desk: Page) -> dict[str, str]:
    """The same of the first group, which has a form in its row."""
    text = desk.get("/groups", q="mail").text
    form = text[text.index('class="limits"') :].partition("</form>")[0]
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', form)) | {"verb": "configure-group"}


OF_GROUPS = {"group_rate": "2/m", "group_burst": "3"}


def test_limits_and_retention_are_shown_and_changed(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    mail.configure(rate="100/s", concurrency=3)
    shown = settings(desk)
    assert (shown["rate"], shown["burst"], shown["concurrency"]) == ("100/s", "", "3")
    assert (shown["completed"], shown["count"], shown["results"]) == ("1d", "10000", "100MB")
    reply = desk.post(**shown | {"rate": "5/10m", "concurrency": "", "failed": "2h"} | OF_GROUPS)
    assert (reply.status, reply.headers["location"]) == (303, "/queue?q=mail")
    counts = mail.counts()
    assert (counts.limits.rate, counts.limits.concurrency) == ("5/10m", None)
    assert (counts.limits.group_rate, counts.limits.group_burst) == ("2/m", 3)
    assert counts.retention == Retention(86_400, 7_200, 86_400, 10_000, 100_000_000)
    desk.post(**settings(desk) | {"rate": "", "group_rate": "", "group_burst": ""})
    assert mail.counts().limits.rate is None
    text = desk.get("/queue", q="mail").text
    assert "failed 2h" in text
    assert re.search(r"<dt>Limits</dt><dd><span class=\"dim\">none", text)


def test_a_burst_that_follows_from_the_rate_follows_the_new_rate(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    mail.configure(rate="1000/s", group_rate="1000/s")
    assert mail.counts().limits.burst == 10
    shown = settings(desk)
    assert (shown["burst"], shown["group_burst"]) == ("", "")
    desk.post(**shown | {"rate": "10/m", "group_rate": "10/m"})
    limits = mail.counts().limits
    assert (limits.rate, limits.burst, limits.group_burst) == ("10/m", 1, 1)


def test_the_form_stands_on_the_page_once(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    text = desk.get("/queue", q="mail").text
    assert text.count('id="settings"') == 1
    assert "<title>mail · bide</title>" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate": "many"}, "rate must be how many in which time"),
        ({"concurrency": "0"}, "concurrency must be a whole number from 1"),
        ({"concurrency": "x"}, "concurrency=&#39;x&#39; is not a whole number"),
        ({"burst": "3"}, "give it along with rate="),
        ({"group_burst": "3"}, "give it along with group_rate="),
        ({"failed": "soon"}, "is not a duration"),
        ({"count": ""}, "Give the retention of each state"),
        ({"results": "x"}, "must be a size such as 500MB"),
    ],
)
def test_what_is_invalid_is_said_beside_what_was_sent(
    desk: Page, mail: Queue, change: dict[str, str], says: str
) -> None:
    mail.enqueue("shop:remind", delay=60)
    mail.configure(retention=Retention(completed="3d"))
    before = mail.counts()
    reply = desk.post(**settings(desk) | change)
    assert reply.status == 400
    assert says in reply.text
    ((name, value),) = change.items()
    assert f'name="{name}" value="{value}"' in reply.text, "nothing has to be typed again"
    assert "data-part" not in reply.text, "or the page would take it away"
    after = mail.counts()
    assert (after.limits, after.retention) == (before.limits, before.retention)


@pytest.mark.parametrize("size", [1_234_567_890, 10**15, 2_500_000_000])
def test_the_size_of_results_is_exact(size: int, desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    mail.configure(retention=Retention(results=size))
    assert desk.post(**settings(desk) | {"count": "7"}).status == 303
    assert mail.counts().retention == Retention(86_400, 30 * 86_400, 86_400, 7, size)


def test_what_another_has_changed_meanwhile_is_not_lost(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    form = settings(desk) | {"rate": "7/s"}
    mail.configure(concurrency=9)
    reply = desk.post(**form)
    assert reply.status == 409
    assert "concurrency 9" in reply.text
    assert (mail.counts().limits.rate, mail.counts().limits.concurrency) == (None, 9)
    again = dict(re.findall(r'name="(\w+)" value="([^"]*)"', reply.text))
    assert again["rate"] == "7/s"
    assert desk.post(**again | {"verb": "configure-queue", "concurrency": "9"}).status == 303
    assert (mail.counts().limits.rate, mail.counts().limits.concurrency) == ("7/s", 9)


def test_what_the_code_declares_is_shown_beside_a_field_and_comes_back(
    desk: Page, page: Page, mail: Queue, one_url: str
) -> None:
    kept = Retention(completed="2d", count=7)
    Worker([Queue("mail", url=one_url, rate="5/s", concurrency=3, retention=kept)]).run(burst=True)
    assert "Use it again" not in desk.get("/queue", q="mail").text
    mail.configure(rate="9/s", burst=2, concurrency=None, retention=Retention(count=9))
    text = desk.get("/queue", q="mail").text
    assert "Jobs that may start: the code declares 5/s, 1 at once after a quiet time<" in text
    assert "Jobs that may run: the code declares 3<" in text
    assert "Retention: the code declares completed 2d" in text
    assert text.count("Use it again") == 3
    assert "declared-group_rate" not in text
    text = page.get("/queue", q="mail").text
    assert "(the code declares 5/s, 3 at once, without effect)" in text
    assert "Use it again" not in text
    limits = page.get("/api/queue", q="mail").json["counts"]["limits"]
    assert (limits["overridden"]["rate"], limits["overridden"]["concurrency"]) == ("5/s", 3)
    assert limits["overridden"]["retention"]["completed"] == 172_800
    for name in ("rate", "retention"):
        assert desk.post(verb=f"declared-{name}", q="mail").status == 303
    counts = mail.counts()
    assert (counts.limits.rate, counts.limits.burst, counts.retention.count) == ("5/s", 1, 7)
    assert counts.overridden == {"concurrency": 3}
    reply = desk.post(verb="declared-group_rate", q="mail")
    assert (reply.status, "has declared group_rate=" in reply.text) == (400, True)
    assert page.post(verb="declared-concurrency", q="mail").status == 403
    assert mail.counts().overridden == {"concurrency": 3}


def test_a_hold_is_shown_and_ended(desk: Page, page: Page, mail: Queue) -> None:
    mail.enqueue(hold)
    Worker([mail], modules=[__name__]).run(burst=True)
    assert mail.counts().limits.held_until is not None
    for each in (desk, page):
        assert "A job has paused this queue" in each.get("/queue", q="mail").text
    assert desk.post(verb="resume", q="mail").status == 303
    assert mail.counts().limits.held_until is None
    assert "A job has paused this queue" not in desk.get("/queue", q="mail").text


def hold() -> None:
    raise PauseQueue("1h")


def test_limits_of_a_group(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60, group="g")
    form = {"verb": "configure-group", "q": "mail"}
    reply = desk.post(**of_group(desk) | {"concurrency": "4", "rate": "10/m", "burst": "2"})
    assert (reply.status, reply.headers["location"]) == (303, "/groups?q=mail")
    counts = mail.group("g").counts()
    assert (counts.concurrency, counts.rate, counts.burst) == (4, "10/m", 2)
    text = desk.get("/groups", q="mail").text
    assert 'name="rate" value="10/m"' in text
    assert desk.post(**form, group="new", rate="1/s").status == 303
    assert mail.group("new").counts().rate == "1/s"
    assert desk.post(**of_group(desk) | {"rate": ""}).status == 303
    assert desk.post(**of_group(desk)).status == 303, "nothing is changed"
    counts = mail.group("g").counts()
    assert (counts.concurrency, counts.rate) == (4, None)
    desk.post(**of_group(desk) | {"concurrency": ""})
    assert not mail.group("g").counts().is_configured
    mail.configure(group_rate="7/m")
    text = desk.get("/groups", q="mail").text
    assert 'name="rate" value="" size="8" maxlength="40" placeholder="7/m"' in text
    assert 'name="rate" value="1/s"' in text, "that of the other group is its own"
    counts = mail.group("g").counts()
    for wrong in ({"group": ""}, {"group": "g", "rate": "x"}, {"group": "g", "concurrency": "x"}):
        assert desk.post(**form, **wrong).status == 400
    assert desk.post(**form, group="g").status == 400, "no limit is given"
    assert mail.group("g").counts() == counts


def test_a_changed_rate_of_a_group_has_its_own_burst(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60, group="g")
    mail.group("g").configure(rate="1000/s")
    desk.post(**of_group(desk) | {"rate": "10/m"})
    assert mail.group("g").counts().burst == 1
    desk.post(**of_group(desk) | {"burst": "3"})
    assert mail.group("g").counts().burst == 3
    desk.post(verb="configure-group", q="mail", group="g", concurrency="2")
    counts = mail.group("g").counts()
    assert (counts.concurrency, counts.rate, counts.burst) == (2, "10/m", 3), "it left them empty"


def test_what_another_has_changed_of_a_group_meanwhile_is_not_lost(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60, group="g")
    form = of_group(desk) | {"rate": "7/m"}
    mail.group("g").configure(concurrency=3)
    reply = desk.post(**form)
    assert (reply.status, "concurrency 3, rate none" in reply.text) == (409, True)
    counts = mail.group("g").counts()
    assert (counts.concurrency, counts.is_configured, counts.rate) == (3, True, None)


def test_a_viewer_changes_nothing(page: Page, desk: Page, mail: Queue, one_url: str) -> None:
    mail.enqueue("shop:remind", delay=60, group="g")
    form = settings(desk) | {"rate": "7/s"}
    group = {"verb": "configure-group", "q": "mail", "group": "g", "rate": "7/s"}
    with serve(app(url=one_url, local_role="operator", queues=["orders"])) as other:
        for each in (form, group):
            assert page.post(**each).status == 403
            assert desk.post({"sec-fetch-site": "cross-site"}, **each).status == 403
            assert other.post(**each).status == 404
    assert "configure" not in page.get("/queue", q="mail").text
    assert "configure" not in page.get("/groups", q="mail").text
    assert mail.counts().limits.rate is mail.group("g").counts().rate is None


def broken(order: int) -> None:
    raise ValueError(f"card of order {order} was declined")


def late(order: int) -> None:
    raise TimeoutError("no answer")


def run_all(url: str) -> None:
    with closing(Queue("mail", url=url)) as queue:
        Worker([queue], modules=[__name__], concurrency=4).run(burst=True)


def test_all_failed_jobs_of_one_kind_are_retried(desk: Page, mail: Queue, one_url: str) -> None:
    ids = [mail.enqueue(broken, n).id for n in range(3)]
    other = mail.enqueue(late, 7).id
    run_all(one_url)
    text = desk.get("/failures").text
    kind = "ValueError: card of order # was declined"
    assert f'name="kind" value="{kind}"' in text
    form = {"verb": "retry", "state": "failed", "kind": kind}
    assert "Retry 3 jobs" in desk.post(**form).text
    assert "3 jobs retried" in desk.post(**form, sure="3").text
    assert {str(job and job.state) for job in mail.fetch_many(ids)} == {"waiting"}
    assert mail.fetch(other).state == "failed"


def test_what_will_be_retried(desk: Page, page: Page, mail: Queue, one_url: str) -> None:
    for n in range(2):
        mail.enqueue(broken, n, retry=Retry(3, [3600]))
    mail.enqueue("shop:remind", delay="2h")
    run_all(one_url)
    found = page.get("/api/failures").json
    assert (found["groups"], found["total"]) == ([], 0)
    retrying = found["retrying"]
    assert (retrying["looked"], retrying["total"]) == (3, 3)
    (group,) = retrying["groups"]
    assert (group["kind"], group["count"]) == ("ValueError: card of order # was declined", 2)
    assert "Waiting for a retry" in page.get("/failures").text
    text = desk.get("/failures").text
    assert 'name="state" value="delayed"' in text
    form = {"verb": "promote", "kind": group["kind"], "state": "delayed"}
    assert "2 jobs made due now" in desk.post(**form, sure="2").text


def test_last_runs_of_a_schedule(page: Page, mail: Queue) -> None:
    mail.schedules.upsert("often", late, [1], every="20ms")
    assert page.get("/api/schedule", q="mail", name="often").json["runs"] == []
    assert "It has not fired yet" in page.get("/schedule", q="mail", name="often").text
    with at_work(mail, modules=(__name__,)):
        eventually(lambda: mail.schedules.fetch("often").fired >= 12)
        mail.schedules.pause("often")
        eventually(lambda: not mail.counts().active + mail.counts().waiting)
    runs = page.get("/api/schedule", q="mail", name="often").json["runs"]
    times = [run["schedule_time"] for run in runs]
    last = mail.schedules.fetch("often").last
    assert last is not None
    assert times == sorted(times, reverse=True)
    assert datetime.fromisoformat(times[0]) == last
    assert len(runs) == 10
    assert {run["state"] for run in runs} == {"failed"}
    text = page.get("/schedule", q="mail", name="often").text
    assert text.count("TimeoutError: no answer") == 10
