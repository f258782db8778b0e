"""The page beside a queue that a test fills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bide import Queue
from bide.web import app
from tests.support.serving import Page, serve
from tests.web.browser import Tab, chromium


@pytest.fixture
def mail(one_url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


@pytest.fixture
def page(one_url: str) -> Iterator[Page]:
    """Read-only."""
    with serve(app(url=one_url, local_role="viewer")) as page:
        yield page


@pytest.fixture
def desk(one_url: str) -> Iterator[Page]:
    """An operator's."""
    with serve(app(url=one_url, local_role="operator")) as page:
        yield page


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIEWER", "OPERATOR"):
        monkeypatch.delenv(f"BIDE_WEB_{name}_TOKEN", raising=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser: Any, desk: Page) -> Iterator[Callable[..., Tab]]:
    tabs: list[Tab] = []

    def open_tab(**options: Any) -> Tab:
        tabs.append(Tab(browser, desk.address, **options))
        return tabs[-1]

    yield open_tab
    for each in tabs:
        each.close()
