"""What keeps a page live in a real browser: its line to the server, its reads, its clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from bide import Queue
from bide.web import app
from tests.support.serving import serve
from tests.web.browser import Tab, needs_browser

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = [pytest.mark.slow, needs_browser]

COUNT = ".figures .delayed b"

SEEN = """(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden,
  configurable: true }); document.dispatchEvent(new Event('visibilitychange')) }"""
"""Brings a page before its reader, or away."""

LINES = """window.lines = [];
window.EventSource = class extends EventSource {
  constructor(...all) { super(...all); window.lines.push(this) } }"""
"""A page that keeps its lines to the server where a test sees them."""

CLOSED = "lines.every((line) => line.readyState === EventSource.CLOSED)"

QUICK = """
const slowly = window.setInterval;
window.setInterval = (call, after) => slowly(call, Math.min(after, 50))"""
"""A page that is read again without waiting."""

STATES = """window.states = [];
new MutationObserver(() => states.push(document.getElementById('pulse').dataset.is)).observe(
  document, { subtree: true, attributes: true, attributeFilter: ['data-is'] })"""
"""A page that remembers what it has said of its line."""

TOLD = """window.asked = 0;
const real = window.fetch;
window.setInterval = () => 0;
window.fetch = (...all) => { window.asked += 1; return real(...all) };
window.EventSource = class extends EventTarget { constructor() { super(); window.line = this }
  close() {} }"""
"""A page that a test tells of changes."""

CHANGE = "line.dispatchEvent(new MessageEvent('change', { data: '0' })), window.asked"


def restless(tab: Callable[..., Tab], mail: Queue, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The page of a queue with a delayed job, that is read again as soon as a test tells it to."""
    monkeypatch.setattr("bide.web.pages._LEAST", 0.0)
    monkeypatch.setattr("bide.web.pages._REST", 0)
    mail.enqueue("shop:remind", delay=600)
    mine = tab()
    mine.page.add_init_script(TOLD)
    return mine.open("/queue?q=mail")


@pytest.mark.parametrize(("least", "asked"), [(0.0, 1), (3600.0, 0)])
def test_a_change_reads_a_page_again_when_it_may_be(
    tab: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch, least: float, asked: int
) -> None:
    monkeypatch.setattr("bide.web.pages._LEAST", least)
    monkeypatch.setattr("bide.web.pages._REST", 0)
    mine = tab()
    mine.page.add_init_script(TOLD)
    page = mine.open("/workers")
    assert page.evaluate(CHANGE) == asked


def test_a_change_that_comes_while_a_page_is_read_is_not_lost(
    tab: Callable[..., Tab], mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = restless(tab, mail, monkeypatch)
    read: list[Any] = []

    def answer(route: Any) -> None:
        if not read:  # the first is read, and another change comes before it has arrived
            read.append(route.fetch())
            mail.enqueue("shop:remind", delay=600)
            page.evaluate(CHANGE)
            route.fulfill(response=read[0])
        else:
            route.continue_()

    page.route("**/queue?q=mail", answer)
    page.evaluate(CHANGE)
    expect(page.locator(COUNT)).to_have_text("2")


def test_who_was_shown_an_older_read_reads_again(
    tab: Callable[..., Tab], mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = restless(tab, mail, monkeypatch)
    before = page.request.get(page.url).text()
    mail.enqueue("shop:remind", delay=600)
    page.route("**/queue?q=mail", lambda route: route.fulfill(body=before), times=1)
    page.evaluate(CHANGE.replace("'0'", "String(Date.now() / 1000)"))
    expect(page.locator(COUNT)).to_have_text("2")


def test_what_a_page_did_not_have_appears(tab: Callable[..., Tab], mail: Queue) -> None:
    page = tab().live("/")
    assert page.locator("#chart").count() == 0
    mail.enqueue("shop:remind", delay=600)
    expect(page.locator("#chart")).to_be_visible()

    page = tab().live("/queue?q=mail")
    search = page.locator("input[name=text]")
    search.fill("half a wo")
    mail.enqueue_call("shop:remind", delay=600, group="customer-7")
    expect(page.locator(COUNT)).to_have_text("2")
    expect(search).to_have_value("half a wo")
    assert page.locator("#groups").count() == 0, "it would take away what is typed"
    search.blur()
    mail.enqueue("shop:remind", delay=600)
    expect(page.locator("#groups")).to_contain_text("customer-7")


def test_a_page_that_nobody_sees_has_no_line_and_one_that_was_refused_tries_again(
    tab: Callable[..., Tab], mail: Queue
) -> None:
    mail.enqueue("shop:remind", delay=600)
    first, second = tab(), tab()
    first.page.add_init_script(LINES)
    away = first.live("/queue?q=mail")
    second.page.route("**/api/live", lambda route: route.fulfill(status=503), times=1)
    second.page.add_init_script(STATES)
    page = second.live("/queue?q=mail")
    assert page.evaluate("states")[:3] == ["wait", "lost", "live"]
    assert not away.evaluate(CLOSED)
    away.evaluate(SEEN, True)
    assert away.evaluate(CLOSED)
    mail.enqueue("shop:remind", delay=600)
    expect(page.locator(COUNT)).to_have_text("2")
    assert away.locator(COUNT).text_content() == "1"
    away.evaluate(SEEN, False)
    expect(away.locator(COUNT)).to_have_text("2")
    assert all("503" in each for each in second.wrong), "the browser's own words for the status"
    second.wrong.clear()


def test_a_page_without_a_stream_says_nothing_of_it_and_reads_its_changes(
    browser: Any, one_url: str, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.pages._LEAST", 0.0)
    monkeypatch.setattr("bide.web.pages._REST", 0)
    mail.enqueue("shop:remind", delay=600)
    made = app(url=one_url, local_role="operator")
    made.state.has_stream = False  # as a view of Django
    with serve(made) as desk, closing(Tab(browser, desk.address)) as mine:
        mine.page.add_init_script(LINES + QUICK)
        page = mine.open("/queue?q=mail")
        expect(page.locator(COUNT)).to_have_text("1")
        mail.enqueue("shop:remind", delay=600)
        expect(page.locator(COUNT)).to_have_text("2")
        assert page.evaluate("lines.length") == 0
        expect(page.locator("#pulse")).to_be_hidden()
        page.route("**/queue?q=mail", lambda route: route.fulfill(status=503))
        expect(page.locator("#pulse")).to_have_text("lost")
        page.unroute("**/queue?q=mail")
        expect(page.locator("#pulse")).to_be_hidden()
        assert all("503" in each for each in mine.wrong), "the browser's own words for the status"
        mine.wrong.clear()


def test_a_countdown_is_by_the_servers_clock(tab: Callable[..., Tab], mail: Queue) -> None:
    job = mail.enqueue("shop:remind", delay=600)
    mine = tab()
    mine.page.add_init_script("const real = Date.now; Date.now = () => real() + 3_600_000")
    shown = mine.live(f"/job?id={job.id}").locator(".countdown time")
    assert shown.text_content().startswith(("in 9m", "in 10m"))


def test_what_a_screen_reader_says_is_not_said_again(tab: Callable[..., Tab], mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=600)
    page = tab().live("/")
    page.focus("#chart")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#said")).to_contain_text("due from")
    again = """() => new Promise((done) => { let said = 0;
      new MutationObserver(() => { said += 1 }).observe(document.getElementById('said'),
        { childList: true, characterData: true, subtree: true });
      document.addEventListener('page:refreshed', () => setTimeout(() => done(said))) })"""
    assert page.evaluate(again) == 0
