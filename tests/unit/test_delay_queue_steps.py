"""What a delay queue sends and when it waits, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bide.errors import ServerUnavailable
from bide.model.job import Claimed
from bide.model.payload.body import encode_item
from bide.protocol.command import Command
from bide.protocol.commands.worker import Claim, Popped
from bide.protocol.keys import keys_of
from bide.queue.delay import core
from bide.queue.delay.core import DelayCore
from bide.queue.delay.items import CloseListener, Send, TakeOptions, WaitForWakeUp
from bide.queue.delay.sessions import ConsumerSession, ConsumerSessions

KEYS = keys_of("orders")
NOW = 1_795_214_038_547_684
EMPTY = Claim(NOW, NOW + 2_000_000, 0, False, False, False, [])
JOB = Claimed("a", encode_item("x"), 7, 1, 0, NOW, NOW)
FOUND = EMPTY._replace(until_us=0, jobs=[JOB])
FOREVER = TakeOptions(1, 30_000_000, None)


def asked(step: Any) -> Command[Any]:
    """The one command of a round trip."""
    assert isinstance(step, Send)
    (command,) = step.commands
    return command


def claim_args(step: Any) -> tuple[Any, ...]:
    command = asked(step)
    assert command.script == "claim"
    return tuple(command.args[1:6])


class Clock:
    """A monotonic clock that the test moves."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(core, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_a_take_waits_until_the_server_says_and_asks_again(clock: Clock) -> None:
    steps = DelayCore().taking(KEYS, FOREVER)
    assert claim_args(next(steps)) == (1, 1, 30_000_000, 0, 1)
    clock.now += 0.5  # until the reply is there
    step = steps.send([EMPTY])
    assert isinstance(step, WaitForWakeUp)
    assert step.until == pytest.approx(1_002), "from the moment at which the claim was sent"
    assert claim_args(steps.send("-")) == (2, 1, 30_000_000, 0, 1)


def test_no_wait_is_longer_than_was_asked_for_and_the_last_look_promises_nothing(
    clock: Clock,
) -> None:
    steps = DelayCore().taking(KEYS, TakeOptions(1, 30_000_000, 0.5))
    next(steps)
    clock.now += 0.2
    step = steps.send([EMPTY])
    assert isinstance(step, WaitForWakeUp)
    assert step.until == pytest.approx(1_000.5)
    clock.now = step.until
    assert claim_args(steps.send(None))[-1] == 0


def test_a_hint_that_came_too_late_is_passed_on() -> None:
    steps = DelayCore().taking(KEYS, FOREVER)
    next(steps)
    steps.send([EMPTY])
    steps.send("-")
    assert isinstance(steps.send([FOUND]), CloseListener)
    assert claim_args(steps.send(True)) == (3, 0, 30_000_000, 0, 0)
    with pytest.raises(StopIteration) as end:
        steps.send([EMPTY])
    assert end.value.value == [(JOB, "x")]


def test_without_one_nothing_more_is_sent() -> None:
    steps = DelayCore().taking(KEYS, FOREVER)
    next(steps)
    assert isinstance(steps.send([FOUND]), CloseListener)
    with pytest.raises(StopIteration):
        steps.send(False)


def test_its_own_hint_is_news_once() -> None:
    """It called a backup, and nobody else was there."""
    seat = ConsumerSession()
    assert seat.is_news(seat.name)
    assert not seat.is_news(seat.name)
    assert seat.is_news(seat.name)
    assert seat.is_news("-")
    assert seat.is_news("other")


def test_what_a_call_had_in_hand_when_it_was_cut_off_is_given_back() -> None:
    core = DelayCore()
    steps = core.taking(KEYS, FOREVER)
    next(steps)
    assert isinstance(steps.send([FOUND]), CloseListener)
    steps.close()
    command = asked(next(core.taking(KEYS, FOREVER)))
    assert command.script == "settle"
    assert list(command.args[:3]) == ["a", f"{7:016d}", "release"]


def test_a_call_without_an_answer_is_the_next_one_of_its_kind() -> None:
    core = DelayCore()
    steps = core.taking(KEYS, FOREVER)
    first = asked(next(steps))
    with pytest.raises(ServerUnavailable):
        steps.throw(ServerUnavailable("no answer"))
    pop = asked(next(core.popping(KEYS, 1, 0)))
    assert pop.args[0] != first.args[0], "another seat"
    assert asked(next(core.taking(KEYS, FOREVER))).args[:2] == first.args[:2]


def test_what_was_popped_before_a_later_call_failed_is_handed_out() -> None:
    steps = DelayCore().popping(KEYS, 2, 0)
    next(steps)
    steps.send([Popped([encode_item(1)], True, 0, ids=["a"])])
    with pytest.raises(StopIteration) as end:
        steps.throw(ServerUnavailable("no answer"))
    assert end.value.value == [1]


def test_what_was_popped_by_a_call_that_was_cancelled_comes_first() -> None:
    core = DelayCore()
    steps = core.popping(KEYS, 2, 0)
    next(steps)
    steps.send([Popped([encode_item(1)], True, 0, ids=["a"])])
    steps.close()
    with pytest.raises(StopIteration) as end:
        next(core.popping(KEYS, 1, 0))
    assert end.value.value == [1]


def test_a_seat_is_nobody_elses_until_it_is_put_back() -> None:
    seats = ConsumerSessions()
    one = seats.take("pop")
    assert seats.take("pop") is not one
    seats.put(one)
    assert seats.take("claim") is one
