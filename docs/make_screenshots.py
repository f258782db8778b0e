"""Makes the pictures of the page in `docs/static/`: an order desk at its work, light and dark.

    python docs/make_screenshots.py

Starts a server, a worker and the page of its own, fills them, and drives the system's chromium.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import uvicorn

from bide import JobFailed, Queue, Retry, Worker, current_job
from bide.client import config
from bide.embedded import Server
from bide.protocol.scripts import SHARED_CLOCK
from bide.queue.core import leave_overridden
from bide.testing.expect import Store
from bide.web import app

HERE: Final = Path(__file__).parent / "static"

RETRIED: Final = "order-A-0208"
"""The job of which there is a picture: it fails five times."""

STEPS: Final = 40
STEP_US: Final = 15_000_000
"""How many stretches the past has, and how long each is, in microseconds."""


orders, mail, reports = (Queue(name) for name in ("orders", "mail", "reports"))
stopping = threading.Event()


@orders.task(name="cancel_unpaid")
def cancel_unpaid(order: str) -> str:
    """A job of the desk."""
    return f"{order} is paid"


@orders.task(name="charge", retry=Retry(4))
def charge(order: str, cents: int) -> None:
    """One that fails."""
    time.sleep(0.002)
    if order.endswith("7"):
        raise ValueError(f"the card of {order} was declined")
    raise ConnectionError(f"payments.example did not answer within 5 s for {order}")


@mail.task(name="notify")
def notify(order: str, channel: str = "mail", api_token: str = "") -> str:
    """One with a secret."""
    time.sleep(0.002)
    return f"told about {order} by {channel}"


@reports.task(name="nightly_report")
def nightly_report(day: str) -> None:
    """One that runs until the end."""
    job = current_job()
    assert job is not None
    for done, step in ((0.2, "read 41,204 orders"), (0.45, "grouped them by region")):
        job.log(step)
        job.progress(done, step)
    while not job.should_stop and not stopping.wait(0.1):
        pass


def number(dice: random.Random) -> str:
    """An order's."""
    return f"A-{dice.randrange(10_000):04}"


def fill(url: str) -> None:
    """What was, and what is to come."""
    dice = random.Random(7)
    past(url, dice)

    def minutes(centre: float) -> float:
        near, far = dice.gauss(centre, 6) % 57 + 0.4, dice.uniform(60, 1300)
        return dice.choice((near, near, dice.uniform(0.4, 57), far))

    ahead = [
        orders.prepare(cancel_unpaid, (number(dice),), delay=minutes(24) * 60) for _ in range(900)
    ]
    orders.enqueue_many(ahead)
    secret = {"channel": "sms", "api_token": "s3cr3t"}
    told = [
        mail.prepare(notify, (number(dice),), secret, delay=minutes(41) * 60) for _ in range(700)
    ]
    at = (datetime.now(UTC) + timedelta(minutes=33)).replace(second=0, microsecond=0)
    mail.enqueue_many([*told, *(mail.prepare(notify, (f"B-{i:04}",), at=at) for i in range(640))])
    for day in range(28):
        nightly_report.later(day * 86_400 + 3000).enqueue(f"2030-02-{day + 1:02}")
    nightly_report.enqueue("2030-01-31")
    mail.schedules.upsert("digest", "notify", ["all"], every="20s")
    cron, zone = "0 3 * * *", "Europe/Berlin"
    reports.schedules.upsert("nightly", "nightly_report", ["today"], cron=cron, tz=zone)
    charge.options(job_id=RETRIED).enqueue("A-0208", 1200)


def past(url: str, dice: random.Random) -> None:
    """The last ten minutes, on a clock that is set back and moved until it is right again."""
    clock = Store(url, "bide")
    with config.override(clock=SHARED_CLOCK):
        clock.advance(-STEPS * STEP_US)
        for step in range(STEPS):
            told = round(6 + 3 * math.sin(step / 5) + dice.uniform(0, 3))
            orders.enqueue_many([cancel_unpaid.prepare(number(dice)) for _ in range(told)])
            mail.enqueue_many([notify.prepare(number(dice)) for _ in range(told)])
            failing = [(f"A-{100 + step:04}", 4200)] * (step % 7 == 3 or 2 * (step > STEPS - 6))
            orders.enqueue_many([orders.prepare(charge, given, retry=0) for given in failing])
            Worker([orders, mail], concurrency=8).run(burst=True)
            clock.advance(STEP_US)
    leave_overridden()


def pictures(address: str) -> None:
    """Every picture, of pages that have settled."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox"],
        )
        for scheme in ("light", "dark"):
            page = browser.new_page(
                color_scheme=scheme,
                viewport={"width": 1180, "height": 850},
                locale="en-GB",
                timezone_id="UTC",
            )
            for name, path in (
                ("timeline", "/"),
                ("job", f"/job?q=orders&id={RETRIED}"),
            ):
                page.goto(address + path)
                page.wait_for_selector("#pulse[data-is=live]")
                # What a traceback names are the folders of whoever makes the pictures.
                page.evaluate(
                    "for (const it of document.querySelectorAll('details')) it.open = false"
                )
                page.screenshot(path=HERE / f"page-{name}-{scheme}.png")
        browser.close()


def main() -> None:
    """Make the pictures."""
    with Server.start() as server:
        os.environ["BIDE_URL"] = server.url
        fill(server.url)
        worker = Worker([orders, mail, reports], concurrency=4)
        working = threading.Thread(target=worker.run)
        working.start()
        listener = socket.create_server(("127.0.0.1", 0))
        serving = uvicorn.Server(
            uvicorn.Config(
                app(local_role="operator"), log_level="warning", timeout_graceful_shutdown=1
            )
        )
        web = threading.Thread(target=serving.run, kwargs={"sockets": [listener]})
        web.start()
        try:
            with suppress(JobFailed):
                orders.fetch(RETRIED).wait(60)
            pictures(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            stopping.set()
            serving.should_exit = True
            worker.stop()
            web.join()
            working.join()


if __name__ == "__main__":
    main()
