"""A real browser for a module of tests: the system's chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.eventually import PATIENCE

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

needs_browser = pytest.mark.skipif(
    not CHROMIUM, reason="there is no chromium: apt install chromium"
)


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


class Tab:
    """A page of the browser, and what went wrong on it."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(locale="en-GB", timezone_id="UTC", **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.address = address
        self.wrong: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.wrong.append(f"asked {request.url}")

    def open(self, path: str = "/") -> Any:
        self.page.goto(self.address + path)
        return self.page

    def live(self, path: str = "/") -> Any:
        """Open a page, and wait until it is live."""
        page = self.open(path)
        page.wait_for_selector("#pulse[data-is=live]")
        return page

    def close(self) -> None:
        self.context.close()
        assert self.wrong == [], self.wrong
