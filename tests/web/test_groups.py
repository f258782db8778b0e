"""The groups of a queue: a piece of them at a time, with when each has its turn; pausing them."""

from __future__ import annotations

import pytest

from bide import Queue
from bide.views.queues import GROUPS
from bide.web import app
from tests.support.serving import Page, serve

ODD = "<img/src=x/onerror=window.hit=1>"


def fill(mail: Queue, count: int) -> None:
    """A group `g0` of one job, `g1` of two, and so on."""
    jobs = [
        mail.prepare("shop:remind", delay=60 * (i + 1), group=f"g{i}")
        for i in range(count)
        for _ in range(i + 1)
    ]
    mail.enqueue_many(jobs)


def test_groups_with_what_they_hold_and_when_their_turn_is(page: Page, mail: Queue) -> None:
    fill(mail, 3)
    mail.group("g1").pause()
    mail.group("g2").configure(concurrency=4, rate="10/m")
    listed = page.get("/api/groups", q="mail").json["groups"]
    assert [(one["name"], one["delayed"], one["paused"]) for one in listed] == [
        ("g2", 3, False),
        ("g1", 2, True),
        ("g0", 1, False),
    ]
    due = {job.group: job.due.isoformat() for job in mail.jobs("delayed")}
    assert [one["next"] and one["next"][:19] for one in listed] == [
        due["g2"][:19],
        None,
        due["g0"][:19],
    ]
    assert (listed[0]["concurrency"], listed[0]["rate"]) == (4, "10/m")
    for path in ("/groups", "/queue"):
        text = page.get(path, q="mail").text
        assert ">g2<" in text
        assert "10/m" in text
        assert "pause-group" not in text, "a viewer has no forms"


def test_a_queue_shows_some_and_their_own_page_all(page: Page, mail: Queue) -> None:
    assert "This queue has no groups" not in page.get("/groups", q="mail").text  # there is no queue
    mail.enqueue("shop:remind", delay=60)
    assert "This queue has no groups" in page.get("/groups", q="mail").text
    assert "<h2>Groups</h2>" not in page.get("/queue", q="mail").text
    mail.enqueue_many(
        [mail.prepare("shop:remind", delay=60, group=f"customer-{i}") for i in range(900)]
    )
    shown = page.get("/api/queue", q="mail").json
    assert (len(shown["groups"]), shown["more_groups"]) == (GROUPS, True)
    seen: set[str] = set()
    after, asked = "", 0
    while after is not None:
        reply = page.get("/api/groups", q="mail", after=after).json
        assert len(reply["groups"]) < 500
        seen |= {one["name"] for one in reply["groups"]}
        after, asked = reply["next"], asked + 1
    assert seen == {f"customer-{i}" for i in range(900)}
    assert asked > 1
    assert page.get("/groups", q="mail", after="x").status == 400


def test_a_group_is_paused_and_resumed(desk: Page, mail: Queue) -> None:
    fill(mail, 2)
    for verb, paused in (("pause", True), ("resume", False)):
        reply = desk.post(verb=f"{verb}-group", q="mail", group="g1")
        assert (reply.status, reply.headers["location"]) == (303, "/groups?q=mail")
        assert mail.group("g1").counts().paused is paused
        assert not mail.group("g0").counts().paused
        assert not mail.counts().paused
    assert desk.post(verb="pause-group", q="mail").status == 400
    assert desk.post(verb="pause-group", group="g1").status == 400


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_whoever_may_only_look_changes_no_group(
    verb: str, page: Page, desk: Page, mail: Queue, one_url: str
) -> None:
    fill(mail, 1)
    if verb == "resume":
        mail.group("g0").pause()
    before = mail.group("g0").counts()
    form = {"verb": f"{verb}-group", "q": "mail", "group": "g0"}
    assert page.post(**form).status == 403
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
        assert desk.post(headers, **form).status == 403
    with serve(app(url=one_url, viewer_token="look" * 5, operator_token="change" * 5)) as guarded:
        viewer = {"authorization": f"Bearer {'look' * 5}", "sec-fetch-site": "same-origin"}
        assert guarded.post(viewer, **form).status == 403
    with serve(app(url=one_url, local_role="operator", queues=["orders"])) as other:
        assert other.post(**form).status == 404
        assert other.get("/groups", q="mail").status == 404
    assert mail.group("g0").counts() == before


def test_what_a_group_is_called_is_not_run(desk: Page, mail: Queue) -> None:
    mail.enqueue_call("shop:remind", delay=60, group=ODD)
    for path in ("/groups", "/queue"):
        text = desk.get(path, q="mail").text
        assert "<img" not in text
        assert "&lt;img/src=x/onerror=window.hit=1&gt;" in text
    assert desk.post(verb="pause-group", q="mail", group=ODD).status == 303
    assert mail.group(ODD).counts().paused
