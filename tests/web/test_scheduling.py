"""What an operator may do with schedules: only one, and changed only after a look at its times."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from bide import Queue, Unique
from bide.client import blocking
from bide.errors import ScheduleNotFound
from bide.model.durations import describe_exactly, to_us
from bide.model.payload.body import Body, encode_body, of_schedule
from bide.model.schedule import Timing
from bide.protocol.commands.schedules import Draft, set_schedule
from bide.protocol.keys import keys_of
from bide.web import app
from tests.support.serving import Page, serve

EDIT = {"kind": "cron", "cron": "30 6 * * 1-5", "tz": "Europe/Berlin", "missed": "once"}
VERBS = ("pause", "resume", "run", "remove", "edit")
NAME = "<img/src=x/onerror=window.hit=1>"


def stand(page: Page, name: str = "report") -> str:
    return str(page.get("/api/schedule", q="mail", name=name).json["stand"])


def edit(desk: Page, name: str = "report", **form: str) -> Any:
    given = {"verb": "edit-schedule", "q": "mail", "name": name, "stand": stand(desk, name)}
    return desk.post(**(given | form))


@pytest.fixture
def report(mail: Queue) -> str:
    mail.schedules.upsert("report", "shop:report", ["all"], cron="0 9 * * *", tz="Europe/Berlin")
    return "report"


def test_a_schedule_with_its_next_ten_times_in_utc_and_in_its_own_zone(
    page: Page, mail: Queue, report: str
) -> None:
    shown = page.get("/api/schedule", q="mail", name=report).json
    times = [at.isoformat() for at in mail.schedules.next(report, 10)]
    assert [datetime.fromisoformat(at).isoformat() for at in shown["upcoming"]] == times
    assert (shown["when"], shown["task"]) == ("0 9 * * * Europe/Berlin", "shop:report")
    text = page.get("/schedule", q="mail", name=report).text
    assert len(re.findall(r">\d{4}-\d\d-\d\d 09:00:00 CES?T<", text)) == 10
    assert len(re.findall(r">\d{4}-\d\d-\d\d 0[78]:00:00 UTC<", text)) == 20, "and as local time"
    assert 'method="post"' not in text, "a viewer has no forms"
    assert page.get("/schedule", q="mail", name="other").status == 404
    assert page.get("/schedule", q="mail").status == 400
    assert page.get("/schedule", name=report).status == 400


def test_it_is_paused_resumed_and_run(desk: Page, mail: Queue, report: str) -> None:
    here = f"/schedule?q=mail&name={report}"
    for verb, paused in (("pause", True), ("pause", True), ("resume", False)):
        reply = desk.post(verb=f"{verb}-schedule", q="mail", name=report)
        assert (reply.status, reply.headers["location"]) == (303, here)
        assert mail.schedules.fetch(report).paused is paused
        assert not mail.counts().paused
    reply = desk.post(verb="run-schedule", q="mail", name=report)
    (job,) = mail.jobs("waiting")
    assert (job.task, job.args) == ("shop:report", ("all",))
    assert desk.get(reply.headers["location"]).status == 200


def test_one_whose_job_is_there_already_leads_to_that_or_says_so(desk: Page, mail: Queue) -> None:
    form = {"verb": "run-schedule", "q": "mail"}
    ways: list[tuple[Literal["keep", "reject"], int]] = [("keep", 303), ("reject", 409)]
    for on_conflict, status in ways:
        mail.schedules.upsert(
            on_conflict, "shop:tick", every="1h", unique=Unique("x", on_conflict=on_conflict)
        )
        desk.post(name="keep", **form)
        (job,) = mail.jobs("waiting")
        reply = desk.post(name=on_conflict, **form)
        assert reply.status == status
        if status == 303:
            assert reply.headers["location"].endswith(f"id={job.id}".replace("@", "%40"))
        assert len(mail.jobs("waiting")) == 1


def test_it_is_removed_when_that_is_confirmed(desk: Page, mail: Queue, report: str) -> None:
    form = {"verb": "remove-schedule", "q": "mail", "name": report}
    assert "Remove the schedule report of mail?" in desk.post(**form).text
    assert mail.schedules.fetch(report)
    assert desk.post(**form, sure="1").status == 303
    with pytest.raises(ScheduleNotFound):
        mail.schedules.fetch(report)
    for verb in VERBS:
        assert desk.post(verb=f"{verb}-schedule", q="mail", name=report).status == 404


def test_an_edit_shows_its_times_first_and_keeps_task_and_arguments(
    desk: Page, mail: Queue, report: str
) -> None:
    before = mail.schedules.fetch(report)
    preview = edit(desk, **EDIT, limit="3", jitter="10s")
    assert preview.status == 200
    assert mail.schedules.fetch(report) == before
    assert len(re.findall(r">\d{4}-\d\d-\d\d 06:30:00 CES?T<", preview.text)) == 3
    assert "up to 10s after" in preview.text
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', preview.text))
    saved = desk.post(**hidden, verb="edit-schedule")
    assert saved.status == 303
    after = mail.schedules.fetch(report)
    assert (after.when, after.limit, after.jitter) == ("30 6 * * 1-5 Europe/Berlin", 3, 10.0)
    assert (after.task, after.priority) == (before.task, before.priority)
    assert mail.schedules.run(report).args == ("all",)


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        ({"kind": "every", "every": "1h30m", "cron": "odd"}, "every 1h30m"),
        ({"kind": "at", "at": "2190-01-31T09:00:00Z\r\n2191-01-31T09:00:00+01:00"}, "at 2 moments"),
        ({"kind": "cron", "cron": "@daily"}, "@daily UTC"),
    ],
    ids=["every", "at", "cron"],
)
def test_the_form_that_is_shown_says_what_there_is(
    form: dict[str, str], kept: str, desk: Page, mail: Queue, report: str
) -> None:
    bounds = {"start": "2189-01-01T00:00:00Z", "end": "2199-01-01T00:00:00Z", "limit": "9"}
    sent = edit(desk, sure="1", missed="all", jitter="1500ms", **form, **bounds)
    assert sent.status == 303, sent.text
    once = mail.schedules.fetch(report)
    assert once.when == kept
    text = desk.get("/schedule", q="mail", name=report).text
    shown = dict(re.findall(r'name="(\w+)" value="([^"]*)"', text.replace("&#43;", "+")))
    (moments,) = re.findall(r"<textarea.*?>(.*?)</textarea>", text, re.S)
    kind = re.findall(r'value="(\w+)" checked', text)[-1]
    fields = {name: shown[name] for name in ("cron", "tz", "every", "start", "end", "limit")}
    again = edit(
        desk, **fields, kind=kind, at=moments, jitter=shown["jitter"], missed="all", sure="1"
    )
    assert again.status == 303
    assert mail.schedules.fetch(report) == once, "nothing was changed, so nothing begins anew"


def test_what_a_preview_says_is_what_comes(desk: Page, mail: Queue, report: str) -> None:
    past = datetime.now(UTC) - timedelta(days=3, seconds=7)
    later = datetime.now(UTC) + timedelta(days=1)
    hourly = f"{(later.minute + 30) % 60} * * * *"  # none is due between the preview and the check
    forms: list[dict[str, str]] = [
        {"kind": "every", "every": "1h", "start": past.isoformat()},
        {"kind": "every", "every": "1h", "start": later.isoformat()},
        {"kind": "every", "every": "1h", "start": past.isoformat(), "end": later.isoformat()},
        {"kind": "every", "every": "1d", "start": past.isoformat(), "end": past.isoformat()},
        {"kind": "at", "at": f"{past.isoformat()} {later.isoformat()}"},
        {"kind": "cron", "cron": hourly, "start": later.isoformat()},
        {"kind": "cron", "cron": hourly, "start": past.isoformat(), "limit": "2"},
    ]
    for form in forms:
        preview = edit(desk, missed="skip", **form).text.partition('class="edit"')[0]
        says = re.findall(r'data-wide="yours"><time datetime="([^"]+)"', preview)
        assert ("It would never fire" in preview) == (not says)
        assert edit(desk, missed="skip", sure="1", **form).status == 303
        came = desk.get("/api/schedule", q="mail", name=report).json["upcoming"]
        assert says == came, form


def test_what_another_has_changed_is_not_written_over(desk: Page, mail: Queue, report: str) -> None:
    known = stand(desk)
    mail.schedules.upsert(report, "shop:report", ["all"], every="5m")
    changes: list[dict[str, Any]] = [{}, {"jitter": "1s"}, {"missed": "all"}]
    for change in changes:
        if change:
            known = stand(desk)
            mail.schedules.upsert(report, "shop:report", ["all"], every="5m", **change)
        theirs = mail.schedules.fetch(report)
        reply = edit(desk, **EDIT, sure="1", stand=known)
        assert reply.status == 409
        assert "Someone else has changed report meanwhile: it now fires every 5m." in reply.text
        assert 'value="30 6 * * 1-5"' in reply.text, "what was typed is still there"
        assert mail.schedules.fetch(report) == theirs
    assert edit(desk, **EDIT, sure="1").status == 303


ODD: list[tuple[dict[str, str], str]] = [
    ({"kind": ""}, "Choose when it fires"),
    ({"cron": ""}, "Write a cron expression"),
    ({"kind": "every"}, "Write an interval"),
    ({"kind": "at"}, "at must be a list"),
    ({"cron": "61 * * * *"}, "is not a cron expression"),
    ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
    ({"tz": "Mars/Olympus"}, "is not a time zone that this machine knows"),
    ({"kind": "every", "every": "soon"}, "is not a duration"),
    ({"kind": "every", "every": "1ms"}, "is too short"),
    ({"kind": "at", "at": "2030-01-31T09:00:00"}, "has no time zone"),
    ({"start": "tomorrow"}, "is not a moment"),
    ({"start": "2031-01-01T00:00Z", "end": "2030-01-01T00:00Z"}, "would never fire"),
    ({"limit": "-1"}, "is not a whole number"),
    ({"limit": "0"}, "from 1 to"),
    ({"missed": "never"}, "missed must be"),
    ({"jitter": "-5s"}, "must not be negative"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("odd", "says"), ODD, ids=[says for _, says in ODD])
def test_bad_input_gets_one_sentence_and_stays_in_the_form(
    odd: dict[str, str], says: str, desk: Page, mail: Queue, report: str
) -> None:
    before = mail.schedules.fetch(report)
    for sure in ("", "1"):
        reply = edit(desk, **(EDIT | {"limit": "7"} | odd), sure=sure)
        assert reply.status == 400
        (sentence,) = re.findall(r'role="alert">(.*?)</p>', reply.text)
        assert says in sentence.replace("&#39;", "'")
        assert f'name="limit" value="{odd.get("limit", "7")}"' in reply.text
    assert mail.schedules.fetch(report) == before


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_whoever_may_only_look_changes_nothing(
    verb: str, page: Page, desk: Page, mail: Queue, report: str, one_url: str
) -> None:
    form = {"verb": f"{verb}-schedule", "q": "mail", "name": report, "sure": "1", **EDIT}
    form["stand"] = stand(page)
    before = mail.schedules.fetch(report)
    assert page.post(**form).status == 403
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
        assert desk.post(headers, **form).status == 403
    with serve(app(url=one_url, viewer_token="look" * 5, operator_token="change" * 5)) as guarded:
        viewer = {"authorization": f"Bearer {'look' * 5}", "sec-fetch-site": "same-origin"}
        assert guarded.post(viewer, **form).status == 403
        assert guarded.post({"sec-fetch-site": "same-origin"}, **form).status == 401
    with serve(app(url=one_url, local_role="operator", queues=["orders"])) as other:
        assert other.post(**form).status == 404
        assert other.get("/schedule", q="mail", name=report).status == 404
    assert mail.schedules.fetch(report) == before
    assert mail.counts().waiting == 0


def test_what_a_schedule_is_called_is_not_run(desk: Page, mail: Queue, one_url: str) -> None:
    mail.enqueue("shop:remind", delay=600)
    body = of_schedule(encode_body(Body("shop:<b>", ["<script>window.hit=1</script>"])), NAME)
    strange = Draft(NAME, Timing(every_us=10**9), "once", 0, 5, "shop:<b>", body)
    with closing(blocking.Client(one_url)) as other:  # a program that checks nothing
        other.run(set_schedule(keys_of("mail"), strange))
    here = {"q": "mail", "name": NAME}
    odd = '"><script>window.hit=1</script>'
    pages = [
        desk.get("/schedules"),
        desk.get("/schedule", **here),
        desk.post(verb="remove-schedule", **here),
        edit(desk, NAME, kind="every", every="2h", missed="once"),
        edit(desk, NAME, kind="cron", cron=odd, tz=odd, every=odd, at=odd, start=odd, jitter=odd),
    ]
    reply = desk.post(verb="run-schedule", **here)
    pages.append(desk.get(reply.headers["location"]))
    for shown in pages:
        assert "<img" not in shown.text
        assert "<b>shop" not in shown.text
        assert "<script>" not in shown.text
        assert "shop:<b>" not in shown.text


@pytest.mark.parametrize(
    "us", [0, 1, 999, 10_000, 1_500_000, 90_061_001_001, 3_155_760_000_000_001]
)
def test_a_duration_in_a_form_is_exact(us: int) -> None:
    assert to_us(describe_exactly(us) or "0") == us
