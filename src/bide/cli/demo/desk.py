"""The desk: plays the orders, each at its time, and asks the queue for what they need.

For each order two jobs: a notification a little later, and a cancellation at the payment deadline.
An order that is paid has its cancellation taken back; whether that was in time, the queue says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from bide import Queue
from bide.cli.demo import tasks
from bide.cli.demo.journal import Journal, Opened, Order, Paid, Placed, now_us, to_us

NOTIFY_AFTER: Final = 0.4
"""Seconds of the scenario from an order to its notification."""

BATCH: Final = 200
"""Orders placed in one round trip at most."""


class Desk:
    """Plays a scenario."""

    def __init__(
        self, queue: Queue, journal: Journal, orders: Iterable[Order], speed: float
    ) -> None:
        self._queue = queue
        self._journal = journal
        self._speed = speed
        by_time = sorted(orders, key=lambda order: order.placed)
        self._to_place = deque((order.placed / speed, order) for order in by_time)
        payments = [
            ((order.placed + order.paid_after) / speed, order.number)
            for order in by_time
            if order.paid_after is not None
        ]
        self._to_pay = deque(sorted(payments))

    def open(self) -> None:
        """Note that the scenario begins."""
        self._journal.write(Opened(now_us(), self._speed, NOTIFY_AFTER))

    @property
    def next_at(self) -> float | None:
        """When something is to be done, in seconds since the start; None once all is done."""
        return min((todo[0][0] for todo in (self._to_place, self._to_pay) if todo), default=None)

    def step(self, elapsed: float) -> None:
        """Do what is to be done `elapsed` seconds after the start."""
        while self._to_place and self._to_place[0][0] <= elapsed:
            batch: list[Order] = []
            while self._to_place and self._to_place[0][0] <= elapsed and len(batch) < BATCH:
                batch.append(self._to_place.popleft()[1])
            self._place(batch)
        while self._to_pay and self._to_pay[0][0] <= elapsed:
            self._pay(self._to_pay.popleft()[1])

    def _place(self, orders: list[Order]) -> None:
        prepared = []
        for number, _, deadline, _ in orders:
            prepared += [
                self._queue.prepare(
                    tasks.notify, (number,), delay=scaled(NOTIFY_AFTER, self._speed)
                ),
                self._queue.prepare(
                    tasks.cancel_unpaid,
                    (number,),
                    delay=scaled(deadline, self._speed),
                    job_id=cancellation_of(number),
                ),
            ]
        asked_us = now_us()
        jobs = self._queue.enqueue_many(prepared)
        answered_us = now_us()
        for order, notify, cancel in zip(orders, jobs[::2], jobs[1::2], strict=True):
            self._journal.write(
                Placed(order.number, asked_us, answered_us, to_us(notify.due), to_us(cancel.due))
            )

    def _pay(self, number: str) -> None:
        asked_us = now_us()
        in_time = self._queue.cancel(cancellation_of(number), running=False)
        self._journal.write(Paid(number, asked_us, now_us(), in_time))


def scaled(seconds: float, speed: float) -> timedelta:
    """How long seconds of the scenario take."""
    return timedelta(microseconds=round(seconds / speed * 1e6))


def cancellation_of(number: str) -> str:
    """The id of an order's cancellation: the desk's own, so that a payment need not look it up."""
    return f"cancel-{number}"
