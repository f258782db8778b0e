"""What an operator may change: one job, those of a range, those that fit a filter, a queue."""

from __future__ import annotations

import html
import itertools
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

import pytest
import redis

from bide import Queue, Retry, Worker
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.queue.select import spread
from bide.web import app
from tests.support.serving import Page, Reply, serve
from tests.support.workers import at_work, eventually

AT = datetime(2030, 1, 1, tzinfo=UTC)
RANGE = {"from": "2030-01-01T00:00:00Z", "to": "2030-01-01T01:00:00Z"}


def broken(order: int) -> None:
    raise ValueError(f"order {order}")


def raising(message: str) -> None:
    raise ValueError(message)


def broken_again(order: int) -> None:
    raise ValueError(f"order {order}")


def due_in_the_range(mail: Queue, count: int) -> list[str]:
    jobs = [mail.prepare("shop:remind", (i,), at=AT + timedelta(seconds=i)) for i in range(count)]
    outside = mail.prepare("shop:remind", at=AT + timedelta(hours=1))
    return [job.id for job in mail.enqueue_many([*jobs, outside])[:-1]]


def test_one_job_is_changed_at_once(desk: Page, mail: Queue) -> None:
    job = mail.enqueue("shop:remind", delay=600)

    def does(**form: str) -> str:
        reply = desk.post(q="mail", id=job.id, **form)
        assert reply.status == 303
        assert reply.headers["location"] == f"/job?q=mail&id={job.id}"
        job.refresh()
        return str(job.state)

    before = job.due
    assert does(verb="reschedule", delay="2h") == "delayed"
    assert job.due - before > timedelta(hours=1)
    assert does(verb="promote") == "waiting"
    assert does(verb="cancel") == "cancelled"
    assert does(verb="retry") == "waiting"
    assert does(verb="cancel") == "cancelled"
    assert "1 job deleted" in desk.post(verb="delete", q="mail", id=job.id).text
    assert mail.fetch_many([job.id]) == [None]


def test_what_cannot_be_done_is_told_and_nothing_changed(desk: Page, mail: Queue) -> None:
    job = mail.enqueue("shop:remind", delay=600)
    text = desk.post(verb="retry", q="mail", id=job.id).text
    assert "0 jobs retried" in text
    assert "1 delayed" in text
    assert mail.counts().delayed == 1


def test_a_queue_is_paused_and_resumed(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=600)
    for verb, paused in (("pause", True), ("resume", False)):
        assert desk.post(verb=verb, q="mail").headers["location"] == "/queue?q=mail"
        assert mail.counts().paused is paused


BULK: dict[str, tuple[dict[str, str], Callable[[Queue], int]]] = {
    "cancel": ({"verb": "cancel"}, lambda mail: mail.counts().cancelled),
    "promote": ({"verb": "promote"}, lambda mail: mail.counts().waiting),
    "reschedule": (
        {"verb": "reschedule", "delay": "1h"},
        lambda mail: len(mail.upcoming(500, within="2h")),
    ),
    "reschedule at": (
        {"verb": "reschedule", "at": "2031-01-01T00:00:00Z"},
        lambda mail: sum(job.due.year == 2031 for job in mail.jobs("delayed", count=500)),
    ),
    "spread": (
        {"verb": "spread", "over": "10m"},
        lambda mail: len(mail.upcoming(500, within="10m")) + mail.counts().waiting,
    ),
}


@pytest.mark.parametrize("name", BULK)
def test_those_of_a_range_are_changed_and_no_others(name: str, desk: Page, mail: Queue) -> None:
    form, changed = BULK[name]
    due_in_the_range(mail, 230)
    asked = desk.post(**form, **RANGE)
    assert re.search(r"<h1>[\w ]+ 230 jobs", asked.text), "how many, first"
    assert changed(mail) == 0
    assert mail.counts().delayed == 231
    done = desk.post(**sure(asked))
    assert "<h1>230 jobs" in done.text
    assert changed(mail) == 230


def test_jobs_are_spread_evenly_in_their_order(desk: Page, mail: Queue) -> None:
    ids = due_in_the_range(mail, 60)
    desk.post(**sure(desk.post(verb="spread", over="10m", **RANGE)))
    due = [job.due for job in mail.fetch_many(ids) if job]
    assert due == sorted(due)
    steps = [(b - a).total_seconds() for a, b in itertools.pairwise(due)]
    assert all(9 < step < 11 for step in steps)


@pytest.mark.parametrize("count", [1, 7, 1000, 1001, 100_000])
def test_a_spread_has_bounded_steps(count: int) -> None:
    ids = [str(i) for i in range(count)]
    groups = spread(ids, 1_000_000)
    assert [id for some, _ in groups for id in some] == ids
    assert max(len(some) for some, _ in groups) <= 100
    times = [at for _, at in groups]
    assert times == sorted(set(times))
    assert 0 == times[0] <= times[-1] < 1_000_000


def test_those_that_fit_a_filter_are_retried(desk: Page, mail: Queue) -> None:
    mail.enqueue_many([mail.prepare(broken, (i,), retry=0) for i in range(5)])
    mail.enqueue("gone:missing", retry=0)
    Worker([mail], modules=[__name__], concurrency=2).run(burst=True)
    form = {"verb": "retry", "state": "failed", "error": "ValueError", "q": "mail"}
    failed = mail.counts().failed
    asked = desk.post(**form)
    assert "Retry 5 jobs?" in asked.text
    assert f"5 {__name__}:broken" in asked.text, "of which tasks"
    assert mail.counts().failed == failed
    assert "5 jobs retried" in desk.post(**sure(asked)).text
    assert mail.counts().failed == failed - 5


def test_a_range_of_too_many_is_changed_in_parts(
    desk: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.selection.MOST", 10)
    due_in_the_range(mail, 25)
    asked = desk.post(verb="cancel", **RANGE)
    assert "There are 25" in asked.text
    done = desk.post(**sure(asked))
    assert "15 more jobs are left" in done.text
    assert mail.counts().cancelled == 10
    done = desk.post(**sure(desk.post(**fields(done))))
    done = desk.post(**sure(desk.post(**fields(done))))
    assert mail.counts().cancelled == 25
    assert "Continue with" not in done.text


@pytest.mark.parametrize(
    "form",
    [
        {"verb": "spread", "over": "10000d"},
        {"verb": "reschedule", "at": "2030-01-01T00:30:00Z"},
        {"verb": "promote", "from": "2020-01-01T00:00:00Z"},
    ],
)
def test_parts_that_could_not_be_told_apart_are_refused(
    form: dict[str, str], desk: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.selection.MOST", 10)
    monkeypatch.setattr("bide.web.actions.MOST", 10)
    due_in_the_range(mail, 11)
    refused = desk.post(**{**RANGE, **form})
    assert refused.status == 400
    assert "choose a shorter range" in refused.text
    assert desk.post(**{**RANGE, "verb": "reschedule", "delay": "1m"}).status == 200


def test_a_filter_goes_on_where_it_has_stopped(
    desk: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.selection.LOOK", 10)
    ids = due_in_the_range(mail, 35)
    wanted = [*ids[:7], *ids[11:13], *ids[33:]]
    for id in wanted:
        mail.fetch(id).delete()
    mail.enqueue_many(
        [
            mail.prepare("shop:pay", job_id=id, at=AT + timedelta(seconds=ids.index(id)))
            for id in wanted
        ]
    )
    form = {"verb": "cancel", "state": "delayed", "task": "shop:pay"}
    page, parts = desk.post(**form), []
    for _ in range(20):
        if 'class="tools"' not in page.text:
            break
        found = re.search(r"Cancel (\d+) jobs?\?", page.text)
        if found:
            parts.append(int(found[1]))
            page = desk.post(**sure(page))
        else:
            assert "No job matches" in page.text or "Continue with" in page.text
            page = desk.post(**fields(page))
    assert "Continue with" not in page.text
    assert sum(parts) == len(wanted)
    assert len(parts) > 2
    assert mail.counts().cancelled == len(wanted)


def test_all_that_have_ended_are_deleted_part_by_part(
    desk: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.selection.LOOK", 10)
    for id in due_in_the_range(mail, 25):
        mail.fetch(id).cancel()
    page = desk.post(verb="delete", state="cancelled")
    for _ in range(10):
        if 'class="tools"' in page.text:
            page = desk.post(**fields(page))
    assert mail.counts().cancelled == 0
    assert "5 jobs deleted" in page.text


def test_no_more_is_changed_than_was_shown(desk: Page, mail: Queue) -> None:
    due_in_the_range(mail, 5)
    asked = desk.post(verb="cancel", **RANGE)
    mail.enqueue("shop:remind", at=AT)
    again = desk.post(**sure(asked))
    assert "There were 5" in again.text
    assert mail.counts().cancelled == 0
    assert "6 jobs cancelled" in desk.post(**sure(again)).text


@pytest.mark.slow
def test_what_has_failed_since_is_not_meant_and_none_twice(desk: Page, mail: Queue) -> None:
    def fail(*orders: int) -> None:
        mail.enqueue_many([mail.prepare(broken, (i,), retry=0) for i in orders])
        Worker([mail], modules=[__name__], concurrency=2).run(burst=True)

    fail(1, 2)
    asked = desk.post(verb="retry", state="failed", q="mail")
    mail.jobs("failed")[0].delete()
    fail(3)
    assert "1 job retried" in desk.post(**sure(asked)).text, "neither is the third"
    fail()
    assert "No job matches" in desk.post(**sure(asked)).text, "sent again, as by reloading"


def test_a_job_that_is_asked_to_stop_is_not_called_cancelled(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind")
    mail._client.run(worker_commands.claim(mail.keys, "w1", 1, 1, 60_000_000, 0))
    asked = desk.post(verb="cancel", q="mail", state="active")
    text = desk.post(**sure(asked)).text
    assert "<h1>1 running job asked to stop</h1>" in text
    assert "cancelled" not in text
    assert mail.jobs("active")[0].cancelling


def test_what_begins_meanwhile_is_not_asked_to_stop(one_url: str, mail: Queue) -> None:
    def take(task: str, kind: str, value: Any) -> Any:
        """A worker takes the job while it is looked at."""
        mail._client.run(worker_commands.claim(mail.keys, "w1", 1, 1, 60_000_000, 0))
        return value

    job = mail.enqueue("shop:remind", "ada")
    form = {"q": "mail", "verb": "cancel", "state": "waiting", "text": "ada"}
    with serve(app(url=one_url, mask=take, local_role="operator")) as desk:
        done = desk.post(**form, sure="1")
    assert "Skipped: 1 active" in done.text
    assert not job.refresh().cancelling


@pytest.mark.parametrize("leave", [3, 8, 10])
def test_no_job_is_passed_over_while_others_leave_the_list(
    leave: int, one_url: str, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.queue._async.scan._READ", 5)
    monkeypatch.setattr("bide.queue.select.OVERLAP", 2)
    monkeypatch.setattr("bide.queue.select.BACK", 5)
    jobs = mail.enqueue_many([mail.prepare("shop:remind", (i,), delay=60 + i) for i in range(24)])
    met: Counter[int] = Counter()

    def look(task: str, kind: str, value: Any) -> Any:
        if kind == "args":
            met[value[0]] += 1
            if len(met) == 10:
                for job in jobs[:leave]:
                    job.cancel()
        return value

    with serve(app(url=one_url, mask=look, local_role="viewer")) as page:
        found = page.get("/api/jobs", state="delayed", text="nowhere").json
    assert met == dict.fromkeys(range(24), 1), "each once"
    assert (found["looked"], found["next"]) == (24, None)


@pytest.mark.parametrize("leave", [3, 8, 10])
def test_none_of_a_range_is_passed_over_while_others_leave_it(
    leave: int, desk: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.selection.PAGE", 10)
    monkeypatch.setattr("bide.queue.select.OVERLAP", 2)
    monkeypatch.setattr("bide.queue.select.BACK", 5)
    ids = due_in_the_range(mail, 40)
    list_due, calls = job_commands.list_due, itertools.count(1)

    def read(*args: Any) -> Any:
        if next(calls) == 2:
            for id in ids[:leave]:
                mail.fetch(id).cancel()
        return list_due(*args)

    monkeypatch.setattr("bide.web.selection.job_commands.list_due", read)
    asked = desk.post(verb="promote", **RANGE)
    assert "Run now 40 jobs" in asked.text
    monkeypatch.setattr("bide.web.selection.job_commands.list_due", list_due)
    assert f"{40 - leave} jobs made due now" in desk.post(**sure(asked)).text


def test_who_looks_on_later_passes_nothing_over(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.views.jobs.LOOK", 10)
    jobs = mail.enqueue_many([mail.prepare("shop:remind", ("x",), delay=60 + i) for i in range(30)])
    first = page.get("/api/jobs", state="delayed", text="x").json
    for job in jobs[:7]:
        job.cancel()
    seen = {job["id"] for job in first["jobs"]}
    while first["next"]:
        first = page.get("/api/jobs", state="delayed", text="x", after=first["next"]).json
        seen |= {job["id"] for job in first["jobs"]}
    assert seen == {job.id for job in jobs}


@pytest.mark.parametrize("state", ["blocked", "cancelled"])
def test_no_page_passes_over_jobs_after_others_were_deleted(
    state: str, page: Page, mail: Queue
) -> None:
    first = mail.enqueue("shop:first", delay=600)
    jobs = [mail.enqueue("shop:second", depends_on=first).id for _ in range(12)]
    if state == "cancelled":
        mail.where(state="blocked").cancel()
    read = page.get("/api/jobs", state=state, count=4).json
    seen = [job["id"] for job in read["jobs"]]
    for id in seen[1:]:
        mail.fetch(id).delete()
    added = mail.enqueue("shop:second", depends_on=first)
    if state == "cancelled":
        added.cancel()
    while read["next"]:
        read = page.get("/api/jobs", state=state, count=4, after=read["next"]).json
        seen += [job["id"] for job in read["jobs"]]
    assert sorted(set(seen)) == sorted(jobs)
    assert len(seen) == len(jobs), "each once"


def test_what_is_to_run_again_meanwhile_is_not_deleted(one_url: str, mail: Queue) -> None:
    mail.enqueue(broken, 1, retry=0)
    Worker([mail], modules=[__name__]).run(burst=True)
    (job,) = mail.jobs("failed")

    def again(task: str, kind: str, value: Any) -> Any:
        """Somebody retries it while it is looked at."""
        if job.refresh().state == "failed":
            job.retry()
        return value

    form = {"q": "mail", "verb": "delete", "state": "failed", "text": "1"}
    with serve(app(url=one_url, mask=again, local_role="operator")) as desk:
        done = desk.post(**form, sure="1")
    assert "Skipped: 1 waiting" in done.text
    assert job.refresh().state == "waiting"


def test_a_job_that_is_to_run_again_is_not_deleted_by_its_page(desk: Page, mail: Queue) -> None:
    job = mail.enqueue(broken, 1, retry=0)
    Worker([mail], modules=[__name__]).run(burst=True)
    assert ">Delete<" in desk.get("/job", q="mail", id=job.id).text
    job.retry(delay=60)
    assert "Skipped: 1 delayed" in desk.post(verb="delete", q="mail", id=job.id).text
    assert job.refresh().state == "delayed"


def test_one_that_has_run_since_the_question_is_not_cancelled(desk: Page, mail: Queue) -> None:
    job = mail.enqueue(broken, 1, retry=Retry(2, backoff=[600]), delay=600)
    asked = desk.post(verb="cancel", state="delayed", q="mail")
    assert "Cancel 1 job" in asked.text
    job.promote()
    Worker([mail], modules=[__name__]).run(burst=True)
    assert job.refresh().state == "delayed"
    assert "No job matches" in desk.post(**sure(asked)).text
    assert job.refresh().state == "delayed"


def test_jobs_that_are_due_already_are_not_among_those_to_run_now(
    desk: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay in their list, so that the place from which to go on would be before them again."""
    monkeypatch.setattr("bide.web.selection.LOOK", 10)
    mail.enqueue_many([mail.prepare("shop:remind", (i,)) for i in range(25)])
    page = desk.post(verb="promote", state="waiting", q="mail")
    for searched in ("10", "20", "25"):
        assert f"{searched} of 25 jobs were searched" in page.text
        assert "No job matches" in page.text
        if searched != "25":
            page = desk.post(**fields(page))
    assert 'class="tools"' not in page.text


def test_a_link_means_failures_of_its_kind_and_no_others(desk: Page, mail: Queue) -> None:
    mail.enqueue_many([mail.prepare(broken, (i,), retry=0) for i in range(3)])
    mail.enqueue(broken_again, 4, retry=0)
    mail.enqueue(broken, "lost: all", retry=0)
    Worker([mail], modules=[__name__], concurrency=2).run(burst=True)
    links = re.findall(r'<a href="/jobs\?([^"]+)">[\w.:]+</a> (\d+)', desk.get("/failures").text)
    assert sorted(number for _, number in links) == ["1", "1", "3"]
    for link, number in links:
        asked = desk.post(verb="retry", **dict(parse_qsl(html.unescape(link))))
        assert f"Retry {number} job" in asked.text


@pytest.mark.slow
@pytest.mark.parametrize("message", ["no answer from: \nthe bank", "a\ttab", "\u202eten", " "])
def test_what_forms_do_not_carry_is_in_no_kind_of_failure(
    message: str, desk: Page, mail: Queue
) -> None:
    mail.enqueue(broken, 1, retry=0)
    mail.enqueue(raising, message, retry=0)
    Worker([mail], modules=[__name__], concurrency=2).run(burst=True)
    (link,) = re.findall(
        r'<a href="(/jobs\?[^"]+)">[\w.:]+:raising</a> 1', desk.get("/failures").text
    )
    listed = desk.get(html.unescape(link)).text
    (kind,) = set(re.findall(r'name="kind" value="([^"]*)"', listed))
    asked = desk.post(verb="retry", state="failed", kind=html.unescape(kind))
    assert "Retry 1 job?" in asked.text


def test_a_change_that_breaks_off_says_how_far_it_came(
    desk: Page, mail: Queue, one_url: str, direct: redis.Redis
) -> None:
    due_in_the_range(mail, 230)
    with closing(Queue("orders", url=one_url)) as orders:
        due_in_the_range(orders, 7)
    asked = desk.post(verb="cancel", **RANGE)
    direct.set("bide:{orders}:cancelled", "damaged")
    done = desk.post(**sure(asked))
    assert done.status == 502
    assert "<h1>230 jobs cancelled" in done.text
    assert "Then an error occurred: " in done.text
    assert "7 jobs are unchanged, or were changed although the reply was lost" in done.text
    assert "Continue with" not in done.text
    assert mail.counts().cancelled == 230
    alone = desk.post(verb="cancel", q="orders", sure="7", **RANGE)
    assert alone.status == 502
    assert "The request failed" in alone.text


def test_a_form_that_is_too_long_is_refused_whole(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    form = {"verb": "delete", "state": "delayed", "sure": "1", "q": "mail"}
    assert desk.post(pad="x" * 100_000, **form).status == 413
    assert mail.counts().delayed == 1


def fields(page: Reply) -> dict[str, str]:
    """What the form of a page would send."""
    (form,) = re.findall(r'<form method="post" action="/do" class="tools">(.*?)</form>', page.text)
    pairs = re.findall(r'name="(\w+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in pairs}


def sure(page: Reply) -> dict[str, str]:
    """The same, of a page that says how many there are."""
    assert "sure" in fields(page)
    return fields(page)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"verb": "explode", "id": "x", "q": "mail"},
        {"verb": "cancel"},
        {"verb": "cancel", "q": "mail"},
        {"verb": "pause"},
        {"verb": "pause-group", "group": "g"},
        {"verb": "pause-schedule", "name": "x"},
        {"verb": "cancel", "from": "1", "to": RANGE["to"]},
        {"verb": "cancel", "from": RANGE["from"]},
        {"verb": "cancel", **RANGE, "task": "shop:other"},
        {"verb": "cancel", "from": RANGE["to"], "to": RANGE["from"]},
        {"verb": "retry", "state": "delayed"},
        {"verb": "cancel", "state": "blue"},
        {"verb": "reschedule", "q": "mail", "id": "x"},
        {"verb": "reschedule", "q": "mail", "id": "x", "delay": "soon"},
        {"verb": "reschedule", "q": "mail", "id": "x", "delay": "1m", "at": "2030-01-01T00:00Z"},
        {"verb": "reschedule", "q": "mail", "id": "x", "at": "2030-01-01T00:00"},
        {"verb": "spread", **RANGE, "over": "0"},
        {"verb": "spread", **RANGE},
        {"verb": "spread", "state": "delayed", "over": "1m"},
        {"verb": "reschedule", "state": "delayed", "delay": "1m"},
    ],
)
def test_a_form_that_cannot_be_meant_changes_nothing(
    form: dict[str, str], desk: Page, mail: Queue
) -> None:
    mail.enqueue("shop:remind", delay=60, job_id="x")
    before = mail.counts()._replace(now_us=0)
    reply = desk.post(**form, sure="100")
    assert reply.status == 400
    assert "The request failed" in reply.text
    assert mail.counts()._replace(now_us=0) == before


def test_a_worker_is_paused_and_resumed(desk: Page, page: Page, mail: Queue) -> None:
    with at_work(mail) as one:
        eventually(lambda: mail.workers())
        assert "pause-worker" in desk.get("/workers").text
        assert "pause-worker" not in page.get("/workers").text
        assert page.post(verb="pause-worker", worker=one.name).status == 403
        reply = desk.post(verb="pause-worker", worker=one.name)
        assert (reply.status, reply.headers["location"]) == (303, "/workers")
        eventually(lambda: [worker.about.paused for worker in mail.workers()] == [True])
        assert "resume-worker" in desk.get("/workers").text
        assert desk.post(verb="resume-worker", worker=one.name).status == 303
        eventually(lambda: [worker.about.paused for worker in mail.workers()] == [False])
    gone = desk.post(verb="pause-worker", worker=one.name)
    assert gone.status == 404
    assert "may have stopped" in html.unescape(gone.text)


def test_a_worker_of_hidden_queues_is_not_paused(one_url: str, mail: Queue) -> None:
    """The dashboard of one queue must not hold up the jobs of another."""
    with (
        closing(Queue("post", url=one_url)) as post,
        serve(app(url=one_url, queues=["mail"], local_role="operator")) as desk,
        at_work(mail, post) as both,
        at_work(post) as other,
    ):
        eventually(lambda: len(post.workers()) == 2)
        mail.enqueue("shop:remind", delay=600)
        refused = desk.post(verb="pause-worker", worker=both.name)
        assert refused.status == 400
        assert "also serves queues that are not shown here" in html.unescape(refused.text)
        assert desk.post(verb="pause-worker", worker=other.name).status == 404
        assert [worker.about.paused for worker in post.workers()] == [False, False]
