"""The dashboard in tests: a test bed moves it, and it uses no server that a test did not name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bide import Queue, UsageError
from bide.testing import TestBed, eager
from bide.web import app
from tests.support.serving import serve

NOWHERE = "redis://127.0.0.1:1"


def asked(page: Any) -> None:
    """Call the application as a server does."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }

    async def send(message: Any) -> None:
        """Drop the answer: its error is raised, too."""

    async def request() -> None:
        await page(scope, None, send)

    asyncio.run(request())


def test_a_bed_moves_the_dashboard_and_its_clock(one_url: str) -> None:
    queue = Queue("mail", url=NOWHERE)
    with serve(app(url=NOWHERE, local_role="viewer")) as page:
        for _ in range(2):
            with TestBed(one_url) as bed:
                assert page.get("/api/queues").json["queues"] == {}
                queue.enqueue("shop:remind", delay=3600)
                assert page.get("/api/queues").json["queues"]["mail"]["delayed"] == 1
                bed.advance("2h")
                assert page.get("/api/queues").json["queues"]["mail"]["waiting"] == 1
        assert page.get("/api/queues").status == 503, "it is back where it was"


def test_eager_mode_has_nothing_that_it_could_show() -> None:
    page = app(url=NOWHERE, local_role="viewer")
    with eager(), pytest.raises(UsageError, match="Eager mode has no server whose jobs"):
        asked(page)


def test_it_uses_no_server_that_the_test_did_not_name() -> None:
    page = app(local_role="viewer")
    with pytest.raises(UsageError, match="In this test the dashboard would use the real server"):
        asked(page)
