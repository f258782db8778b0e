"""An order desk at its work, for pictures and tests of the page: what was, is and will be.

fill(url)                 jobs in every state, three queues, a herd, a paused queue
crew(url)                 one worker that runs something slow, in this process's threads
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import bide
from bide import Queue, Retry, Worker
from bide.queue.core import chunks


def place_order(order: int, customer: str) -> str:
    return f"order {order} of {customer} is placed"


def remind(order: int, channel: str = "mail", api_token: str = "") -> str:
    return f"reminded of order {order} by {channel}"


def charge(order: int, cents: int) -> None:
    if order % 3 == 0:
        raise ConnectionError(f"payments.example did not answer within 5 s for order {order}")
    if order % 3 == 1:
        raise ValueError(f"card of order {order} was declined")
    raise KeyError("tax_rate")


def report(day: str) -> dict[str, Any]:
    job = bide.current_job()
    assert job is not None
    for done, step in ((0.2, "read 1,204 orders"), (0.45, "grouped them by region")):
        job.log(step)
        job.progress(done, step)
    deadline = time.monotonic() + 600
    while not job.cancelled and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"day": day}


def fill(url: str) -> None:
    """Enqueue, and run what is to have run."""
    dice = random.Random(7)
    orders, mail, nightly = (Queue(name, url=url) for name in ("orders", "mail", "reports"))
    names = ["ada", "grace", "linus", "barbara", "edsger"]

    orders.enqueue_many([orders.prepare(place_order, (i, dice.choice(names))) for i in range(180)])
    orders.enqueue_many([orders.prepare(charge, (i, 4200), retry=0) for i in range(100, 124)])
    mail.enqueue_many([mail.prepare(remind, (i,)) for i in range(60)])
    Worker([orders, mail], modules=[__name__], concurrency=8).work(burst=True)

    ahead: list[tuple[Queue, Any]] = []
    for i in range(900):
        minutes = dice.choice(
            (dice.uniform(0.1, 55), dice.gauss(25, 6) % 55, dice.uniform(60, 1200))
        )
        ahead.append(
            (
                orders,
                orders.prepare(place_order, (1000 + i, dice.choice(names)), delay=minutes * 60),
            )
        )
    for i in range(700):
        minutes = dice.choice(
            (dice.gauss(38, 5) % 58, dice.uniform(0.2, 58), dice.uniform(60, 40_000))
        )
        ahead.append(
            (
                mail,
                mail.prepare(
                    remind,
                    (2000 + i,),
                    {"channel": "sms", "api_token": "s3cr3t"},
                    delay=minutes * 60,
                ),
            )
        )
    for i in range(28):
        ahead.append(
            (nightly, nightly.prepare(report, (f"2030-02-{i + 1:02}",), delay=i * 86_400 + 3000))
        )
    herd = (datetime.now(UTC) + timedelta(minutes=33)).replace(second=0, microsecond=0)
    ahead += [(mail, mail.prepare(remind, (5000 + i,), at=herd)) for i in range(260)]
    for queue in (orders, mail, nightly):
        queue.enqueue_many([job for one, job in ahead if one is queue])
    mail.enqueue(charge, 99, 1200, delay=40, retry=Retry(5))
    first = next(iter(chunks([job.id for job in mail.jobs("delayed", count=12)])))
    mail.cancel_many(list(first))
    for queue in (orders, mail, nightly):
        queue.close()
