"""What a delay queue sends and when it waits, without a server."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Generator, Sequence
from types import SimpleNamespace, coroutine
from typing import Any, NamedTuple

import pytest

from bide import AsyncDelayQueue
from bide.errors import BideError, ServerUnavailable
from bide.model.job import Claimed
from bide.model.payload.body import encode_item
from bide.protocol.commands import Command
from bide.protocol.commands.worker import Claim, ClaimSession, Popped
from bide.queue._async import delay as delay_queue
from bide.queue.items import ConsumerSessions, TakeOptions

NOW = 1_795_214_038_547_684
EMPTY = Claim(NOW, NOW + 2_000_000, 0, False, False, False, [])
JOB = Claimed("a", encode_item("x"), 7, 1, 0, NOW, NOW)
FOUND = EMPTY._replace(until_us=0, jobs=[JOB])
FOREVER = TakeOptions(1, 30_000_000, None)


class Send(NamedTuple):
    """One round trip; its answer is the list of results."""

    commands: Sequence[Command[Any]]


class Wait(NamedTuple):
    """A wait for a wake-up message; its answer is the sender."""

    until: float


class Close(NamedTuple):
    """The end of listening; its answer is whether a message had come."""


@coroutine
def step(what: Send | Wait | Close) -> Generator[Any, Any, Any]:
    return (yield what)


class Stepped(AsyncDelayQueue):
    """A delay queue, and its client and its listener, that leave each step to the test."""

    def __init__(self) -> None:
        super().__init__("orders")

    @property
    def _client(self) -> Any:
        return self

    def _listen(self, client: Any, key: str) -> Any:
        return self

    async def _stop_listening(self, listener: Any) -> bool:
        return bool(await step(Close()))

    async def wait(self, until: float) -> Any:
        return await step(Wait(until))

    async def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        results: list[Any] = await step(Send(commands)) if commands else []
        for result in results:
            if isinstance(result, BideError):
                raise result
        return results

    async def run(self, command: Command[Any]) -> Any:
        return (await self.run_many([command]))[0]

    def taking(self, options: TakeOptions) -> Any:
        return self._take(options, self._closes)

    def popping(self, count: int) -> Any:
        return self._pop(count, 0)


def asked(step: Any) -> Command[Any]:
    """The one command of a round trip."""
    assert isinstance(step, Send)
    (command,) = step.commands
    assert isinstance(command, Command)
    return command


def claim_args(step: Any) -> tuple[Any, ...]:
    command = asked(step)
    assert command.script == "claim"
    return tuple(command.args[1:6])


def cancel(steps: Any) -> None:
    """Cancel a take that has waited: it stops listening."""
    assert isinstance(steps.throw(CancelledError()), Close)
    with pytest.raises(CancelledError):
        steps.send(False)


class Clock:
    """A monotonic clock that the test moves."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(delay_queue, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_a_take_waits_until_the_server_says_and_asks_again(clock: Clock) -> None:
    steps = Stepped().taking(FOREVER)
    assert claim_args(steps.send(None)) == (1, 1, 30_000_000, 0, 1)
    clock.now += 0.5  # until the reply is there
    step = steps.send([EMPTY])
    assert isinstance(step, Wait)
    assert step.until == pytest.approx(1_002), "from the moment at which the claim was sent"
    assert claim_args(steps.send("-")) == (2, 1, 30_000_000, 0, 1)
    cancel(steps)


def test_no_wait_is_longer_than_was_asked_for_and_the_last_look_sets_no_deadline(
    clock: Clock,
) -> None:
    steps = Stepped().taking(TakeOptions(1, 30_000_000, 0.5))
    steps.send(None)
    clock.now += 0.2
    step = steps.send([EMPTY])
    assert isinstance(step, Wait)
    assert step.until == pytest.approx(1_000.5)
    clock.now = step.until
    assert claim_args(steps.send(None))[-1] == 0
    cancel(steps)


def test_a_wakeup_that_came_too_late_is_passed_on() -> None:
    steps = Stepped().taking(FOREVER)
    steps.send(None)
    steps.send([EMPTY])
    steps.send("-")
    assert isinstance(steps.send([FOUND]), Close)
    assert claim_args(steps.send(True)) == (3, 0, 30_000_000, 0, 0)
    with pytest.raises(StopIteration) as end:
        steps.send([EMPTY])
    assert end.value.value == [(JOB, "x")]


def test_without_one_nothing_more_is_sent() -> None:
    steps = Stepped().taking(FOREVER)
    steps.send(None)
    steps.send([EMPTY])
    steps.send("-")
    assert isinstance(steps.send([FOUND]), Close)
    with pytest.raises(StopIteration):
        steps.send(False)


def test_its_own_wakeup_is_news_once() -> None:
    """It called a backup, and nobody else was there."""
    session = ClaimSession("me")
    assert session.is_news(session.consumer)
    assert not session.is_news(session.consumer)
    assert session.is_news(session.consumer)
    assert session.is_news("-")
    assert session.is_news("other")


def test_what_a_call_had_in_hand_when_it_was_cut_off_is_given_back() -> None:
    queue = Stepped()
    steps = queue.taking(FOREVER)
    steps.send(None)
    steps.send([EMPTY])
    steps.send("-")
    assert isinstance(steps.send([FOUND]), Close)
    steps.close()
    command = asked(queue.taking(FOREVER).send(None))
    assert command.script == "settle"
    assert list(command.args[:3]) == ["a", f"{7:016d}", "release"]


def test_a_call_without_an_answer_is_the_next_one_of_its_kind() -> None:
    queue = Stepped()
    steps = queue.taking(FOREVER)
    first = asked(steps.send(None))
    with pytest.raises(ServerUnavailable):
        steps.throw(ServerUnavailable("no answer"))
    pop = asked(queue.popping(1).send(None))
    assert pop.args[0] != first.args[0], "another session"
    assert asked(queue.taking(FOREVER).send(None)).args[:2] == first.args[:2]


def test_what_was_popped_before_a_later_call_failed_is_handed_out() -> None:
    steps = Stepped().popping(2)
    steps.send(None)
    steps.send([Popped([encode_item(1)], True, 0, ids=["a"])])
    with pytest.raises(StopIteration) as end:
        steps.throw(ServerUnavailable("no answer"))
    assert end.value.value == [1]


def test_what_was_popped_by_a_call_that_was_cancelled_comes_first() -> None:
    queue = Stepped()
    steps = queue.popping(2)
    steps.send(None)
    steps.send([Popped([encode_item(1)], True, 0, ids=["a"])])
    steps.close()
    with pytest.raises(StopIteration) as end:
        queue.popping(1).send(None)
    assert end.value.value == [1]


def test_a_session_is_nobody_elses_until_it_is_put_back() -> None:
    sessions = ConsumerSessions()
    one = sessions.take("pop")
    assert sessions.take("pop") is not one
    sessions.put(one)
    assert sessions.take("claim") is one
