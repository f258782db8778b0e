"""What a live page offers: no button of a state that has passed, and none under one's finger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from bide import Queue, Worker
from tests.support.eventually import PATIENCE
from tests.web.browser import Tab, needs_browser
from tests.web.test_browser_live import CHANGE, TOLD

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = [pytest.mark.slow, needs_browser]

BUTTONS = ".head button[name=verb]:enabled"

SLOW = """window.rhythms = []; window.settle = null;
window.setInterval = (call, ms) => { rhythms.push(ms); return 0 };
const soon = window.setTimeout;
window.setTimeout = (call, ms, ...all) => {
  if (ms !== 1000) return soon(call, ms, ...all);
  window.settle = call;
  return 0;
}"""
"""A page on which the time that a new button needs to settle passes when a test says so."""

Open = Callable[[str], Any]


def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def opened(tab: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a page that is read again as soon as a test tells it of a change."""
    monkeypatch.setattr("bide.web.pages._LEAST", 0.0)
    monkeypatch.setattr("bide.web.pages._REST", 0)

    def open_page(path: str) -> Any:
        mine = tab()
        mine.page.add_init_script(f"{{ {TOLD}; {SLOW} }}")
        return mine.open(path)

    return open_page


def offered(page: Any, *titles: str) -> None:
    expect(page.locator(BUTTONS)).to_have_text(list(titles))


def test_a_job_that_has_moved_on_is_offered_what_it_can_be_asked_now(
    opened: Open, mail: Queue
) -> None:
    job = mail.enqueue(double, 21, delay=600)
    page = opened(f"/job?id={job.id}")
    offered(page, "Reschedule", "Run now", "Cancel")
    job.promote()
    page.evaluate(CHANGE)
    offered(page, "Reschedule", "Cancel")
    # In a thread: in this one, playwright's event loop runs.
    worker = Worker([mail], modules=[__name__])
    thread = threading.Thread(target=worker.run, kwargs={"burst": True})
    thread.start()
    thread.join(PATIENCE)
    page.evaluate(CHANGE)
    offered(page, "Run again", "Delete")
    expect(page.locator("#payload")).to_contain_text("Result")
    expect(page.locator("#payload")).to_contain_text("42")
    job.retry(delay=600)
    page.evaluate(CHANGE)
    offered(page, "Reschedule", "Run now", "Cancel")
    expect(page.locator(".state-line")).to_contain_text("delayed")
    times = page.evaluate("rhythms.filter((ms) => ms === 10_000).length")
    assert times == 2, "while it had ended, its page was read on changes only"


def test_a_pause_elsewhere_is_shown(opened: Open, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=600)
    mail.schedules.upsert("tick", "shop:tick", every="1h")
    of_queue, of_schedule = opened("/queue?q=mail"), opened("/schedule?q=mail&name=tick")
    offered(of_queue, "Pause")
    offered(of_schedule, "Run now", "Pause", "Remove …")
    mail.pause()
    mail.schedules.pause("tick")
    for page, titles in ((of_queue, ["Resume"]), (of_schedule, ["Run now", "Resume", "Remove …"])):
        page.evaluate(CHANGE)
        offered(page, *titles)
        expect(page.locator("h1 .badge")).to_have_text("paused")
    mail.resume()
    mail.schedules.resume("tick")
    for page, titles in ((of_queue, ["Pause"]), (of_schedule, ["Run now", "Pause", "Remove …"])):
        page.evaluate(CHANGE)
        offered(page, *titles)
        assert page.locator("h1 .badge").count() == 0


def test_a_list_of_jobs_says_how_many_there_are_of_each_state(opened: Open, mail: Queue) -> None:
    job = mail.enqueue("shop:remind", delay=600)
    page = opened("/jobs?state=delayed")
    assert page.locator("#all button").count() == 2
    job.cancel()
    page.evaluate(CHANGE)
    expect(page.locator("#states")).to_contain_text("cancelled 1")
    expect(page.locator("#states")).to_contain_text("delayed 0")
    expect(page.locator("#all button")).to_have_count(0)


def test_what_somebody_types_stays_and_what_has_passed_cannot_be_pressed(
    opened: Open, mail: Queue
) -> None:
    job = mail.enqueue("shop:remind", delay=600)
    page = opened(f"/job?id={job.id}")
    delay = page.locator("input[name=delay]")
    delay.fill("2h")
    page.evaluate(CHANGE)
    page.locator("#job").click()
    job.cancel()
    page.evaluate(CHANGE)
    offered(page, "Run again", "Delete")
    expect(delay).to_have_value("2h")
    expect(page.locator("button[value=reschedule]")).to_be_disabled()
    delay.fill("10m")
    delay.blur()
    expect(delay).to_have_count(0)


def test_a_form_shows_what_has_changed_elsewhere_unless_somebody_fills_it(
    opened: Open, mail: Queue
) -> None:
    mail.schedules.upsert("tick", "shop:tick", every="1h")
    page = opened("/schedule?q=mail&name=tick")
    every = page.locator("input[name=every]")
    expect(every).to_have_value("1h")
    mail.schedules.upsert("tick", "shop:tick", every="2h")
    page.evaluate(CHANGE)
    expect(every).to_have_value("2h")
    every.fill("90m")
    every.blur()
    mail.schedules.upsert("tick", "shop:tick", every="3h")
    page.evaluate(CHANGE)
    expect(page.locator("#schedule")).to_contain_text("every 3h")
    expect(every).to_have_value("90m")


def test_a_button_that_has_taken_anothers_place_is_not_pressed_at_once(
    opened: Open, mail: Queue
) -> None:
    mail.enqueue("shop:remind", delay=600)
    page = opened("/queue?q=mail")
    page.locator(BUTTONS).hover()
    mail.pause()
    page.evaluate(CHANGE)
    offered(page, "Resume")
    page.mouse.down()
    page.mouse.up()
    assert mail.counts().paused
    page.evaluate("settle()")
    page.locator(BUTTONS).click()
    offered(page, "Pause")
    assert not mail.counts().paused


def test_the_keyboard_stays_on_the_same_button_or_on_none(opened: Open, mail: Queue) -> None:
    job = mail.enqueue("shop:remind", delay=600)
    page = opened(f"/job?id={job.id}")
    page.focus("button[value=cancel]")
    job.promote()
    page.evaluate(CHANGE)
    offered(page, "Reschedule", "Cancel")
    page.evaluate("settle()")
    assert page.evaluate("document.activeElement.value") == "cancel"
    job.cancel()
    page.evaluate(CHANGE)
    offered(page, "Run again", "Delete")
    page.evaluate("settle()")
    assert page.evaluate("document.activeElement.tagName") == "BODY"


def test_nothing_is_offered_of_what_is_not_there_any_more(
    tab: Callable[..., Tab], mail: Queue
) -> None:
    job = mail.enqueue("shop:remind", delay=600)
    mine = tab()
    page = mine.live(f"/job?id={job.id}")
    job.delete()
    expect(page.locator("#pulse")).to_have_text("gone")
    assert page.locator(BUTTONS).count() == 0
    assert "shop:remind" in page.locator("h1").text_content()
    assert all("404" in each for each in mine.wrong), "the browser's own words for the status"
    mine.wrong.clear()
