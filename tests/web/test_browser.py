"""The page in a real browser: nothing broken, nothing run that was not ours, live, by keyboard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest

from bide import Queue, Worker, current_job
from bide.model.payload.body import Body
from bide.protocol.commands import enqueue as enqueue_commands
from tests.support.eventually import PATIENCE
from tests.support.serving import Page
from tests.web.browser import Tab, needs_browser

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = [pytest.mark.slow, needs_browser]

PAYLOADS = (
    "<script>window.hit=1;alert(1)</script>",
    '<img src=x onerror="window.hit=1">',
    '"><svg onload=window.hit=1>',
    "' onmouseover='window.hit=1' x='",
    "javascript:window.hit=1",
    "{{ 7*7 }}{% raw %}",
    "</pre></script><script>window.hit=1</script>",
    "\u202etxet desrever\u2066 \x1b[31m\x00\x07",
    "&lt;script&gt;window.hit=1&lt;/script&gt;",
    '<iframe srcdoc="<script>parent.hit=1</script>"></iframe>',
)


def nasty(payload: str) -> str:
    job = current_job()
    assert job is not None
    job.log(payload)
    job.progress(0.5, payload)
    raise type(payload[:60].replace("\x00", ""), (Exception,), {})(payload)


def shows(payload: str) -> str:
    return payload


def paths(desk: Page, mail: Queue) -> list[str]:
    id = desk.get("/api/jobs", q="mail").json["jobs"][0]["id"]
    some = [
        "/",
        "/?span=minute",
        "/?span=month",
        "/lateness",
        "/schedules",
        "/schedule?q=mail&name=tick",
        "/queues",
        "/groups?q=mail",
        "/queue?q=mail",
        "/jobs",
        "/range?from=2020-01-01T00:00Z&to=2120-01-01T00:00Z",
    ]
    return [*some, f"/job?q=mail&id={id}", "/failures", "/workers", "/jobs?text=nothing"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_every_page_is_whole(
    scheme: str, width: int, tab: Callable[..., Tab], desk: Page, mail: Queue
) -> None:
    at = datetime.now(UTC) + timedelta(minutes=20)
    mail.enqueue_many([mail.prepare("shop:remind", (i,), at=at) for i in range(150)])
    mail.schedules.upsert("tick", "shop:tick", every="10s")
    mail.enqueue_call("shop:remind", delay=60, group="customer-7")
    mail.enqueue("shop:" + "long_name" * 20, "x" * 400, delay=90)
    with closing(Queue("long_name" * 12, url=mail.url)) as other:
        other.enqueue_many([other.prepare("shop:remind", (i,), at=at) for i in range(150)])
    mine = tab(color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in paths(desk, mail):
        page = mine.open(path) if path.startswith("/range") else mine.live(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate(NAMELESS) == [], path
        assert page.locator("h1").count() == 1, path
        dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, dark[4:-1].split(","))) < 200) == (scheme == "dark")
        faint = page.evaluate(FAINT)
        assert faint == [], path


NAMELESS = """() => [...document.querySelectorAll(`a, button,
  input:not([type=hidden]), select, progress, meter, nav, svg[role]`)].filter(e =>
  !(e.getAttribute('aria-label') || e.labels?.length
  || e.textContent.trim() || e.getAttribute('aria-hidden'))).map(e => e.outerHTML)"""
"""What no screen reader could name."""

FAINT = """() => {
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = c => { const [r, g, b] = c.map(v => { v /= 255;
    return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 });
    return .2126 * r + .7152 * g + .0722 * b };
  const ground = e => { for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length && (c[3] === undefined || c[3] === 1)) return c.slice(0, 3) }
    return [255, 255, 255] };
  const found = [];
  for (const e of document.querySelectorAll('main *, header *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest('svg')) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(rgb(style.color).slice(0, 3)), light(ground(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) found.push(e.outerHTML.slice(0, 120) + ' ' + style.color);
  }
  return found }"""
"""Text whose contrast is below 4.5 : 1."""


def test_nothing_that_a_job_says_is_run(tab: Callable[..., Tab], desk: Page, mail: Queue) -> None:
    for payload in PAYLOADS:
        mail.enqueue_call(shows, (payload,), description=payload, meta={payload: payload})
        mail.enqueue_call(nasty, (payload,), retry=0)
        strange = enqueue_commands.prepare(
            Body(f"app:{payload}", [payload]), 60
        )  # another program's
        mail.enqueue_many([strange])
    odd = "<img/src=x/onerror=window.hit=1>"  # names have no spaces
    mail.schedules.upsert(odd, "shop:tick", [odd], every="1h")
    mail.enqueue_call("shop:remind", (odd,), delay=600, group=odd)
    # In a thread: in this one, playwright's event loop runs.
    worker = Worker([mail], modules=[__name__], concurrency=4)
    thread = threading.Thread(target=worker.run, kwargs={"burst": True})
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    page = tab().page
    jobs = desk.get("/api/jobs", count=100).json["jobs"]
    assert len(jobs) == 3 * len(PAYLOADS) + 1
    wanted = ["/", "/failures", "/jobs", "/queue?q=mail", "/schedules", "/groups?q=mail"]
    wanted.append(f"/schedule?{urlencode({'q': 'mail', 'name': odd})}")
    wanted += [f"/job?q=mail&id={job['id']}" for job in jobs if job["state"] != "completed"]
    # What is asked for is written into the page too.
    wanted += [f"/jobs?{urlencode({'text': each, 'task': each})}" for each in PAYLOADS]
    for path in wanted:
        page.goto(desk.address + path, wait_until="domcontentloaded")
        assert page.evaluate(FOREIGN) == [], path
        assert page.evaluate("window.hit") is None, path


FOREIGN = """() => [...document.querySelectorAll('*')].filter(e =>
  ['IFRAME', 'IMG', 'OBJECT', 'EMBED', 'BASE'].includes(e.tagName)
  || (e.tagName === 'SCRIPT' && !e.src.startsWith(location.origin + '/static/'))
  || [...e.attributes].some(a => /^on|^srcdoc$|^style$/i.test(a.name))
  || /^javascript:/i.test(e.getAttribute('href') || '')
  || /[\\u202a-\\u202e\\u2066-\\u2069\\u0000-\\u0008\\u001b]/.test(e.textContent)
  ).map(e => e.outerHTML.slice(0, 200))"""
"""Elements that no template has."""


def test_a_page_is_live(tab: Callable[..., Tab], mail: Queue) -> None:
    first = mail.enqueue("shop:remind", delay=600)
    page = tab().live("/queue?q=mail")
    expect(page.locator(".figures .delayed b")).to_have_text("1")
    mail.enqueue("shop:remind", delay=600)
    expect(page.locator(".figures .delayed b")).to_have_text("2")
    first.cancel()
    page.wait_for_selector(".figures .cancelled:has-text('1')")


def test_a_page_that_is_held_stays_as_it_is(tab: Callable[..., Tab], mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=600)
    mine = tab()
    held, other = mine.live("/queue?q=mail"), tab().live("/queue?q=mail")
    held.click("#pulse")
    held.wait_for_selector("#pulse[data-is=held]")
    mail.enqueue("shop:remind", delay=600)
    expect(other.locator(".figures .delayed b")).to_have_text("2")
    assert held.locator(".figures .delayed b").text_content() == "1"
    held.click("#pulse")
    expect(held.locator(".figures .delayed b")).to_have_text("2")


def test_a_countdown_counts(tab: Callable[..., Tab], mail: Queue) -> None:
    job = mail.enqueue("shop:remind", delay=600)
    page = tab().live(f"/job?id={job.id}")
    shown = page.locator(".countdown time")
    before = shown.text_content()
    assert before.startswith(("in 9m", "in 10m"))
    expect(shown).not_to_have_text(before)


def fill_the_hour(mail: Queue) -> None:
    """120 jobs in the tenth minute from now, and 30 in the fortieth."""
    mail.enqueue_many([mail.prepare("shop:remind", (i,), delay=600) for i in range(120)])
    mail.enqueue_many([mail.prepare("shop:remind", (i,), delay=2400) for i in range(30)])


def test_a_range_is_chosen_by_dragging(tab: Callable[..., Tab], mail: Queue) -> None:
    fill_the_hour(mail)
    page = tab().live("/")
    page.click("#pulse")  # so that it stands still
    box = page.locator("#chart").bounding_box()
    at = [box["x"] + box["width"] * part / 141 for part in (21.5, 60.5)]
    page.mouse.move(at[0], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(at[1], box["y"] + 40, steps=4)
    page.mouse.up()
    assert page.locator("#choice").text_content().startswith("120 jobs due from ")
    page.click("#choose button")
    page.wait_for_selector("h1:has-text('120 jobs due in this range')")


def test_a_range_is_chosen_by_keyboard_and_spread(tab: Callable[..., Tab], mail: Queue) -> None:
    fill_the_hour(mail)
    page = tab().live("/")
    page.click("#pulse")
    page.focus("#chart")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    assert page.locator("#choice").text_content().startswith("Drag over")
    assert page.locator("#from").input_value() == page.locator("#to").input_value() == ""
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+PageDown")
    page.keyboard.press("Shift+PageDown")
    assert page.locator("#choice").text_content().startswith("120 jobs due from ")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('120 jobs due in this range')")
    page.fill("input[name=over]", "20m")
    page.click("button[value=spread]")
    page.wait_for_selector("h1:has-text('Spread 120 jobs evenly over the next 20m?')")
    assert len(mail.upcoming(500, within="9m")) == 0
    page.click("button[name=sure]")
    page.wait_for_selector("h1:has-text('120 jobs spread')")
    assert 40 < len(mail.upcoming(500, within="9m")) < 60


def test_a_queue_is_paused_with_a_button(tab: Callable[..., Tab], mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=600)
    page = tab().live("/queue?q=mail")
    page.click("button[value=pause]")
    page.wait_for_selector("button[value=resume]")
    assert mail.counts().paused


def test_what_somebody_types_is_not_taken_away(tab: Callable[..., Tab], mail: Queue) -> None:
    job = mail.enqueue("shop:remind", delay=600)
    page = tab().live(f"/job?id={job.id}")
    page.fill("input[name=delay]", "33m")
    job.reschedule(delay=7200)
    page.wait_for_selector(".countdown time:has-text('in 1h')")
    assert page.input_value("input[name=delay]") == "33m"


def test_what_has_the_focus_is_exchanged_and_keeps_it(tab: Callable[..., Tab], mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=600)
    page = tab().live("/")
    page.focus("#as-table summary")
    page.keyboard.press("Enter")
    mail.enqueue("shop:remind", delay=2000)
    page.wait_for_selector("#as-table tbody tr + tr")
    assert page.evaluate("document.activeElement.matches('#as-table summary')")
    assert page.evaluate("document.getElementById('as-table').open")


def test_a_schedule_is_changed_after_a_look_at_its_times(
    tab: Callable[..., Tab], mail: Queue
) -> None:
    mail.schedules.upsert("report", "shop:report", cron="0 9 * * *", tz="Europe/Berlin")
    mine = tab(viewport={"width": 390, "height": 800})
    page = mine.live("/schedules")
    page.click("a:has-text('report')")
    page.fill("input[name=cron]", "61 * * * *")
    page.click("button:has-text('Preview')")
    expect(page.locator("[role=alert]")).to_contain_text("is not a cron expression")
    assert len(mine.wrong) == 1, "the browser's own words for the status"
    assert "400" in mine.wrong.pop()
    page.fill("input[name=cron]", "30 6 * * *")
    page.fill("input[name=tz]", "Asia/Tokyo")
    page.click("button:has-text('Preview')")
    rows = page.locator(".schedule-times tbody tr")
    expect(rows).to_have_count(10)
    assert "21:30:00" in rows.first.text_content(), "the reader's time, which is UTC here"
    assert "06:30:00 JST" in rows.first.text_content()
    assert mail.schedules.fetch("report").when == "0 9 * * * Europe/Berlin"
    page.click("button:has-text('Save')")
    page.wait_for_selector("dd:has-text('30 6 * * * Asia/Tokyo')")
    assert mail.schedules.fetch("report").when == "30 6 * * * Asia/Tokyo"
    current = page.locator(".top nav [aria-current]").bounding_box()
    assert 0 <= current["x"] <= 390 - current["width"], "the page's name is in view"
