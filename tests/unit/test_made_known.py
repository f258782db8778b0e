"""Making a queue known, beside its first enqueue; without a server."""

from __future__ import annotations

import time

import pytest

from bide import Queue, ServerUnavailable
from bide.queue.binding import KNOWN_FOR, REST
from bide.queue.core import Exchange


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock; what is put into it is the time."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[-1])
    return now


def trip_of(queue: Queue) -> Exchange:
    (trip,) = queue._pipeline([queue.prepare("shop:send")], queue._binding)
    return trip


def calls(trip: Exchange) -> list[tuple[str, bool]]:
    return [(command.script, command.best_effort) for command in trip.commands]


def test_it_goes_along_with_the_first_enqueue_and_is_not_worth_a_repeat(now: list[float]) -> None:
    queue = Queue("mail", url="redis://127.0.0.1:1")
    trip = trip_of(queue)
    assert calls(trip) == [("enqueue", False), ("queue_register", True)]
    trip.read([[], None], [])
    assert calls(trip_of(queue)) == [("enqueue", False)]


def test_where_it_fails_it_is_not_tried_again_by_each_enqueue(now: list[float]) -> None:
    queue = Queue("mail", url="redis://127.0.0.1:1")
    trip_of(queue).read([[], ServerUnavailable("its node is down")], [])
    now.append(now[-1] + REST - 1)
    assert calls(trip_of(queue)) == [("enqueue", False)]
    now.append(now[-1] + 1)
    assert calls(trip_of(queue)) == [("enqueue", False), ("queue_register", True)]


def test_it_is_made_known_again_later_because_it_may_have_been_forgotten(now: list[float]) -> None:
    queue = Queue("mail", url="redis://127.0.0.1:1")
    trip_of(queue).read([[], None], [])
    now.append(now[-1] + KNOWN_FOR - 1)
    assert calls(trip_of(queue)) == [("enqueue", False)]
    now.append(now[-1] + 1)
    assert calls(trip_of(queue)) == [("enqueue", False), ("queue_register", True)]
