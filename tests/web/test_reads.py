"""What the page and its API say: each read, on a real server."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from bide import DelayQueue, Queue, Retry, Worker, current_job
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.queues import WorkerReport, heartbeat
from bide.protocol.keys import keys_of
from bide.web import app
from tests.support.serving import Page, serve

PAGES = ("", "lateness", "queues", "jobs", "schedules", "failures", "workers")


def broken(order: int) -> None:
    job = current_job()
    job.log(f"charging {order}")
    raise ValueError(f"card of order {order} was declined")


def fine(order: int) -> int:
    return order


def reporting() -> None:
    current_job().progress(0.29)


def work(queue: Queue) -> None:
    Worker([queue], modules=[__name__], concurrency=4).run(burst=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES)
def test_an_empty_page_says_what_to_do(path: str, page: Page) -> None:
    reply = page.get(f"/{path}")
    assert reply.status == 200
    assert 'class="empty"' in reply.text


@pytest.mark.slow
@pytest.mark.parametrize("path", [*PAGES, "queue?q=mail"])
def test_a_page_can_be_read_without_scripts(path: str, page: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", 42, delay=600)
    reply = page.get(f"/{path}")
    assert reply.status == 200
    assert "<main" in reply.text
    assert "None" not in reply.text


def test_queues(page: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", 1, delay=60)
    mail.enqueue("shop:remind", 2)
    mail.pause()
    queues = page.get("/api/queues").json["queues"]
    assert (queues["mail"]["delayed"], queues["mail"]["waiting"]) == (1, 1)
    assert queues["mail"]["paused"] is True
    assert queues["mail"]["workers"] == 0


def test_an_item_of_data_has_a_page_in_each_of_its_states(page: Page, one_url: str) -> None:
    with closing(DelayQueue("pile", url=one_url)) as pile:
        pile.push({"user": 1}, delay=60)
        pile.push({"user": 2})
        with pile.take(num=1) as (item,):
            listed = page.get("/api/jobs?q=pile").json["jobs"]
            assert {one["state"] for one in listed} == {"delayed", "active"}
            for one in listed:
                shown = page.get(f"/job?q=pile&id={one['id']}")
                assert shown.status == 200
                assert "user" in shown.text
            item.ack()
        assert page.get(f"/job?q=pile&id={item.id}").status == 200, "it has completed"


def test_one_queue_with_what_is_due_next_and_how_late_its_jobs_began(
    page: Page, mail: Queue
) -> None:
    mail.enqueue(fine, 1)
    work(mail)
    later = mail.enqueue(fine, 2, delay=60)
    found = page.get("/api/queue", q="mail").json
    assert [job["id"] for job in found["upcoming"]] == [later.id]
    assert found["lateness"]["began"] == 1
    assert found["lateness"]["p50"] >= 0


def test_a_job_with_its_attempts_logs_and_result(page: Page, mail: Queue) -> None:
    bad, good = mail.enqueue(broken, 7, retry=0), mail.enqueue(fine, 8)
    work(mail)
    found = page.get("/api/job", id=bad.id).json
    assert (found["queue"], found["state"]) == ("mail", "failed")
    assert found["args"] == [7]
    assert [line["text"] for line in found["logs"]] == ["charging 7"]
    (attempt,) = found["attempts"]
    assert "was declined" in attempt["error"]["traceback"]
    assert page.get("/api/job", q="mail", id=good.id).json["result"] == 8
    shown = page.get("/job", id=bad.id).text
    assert "Traceback (most recent call last):" in shown
    assert "charging 7" in shown


def test_a_job_with_how_it_may_run_and_how_long_it_ran(page: Page, mail: Queue) -> None:
    job = mail.enqueue(fine, 1, retry=3, timeout=90)
    work(mail)
    found = page.get("/api/job", id=job.id).json
    assert (found["attempt"], found["max_attempts"], found["timeout"]) == (1, 4, 90)
    assert found["run_time"] >= 0
    shown = page.get("/job", id=job.id).text
    for fact in ("Enqueued", "Run time", "1 of 4", "3 retries, exponential from 1s to 1h", "90s"):
        assert fact in shown
    other = mail.enqueue("elsewhere:fine")
    shown = page.get("/job", id=other.id).text
    assert "the task's, otherwise 5m" in shown


@pytest.mark.slow
@pytest.mark.parametrize("span", ["hour", "day", "week"])
def test_how_late_jobs_began(span: str, page: Page, mail: Queue) -> None:
    mail.enqueue_many([mail.prepare(fine, (i,)) for i in range(12)])
    work(mail)
    found = page.get("/api/lateness", span=span).json
    assert sum(sum(column["counts"]) for column in found["columns"]) == 12
    assert sum(found["columns"][-1]["counts"] + found["columns"][-2]["counts"]) == 12
    queue = found["queues"]["mail"]
    assert queue["began"] == 12
    assert 0 < queue["p50"] <= queue["p99"]
    assert queue["overdue"] is None
    assert 'role="img"' in page.get("/lateness", span=span).text


def test_what_has_waited_longest_is_told(page: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind")
    queue = page.get("/api/lateness").json["queues"]["mail"]
    assert (queue["waiting"], queue["began"], queue["p50"]) == (1, 0, None)
    assert queue["overdue"] > 0


def test_why_a_job_has_not_run_is_told(page: Page, mail: Queue) -> None:
    job = mail.enqueue("shop:remind")
    mail.pause()
    kinds = [reason["kind"] for reason in page.get("/api/job", id=job.id).json["why"]]
    assert kinds[:1] == ["paused"]
    assert "The queue is paused" in page.get("/job", id=job.id).text
    job.cancel()
    assert page.get("/api/job", id=job.id).json["why"] == []


def test_lists_go_on_where_they_stopped(page: Page, mail: Queue) -> None:
    jobs = [mail.prepare("shop:remind", (i,), delay=60 + i) for i in range(7)]
    mail.enqueue_many(jobs)
    seen: list[str] = []
    after = ""
    for size in (3, 3, 1):
        found = page.get("/api/jobs", state="delayed", count=3, after=after).json
        assert len(found["jobs"]) == size
        seen += [job["id"] for job in found["jobs"]]
        after = found["next"]
    assert after is None
    assert seen == [job.id for job in jobs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"text": "grace"}, 1),
        ({"text": "GRACE"}, 1),
        ({"task": "shop:rem*"}, 2),
        ({"task": "shop:cancel"}, 1),
        ({"task": "nothing"}, 0),
        ({"state": "waiting"}, 1),
        ({"since": "2030-01-01T00:00:00Z", "until": "2030-01-03T00:00:00Z"}, 2),
        ({"since": "2030-01-01T00:00:00Z", "until": "2030-01-02T00:00:00Z"}, 1),
        ({"task": "shop:canc"}, 1),
        ({"task": "=shop:canc"}, 0),
        ({"task": "=shop:cancel"}, 1),
        ({"error": "ValueError"}, 0),
        ({"kind": "ValueError"}, 0),
    ],
)
def test_jobs_are_found_by(asked: dict[str, str], count: int, page: Page, mail: Queue) -> None:
    for day, name in ((1, "ada"), (2, "grace")):
        mail.enqueue_call("shop:remind", (name,), at=datetime(2030, 1, day, tzinfo=UTC))
    mail.enqueue("shop:cancel", 3)
    found = page.get("/api/jobs", **asked).json
    assert len(found["jobs"]) == count
    assert found["total"] == (1 if "state" in asked else 3)
    assert found["looked"] <= 3


def test_a_search_is_bounded_and_says_how_far_it_looked(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [mail.prepare("shop:remind", (f"order w{i}",), delay=60 + i) for i in range(450)]
    mail.enqueue_many(jobs)
    monkeypatch.setattr("bide.views.jobs.LOOK", 300)
    found = page.get("/api/jobs", text="w449").json
    assert (found["jobs"], found["looked"], found["total"]) == ([], 300, 450)
    more = page.get("/api/jobs", text="w449", after=found["next"]).json
    assert [job["id"] for job in more["jobs"]] == [jobs[-1].id]
    assert (more["next"], more["looked"]) == (None, 450), "earlier looks count"


def test_who_looks_on_passes_nothing_over_though_a_list_is_gone(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.views.jobs.LOOK", 5)
    early = mail.enqueue_many([mail.prepare("shop:remind", ("x",)) for _ in range(8)])
    late = mail.enqueue_many([mail.prepare("shop:remind", ("x",), delay=60 + i) for i in range(3)])
    found = page.get("/api/jobs", text="x").json
    assert len(found["jobs"]) == 5
    for job in early:
        job.delete()
    more = page.get("/api/jobs", text="x", after=found["next"]).json
    assert [job["id"] for job in more["jobs"]] == [job.id for job in late]


def test_who_is_called_by_its_id_is_found_however_many_others_there_are(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.views.jobs.LOOK", 5)
    jobs = mail.enqueue_many([mail.prepare("shop:remind", (i,), delay=60 + i) for i in range(20)])
    for job in (jobs[-1], jobs[0]):
        found = page.get("/api/jobs", text=job.id).json["jobs"]
        assert [each["id"] for each in found] == [job.id]


def test_a_job_whose_id_is_searched_is_listed_once(page: Page, mail: Queue) -> None:
    jobs = [
        mail.prepare("shop:remind", job_id=id, delay=60 + i)
        for i, id in enumerate(["order-1", "order-2", "order-3", "order"])
    ]
    mail.enqueue_many(jobs)
    first = page.get("/api/jobs", text="order", count=2).json
    last = page.get("/api/jobs", text="order", count=2, after=first["next"]).json
    listed = [job["id"] for job in first["jobs"] + last["jobs"]]
    assert listed == ["order", "order-1", "order-2", "order-3"]


def test_what_is_due_when(page: Page, mail: Queue) -> None:
    for delay in (90, 90, 600):
        mail.enqueue("shop:remind", delay=delay)
    mail.enqueue("shop:remind", delay=7200)
    found = page.get("/api/timeline", span="hour").json
    assert sum(each["due"].get("mail", 0) for each in found["stretches"]) == 3
    assert found["later"] == {"mail": 1}
    assert found["bursts"] == []
    (first, *_) = found["stretches"]
    away = datetime.fromisoformat(first["at"]) - datetime.fromisoformat(found["now"])
    assert timedelta(seconds=50) < away <= timedelta(seconds=90)
    day = page.get("/api/timeline", span="day").json
    assert sum(each["due"].get("mail", 0) for each in day["stretches"]) == 4
    mail.enqueue("shop:remind")
    late = page.get("/api/timeline", span="hour").json
    assert (late["ahead"], late["overdue"]) == ({"mail": 3}, {"mail": 1}), "each in one of them"
    text = page.get("/", span="hour").text
    assert "<b>3</b><span>due in the next hour" in text
    assert "<b>1</b><span>waiting" in text


def test_a_range_has_its_jobs_and_how_many_there_are(page: Page, mail: Queue) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    jobs = [mail.enqueue_call("shop:remind", (i,), at=at + timedelta(minutes=i)) for i in range(5)]
    asked = {"from": "2030-01-01T00:01:00Z", "to": "2030-01-01T00:03:00Z"}
    found = page.get("/api/range", **asked).json
    assert found["total"] == 2
    assert [job["id"] for job in found["jobs"]] == [job.id for job in jobs[1:3]]


def in_range(page: Page, **asked: str) -> tuple[list[str], str | None, int]:
    """The ids of a page of a range, where the next begins, and the total."""
    span = {"from": "2030-01-01T00:00:00Z", "to": "2030-01-02T00:00:00Z"}
    found = page.get("/api/range", **span, **asked).json
    return [job["id"] for job in found["jobs"]], found["next"], found["total"]


def due_on_the_day(queue: Queue, number: int, minute: int, priority: int = 5) -> list[str]:
    """Jobs that are due at the same moment."""
    at = datetime(2030, 1, 1, 0, minute, tzinfo=UTC)
    jobs = [queue.prepare("shop:remind", at=at, priority=priority) for _ in range(number)]
    return [job.id for job in queue.enqueue_many(jobs)]


def test_the_first_of_a_range_by_due_time_come_first(page: Page, mail: Queue, one_url: str) -> None:
    later = due_on_the_day(mail, 55, minute=30, priority=9)
    (first,) = due_on_the_day(mail, 1, minute=10, priority=1)
    with closing(Queue("other", url=one_url)) as other:
        (second,) = due_on_the_day(other, 1, minute=20, priority=0)
    ids, after, total = in_range(page)
    assert (ids[:2], len(ids), after, total) == ([first, second], 50, None, 57)
    ids, after, total = in_range(page, q="mail")
    assert (ids[0], len(ids), total) == (first, 50, 56)
    rest, end, total = in_range(page, q="mail", after=str(after))
    assert (end, total) == (None, 56)
    assert sorted(ids + rest) == sorted([first, *later])
    for odd in ("x", "5.1 a", str(after).replace(" ", "")):
        span = {"from": "2030-01-01T00:00:00Z", "to": "2030-01-02T00:00:00Z"}
        reply = page.get("/api/range", **span, q="mail", after=odd)
        assert (reply.status, "is not a place in this range" in reply.text) == (400, True)


@pytest.mark.parametrize("leave", [0, 10, 49, 50])
def test_no_job_of_a_range_is_passed_over_after_others_have_left_it(
    leave: int, page: Page, mail: Queue
) -> None:
    jobs = [*due_on_the_day(mail, 1, 1), *due_on_the_day(mail, 115, 2), *due_on_the_day(mail, 5, 3)]
    seen, after, _ = in_range(page, q="mail")
    mail.cancel_many(seen[:leave])
    counts: list[int] = []
    while after and len(counts) < 3:
        more, after, _ = in_range(page, q="mail", after=after)
        seen += more
        counts.append(len(more))
    assert sorted(seen) == sorted(jobs), "each once"
    assert len(counts) == 2


def test_a_burst_is_found_to_the_second(page: Page, mail: Queue) -> None:
    at = (datetime.now(UTC) + timedelta(days=9)).replace(microsecond=0)
    mail.enqueue_many([mail.prepare("shop:remind", (i,), at=at) for i in range(150)])
    mail.enqueue_many([mail.prepare("shop:remind", (i,), delay=86_400 + i * 60) for i in range(99)])
    (burst,) = page.get("/api/timeline", span="month").json["bursts"]
    assert (burst["queue"], burst["count"]) == ("mail", 150)
    assert datetime.fromisoformat(burst["at"]) == at
    assert burst["takes"] is None
    assert "150 jobs due at" in page.get("/", span="month").text


def test_secrets_are_masked_wherever_they_would_be_shown(page: Page, mail: Queue) -> None:
    job = mail.enqueue_call(
        "shop:pay", (1, {"card_number": "visa4111"}), {"api_token": "s3cr3t"}, delay=9
    )
    for path in ("/job", "/api/job", "/jobs", "/api/jobs", "/queue", "/api/queue"):
        text = page.get(path, q="mail", **({"id": job.id} if "job" in path[-3:] else {})).text
        assert "s3cr3t" not in text
        assert "visa4111" not in text
    assert page.get("/api/jobs", text="s3cr3t").json["jobs"] == []
    assert page.get("/api/job", id=job.id).json["kwargs"] == {"api_token": "•••"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "asked", "status"),
    [
        ("/api/nothing", {}, 404),
        ("/api/job", {"id": "nobody"}, 404),
        ("/api/queue", {"q": "nobody"}, 404),
        ("/api/jobs", {"state": "blue"}, 400),
        ("/api/jobs", {"since": "tomorrow"}, 400),
        ("/api/jobs", {"since": "2030-01-01T00:00:00"}, 400),
        ("/api/jobs", {"since": "2030-01-02T00:00:00Z", "until": "2030-01-01T00:00:00Z"}, 400),
        ("/api/jobs", {"after": "x"}, 400),
        ("/api/jobs", {"after": "0.0.delayed.nobody"}, 400),
        ("/api/jobs", {"after": "0.0.waiting.mail", "state": "delayed"}, 400),
        ("/api/jobs", {"count": "-1"}, 400),
        ("/api/jobs", {"count": "9" * 400}, 400),
        ("/api/timeline", {"span": "century"}, 400),
        ("/api/lateness", {"span": "century"}, 400),
        ("/api/range", {}, 400),
        ("/api/range", {"from": "5", "to": "4"}, 400),
        ("/api/range", {"from": "1893456000", "to": "1893459600"}, 400),
        ("/api/range", {"from": "5", "to": "9" * 30}, 400),
    ],
)
def test_what_cannot_be_meant_is_answered_with_a_sentence(
    path: str, asked: dict[str, str], status: int, page: Page
) -> None:
    reply = page.get(path, **asked)
    assert reply.status == status
    assert reply.json["error"].endswith(".")
    assert json.loads(reply.text).keys() == {"error"}
    assert page.get(path.removeprefix("/api"), **asked).status == status


def test_a_server_that_is_not_there_is_told() -> None:
    with serve(app(url="redis://127.0.0.1:1", local_role="viewer")) as page:
        reply = page.get("/")
        assert reply.status == 503
        assert "The request failed" in reply.text
        assert "127.0.0.1:1" in reply.text


def test_a_server_s_password_is_never_shown(one_url: str) -> None:
    with serve(app(url="redis://:hunter2hunter2@127.0.0.1:1", local_role="viewer")) as page:
        for path in ("/", "/api/queues"):
            assert "hunter2" not in page.get(path).text


def test_schedules_with_when_they_fire_next(page: Page, mail: Queue) -> None:
    mail.schedules.upsert("tick", "shop:tick", every="30s")
    mail.schedules.upsert("report", "shop:report", cron="0 9 * * *", tz="Europe/Berlin")
    listed = page.get("/api/schedules").json["schedules"]
    assert [each["name"] for each in listed] == ["tick", "report"]
    assert [len(each["upcoming"]) for each in listed] == [10, 10]
    assert listed[0]["next"] == listed[0]["upcoming"][0]
    assert "0 9 * * * Europe/Berlin" in page.get("/schedules").text


def test_what_schedules_will_fire_stands_ahead_on_the_timeline(page: Page, mail: Queue) -> None:
    mail.schedules.upsert("tick", "shop:tick", every="10s")
    mail.schedules.upsert("report", "shop:report", cron="*/30 * * * *", tz="UTC")
    found = page.get("/api/timeline", span="hour").json
    times = [each["scheduled"].get("mail", 0) for each in found["stretches"]]
    assert 358 <= sum(times) <= 368  # an hour of both
    assert max(times) <= 5
    assert all(each["at"] >= found["from"] for each in found["stretches"])
    month = page.get("/api/timeline", span="month").json
    assert sum(each["scheduled"].get("mail", 0) for each in month["stretches"]) > 250_000
    assert "ghost" in page.get("/").text


def test_jobs_of_a_group_are_on_the_timeline_too(page: Page, mail: Queue) -> None:
    job = mail.enqueue_call("shop:remind", (1,), delay=90, group="ada")
    found = page.get("/api/timeline", span="hour").json
    assert sum(each["due"].get("mail", 0) for each in found["stretches"]) == 1
    assert "<dt>Group</dt><dd>ada</dd>" in page.get("/job", id=job.id).text


def test_a_job_with_its_parents_and_children_of_other_queues(
    page: Page, mail: Queue, one_url: str
) -> None:
    with closing(Queue("orders", url=one_url)) as orders:
        order = orders.enqueue("shop:order", 7, delay=60)
        first = mail.enqueue("shop:first", delay=60)
        gone = mail.enqueue("shop:gone", delay=60)
        job = mail.enqueue_call("shop:both", depends_on=[order, first, gone])
        after = orders.enqueue_call("shop:after", depends_on=[job])
        last = mail.enqueue_call("shop:last", depends_on=[job])
    shown = page.get("/api/job", id=job.id).json
    assert [(one["queue"], one["id"], one["state"]) for one in shown["above"]] == [
        ("orders", order.id, "delayed"),
        ("mail", first.id, "delayed"),
        ("mail", gone.id, "delayed"),
    ]
    assert {one["id"] for one in shown["below"]} == {after.id, last.id}
    text = page.get("/job", q="mail", id=job.id).text
    for one, queue in ((order, "orders"), (first, "mail"), (after, "orders"), (last, "mail")):
        assert f'href="/job?q={queue}&amp;id={one.id}"' in text
    assert "3 of 3 yet" in text
    first.cancel()
    text = page.get("/job", q="mail", id=job.id).text
    assert "Cancelled because of" in text
    assert "None" not in text
    gone.delete()
    assert "no longer exists" in page.get("/job", q="mail", id=job.id).text


def test_a_blocked_job_has_no_due_time_in_lists(page: Page, mail: Queue) -> None:
    mail.enqueue("shop:second", depends_on=mail.enqueue("shop:first", delay=60))
    (job,) = page.get("/api/jobs", state="blocked").json["jobs"]
    assert (job["due"], job["moment_ago"]) == (None, None)
    text = page.get("/jobs", state="blocked").text
    assert "<td>–</td>" in text
    assert "<time" not in text


def test_a_queue_that_is_not_shown_is_not_named(one_url: str, mail: Queue) -> None:
    with closing(Queue("backroom", url=one_url)) as hidden:
        secret = hidden.enqueue("shop:whisper", delay=60)
        job = mail.enqueue_call("shop:both", depends_on=[secret])
        hidden.enqueue_call("shop:whisper", depends_on=[job])
        with serve(app(url=one_url, queues=["mail"], local_role="viewer")) as page:
            for path in ("/job", "/api/job"):
                text = page.get(path, q="mail", id=job.id).text
                assert "backroom" not in text
                assert secret.id not in text
                assert "whisper" not in text
            secret.cancel()
            Worker([hidden], modules=[__name__]).run(burst=True)
            text = page.get("/job", q="mail", id=job.id).text
            assert "Cancelled because of" in text
            assert secret.id not in text


def test_from_when_to_when_a_job_was_rescheduled(page: Page, mail: Queue) -> None:
    at = [datetime(2031, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    job = mail.enqueue_call(broken, (5,), at=at[0], retry=Retry(1, backoff=["1h"]))
    job.reschedule(at=at[1])
    job.promote()
    work(mail)
    job.reschedule(at=at[2])
    moves = page.get("/api/job", id=job.id).json["rescheduled"]
    assert [datetime.fromisoformat(each["from"]) for each in moves[:2]] == at[:2]
    assert datetime.fromisoformat(moves[2]["to"]) == at[2]
    text = page.get("/job", id=job.id).text
    told = [text.index(what) for what in ("first due", "Rescheduled", "Attempt 1 failed")]
    assert told == sorted(told)
    assert text.count("Rescheduled") == 3
    assert text.rindex("Rescheduled") > text.index("Attempt 1 failed")


def test_progress_is_rounded(page: Page, mail: Queue) -> None:
    job = mail.enqueue(reporting)
    work(mail)
    assert page.get("/job", id=job.id).text.count("29 %") == 2


def test_the_workers_of_a_queue_without_any(page: Page, mail: Queue, one_url: str) -> None:
    about = WorkerReport("host", 1, ["mail"], "auto", 5, 1, "1")
    mail._client.run(heartbeat(keys_of(None), "web1", about))
    with closing(Queue("other", url=one_url)) as other:
        other.enqueue("shop:remind", delay=60)
    text = page.get("/workers", q="other").text
    assert "No worker serves other" in text
    assert "bide worker app.tasks -q other" in text
    assert "No worker runs" not in text


def test_a_killed_worker_serves_no_queue(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.enqueue("shop:remind")
    about = WorkerReport("host", 1, ["mail"], "auto", 5, 1, "1")
    mail._client.run(heartbeat(keys_of(None), "web1", about))
    mail._client.run(worker_commands.claim(mail.keys, "web1", 1, 1, 60_000_000, 0))
    found = page.get("/api/queues").json
    assert (found["workers"], found["queues"]["mail"]["workers"]) == (1, 1)
    monkeypatch.setattr("bide.protocol.commands.queues.ALIVE", -1)
    found = page.get("/api/queues").json
    assert (found["workers"], found["queues"]["mail"]["workers"]) == (0, 0)
    assert "No worker runs" in page.get("/queues").text
    text = page.get("/queue", q="mail").text
    assert "No worker serves this queue. Start one" in text
    assert "no sign of life" in text, "it holds a job"


def test_a_paused_worker_is_shown_as_paused(page: Page, mail: Queue) -> None:
    mail.enqueue(fine, 1)
    for name, paused in (("web1", False), ("web2", True)):
        about = WorkerReport("host", 1, ["mail"], "auto", 5, 1, "1", paused=paused)
        mail._client.run(heartbeat(keys_of(None), name, about))
    text = page.get("/workers").text
    assert text.count(">paused<") == 1
    assert text.index("web2") < text.index(">paused<")
    told = {one["name"]: one["paused"] for one in page.get("/api/workers").json["workers"]}
    assert told == {"web1": False, "web2": True}
