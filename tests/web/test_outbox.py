"""Outboxes on the dashboard: rows that were not sent, and what an operator does with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from bide import Queue
from bide.contrib.sqlalchemy import Outbox
from bide.errors import UsageError
from bide.web import app
from tests.support.serving import OWN, Page, serve
from tests.web.browser import Tab, needs_browser

NAME = "shop.db:outbox"
TABLE = sa.table("bide_outbox")


def cancel_unpaid(order: int) -> None: ...


@pytest.fixture
def outbox(tmp_path: Path, one_url: str) -> Iterator[Outbox]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(sa.MetaData(), engine, url=one_url, fast=False)
    outbox.tables.outbox.metadata.create_all(engine)
    yield outbox
    outbox.close()
    engine.dispose()


@pytest.fixture
def desk(one_url: str, outbox: Outbox) -> Iterator[Page]:
    with serve(app(url=one_url, local_role="operator", outboxes={NAME: outbox})) as page:
        yield page


@pytest.fixture
def page(one_url: str, outbox: Outbox) -> Iterator[Page]:
    with serve(app(url=one_url, local_role="viewer", outboxes={NAME: outbox})) as page:
        yield page


def write(outbox: Outbox, mail: Queue, *ids: str) -> None:
    """Commit jobs; one whose id begins with `lost` is refused for good when it is sent."""
    task = mail.task(name="cancel_unpaid")(cancel_unpaid)
    with Session(outbox.engine) as session, session.begin():  # type: ignore[arg-type]
        for id in ids:
            parent = "nobody" if id.startswith("lost") else None
            outbox.enqueue(session, task.options(job_id=id, depends_on=parent), 1)


def told(page: Page) -> dict[str, Any]:
    (found,) = page.get("/api/outbox").json["outboxes"]
    return dict(found)


def buttons(text: str) -> list[str]:
    return re.findall(r'<button name="verb" value="([a-z-]+)"', text)


def test_rows_that_wait_and_rows_that_were_refused(
    outbox: Outbox, mail: Queue, page: Page, desk: Page
) -> None:
    assert "All rows have been sent." in page.get("/outbox").text
    write(outbox, mail, "lost-1", "lost-2")
    assert outbox.relay(burst=True) == 0
    write(outbox, mail, "unpaid-1")
    found = told(page)
    assert (found["name"], found["waiting"], found["refused"]) == (NAME, 1, 2)
    assert found["age"] >= 0
    assert [row["job_id"] for row in found["refused_rows"]] == ["lost-1", "lost-2"]
    (waiting,) = found["waiting_rows"]
    assert (waiting["verb"], waiting["queue"], waiting["job_id"]) == ("enqueue", "mail", "unpaid-1")
    text = page.get("/outbox").text
    assert "There is no job &#39;nobody&#39;" in text
    assert buttons(text) == [], "a viewer changes nothing"
    assert '<a href="/outbox" aria-current="page">Outbox</a>' in text
    assert sorted(buttons(desk.get("/outbox").text)) == [
        *["delete-row"] * 3,
        *["retry-row"] * 2,
        "retry-rows",
    ]


def test_rows_are_retried_and_deleted(outbox: Outbox, mail: Queue, desk: Page) -> None:
    write(outbox, mail, "lost-1", "lost-2", "lost-3")
    assert outbox.relay(burst=True) == 0
    first, second, third = (row["number"] for row in told(desk)["refused_rows"])
    reply = desk.post(verb="retry-row", outbox=NAME, row=second)
    assert (reply.status, reply.headers["location"]) == (303, "/outbox")
    assert [row["number"] for row in told(desk)["refused_rows"]] == [first, third]
    assert [row["number"] for row in told(desk)["waiting_rows"]] == [second]
    assert desk.post(verb="delete-row", outbox=NAME, row=first).status == 303
    assert [row["number"] for row in told(desk)["refused_rows"]] == [third]
    mail.enqueue(cancel_unpaid, 1, job_id="nobody")
    assert desk.post(verb="retry-rows", outbox=NAME).status == 303
    assert outbox.relay(burst=True) == 2
    assert mail.fetch("lost-3").state == "blocked"


@pytest.mark.parametrize(
    ("form", "status", "says"),
    [
        ({"verb": "delete-row", "outbox": NAME, "row": 99}, 404, "There is no row 99 any more"),
        ({"verb": "retry-row", "outbox": NAME, "row": 1}, 404, "There is no refused row 1"),
        ({"verb": "delete-row", "outbox": NAME}, 400, "Which row?"),
        ({"verb": "delete-row", "outbox": NAME, "row": "x"}, 400, "is not a whole number"),
        ({"verb": "delete-row", "outbox": "other", "row": 1}, 404, "There is no outbox"),
        ({"verb": "retry-rows"}, 404, "There is no outbox"),
    ],
)
def test_mistakes(
    outbox: Outbox, mail: Queue, desk: Page, form: dict[str, Any], status: int, says: str
) -> None:
    write(outbox, mail, "unpaid-1")
    reply = desk.post(**form)
    assert (reply.status, says in reply.text) == (status, True)
    assert told(desk)["waiting"] == 1


@pytest.mark.parametrize("verb", ["retry-row", "retry-rows", "delete-row"])
def test_a_viewer_and_another_site_change_nothing(
    outbox: Outbox, mail: Queue, page: Page, desk: Page, verb: str
) -> None:
    write(outbox, mail, "lost-1")
    assert outbox.relay(burst=True) == 0
    form = {"verb": verb, "outbox": NAME, "row": 1}
    assert page.post(OWN, **form).status == 403
    assert desk.post({"sec-fetch-site": "cross-site"}, **form).status == 403
    assert told(desk)["refused"] == 1


def test_a_database_that_is_down_is_said_beside_the_others(
    one_url: str, outbox: Outbox, mail: Queue
) -> None:
    broken = Outbox(sa.MetaData(), sa.create_engine("sqlite:////no/where.db"), url=one_url)
    write(outbox, mail, "unpaid-1")
    both = {"broken": broken, NAME: outbox}
    with serve(app(url=one_url, local_role="operator", outboxes=both)) as page:
        text = page.get("/outbox").text
        assert "The database of the outbox cannot be used" in text
        assert "unpaid-1" in text
        assert page.post(verb="retry-rows", outbox="broken").status == 502


def test_an_awaited_engine_of_the_application_that_mounts_the_dashboard(
    one_url: str, outbox: Outbox, mail: Queue, tmp_path: Path
) -> None:
    write(outbox, mail, "lost-1", "unpaid-1")
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    awaited = Outbox(sa.MetaData(), engine, url=one_url)

    async def rows(request: Request) -> PlainTextResponse:
        async with engine.connect() as connection:
            count = await connection.scalar(sa.select(sa.func.count("*")).select_from(TABLE))
        return PlainTextResponse(f"{count}, connections: {engine.pool.checkedin()}")  # type: ignore[attr-defined]

    async def disposed(request: Request) -> PlainTextResponse:
        await engine.dispose()
        return PlainTextResponse("")

    page = app(url=one_url, local_role="operator", outboxes={NAME: awaited})
    routes = [Route("/rows", rows), Route("/disposed", disposed), Mount("/jobs", page)]
    with serve(Starlette(routes=routes, lifespan=page.router.lifespan_context)) as shop:
        assert shop.get("/rows").text == "2, connections: 1"
        pool = engine.pool
        (found,) = shop.get("/jobs/api/outbox").json["outboxes"]
        assert [row["job_id"] for row in found["waiting_rows"]] == ["lost-1", "unpaid-1"]
        assert shop.get("/rows").text == "2, connections: 1"
        number = found["waiting_rows"][0]["number"]
        jobs = Page(shop.port, "/jobs")
        assert jobs.post(verb="delete-row", outbox=NAME, row=number).status == 303
        assert shop.get("/rows").text == "1, connections: 1"
        assert engine.pool is pool, "the application's connections stay open"
        shop.get("/disposed")


def test_a_dashboard_without_an_outbox(one_url: str) -> None:
    with serve(app(url=one_url, local_role="viewer")) as page:
        assert page.get("/api/outbox").json["outboxes"] == []
        assert "bide web --outbox shop.db:outbox" in page.get("/outbox").text
        assert ">Outbox</a>" not in page.get("/queues").text


def test_some_queues_or_an_outbox(one_url: str, outbox: Outbox) -> None:
    with pytest.raises(UsageError, match="rows of all queues"):
        app(url=one_url, local_role="viewer", queues=["mail"], outboxes={NAME: outbox})


@needs_browser
@pytest.mark.slow
def test_buttons_in_a_browser(outbox: Outbox, mail: Queue, tab: Callable[..., Tab]) -> None:
    write(outbox, mail, "lost-1", "lost-2", "unpaid-1")
    assert outbox.relay(burst=True) == 1
    opened = tab()
    opened.page.goto(f"{opened.address}/outbox")
    opened.page.get_by_role("button", name="Delete").first.click()
    opened.page.get_by_text("lost-1").first.wait_for(state="detached")
    assert [row.job_id for row in outbox.list_rows()] == ["lost-2"]
    assert opened.wrong == []
