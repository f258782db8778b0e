"""Round trips as the executors make them: what is late is not sent; what a broken one means."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from redis import exceptions as lib

from bide.client import aio, blocking, execute
from bide.client.execute import Call, DeadlineExceeded, Route
from bide.client.topology import Delivery, NodeRequest
from bide.errors import ServerUnavailable
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import keys_of

NOBODY = "redis://127.0.0.1:1"
"""Refuses connections."""
COMMAND = job_commands.pause(keys_of("mail"))


class Slow:
    """Routes that have to ask long for the way."""

    only = None

    def __init__(self, now: list[float], *seconds: float) -> None:
        self.answers: list[Any] = []
        self._now = now
        self._seconds = [*seconds]

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        self._now.append(self._now[-1] + self._seconds.pop(0))
        (answer,) = yield [NodeRequest(NOBODY, [*calls])]
        self.answers.append(answer)
        return answer

    def must_be_master(self, node: str) -> bool:
        return False


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the parts under test; what is put into it is the time."""
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[-1], sleep=time.sleep)
    for module in (aio, execute, execute, blocking):
        monkeypatch.setattr(module, "time", clock)
    return now


def test_a_repeat_that_is_late_is_not_sent_by_the_blocking_one(now: list[float]) -> None:
    client: Any = blocking.Client(NOBODY)
    client._state = client._state._replace(reached=True)
    client._routes = Slow(now, 8, 1, 2)
    with pytest.raises(ServerUnavailable, match="refused"):
        client.run(COMMAND)
    broken, again, late = client._routes.answers
    assert isinstance(broken, lib.ConnectionError)
    assert isinstance(again, lib.ConnectionError)
    assert isinstance(late, DeadlineExceeded)


@pytest.mark.anyio
async def test_nor_by_the_awaited_one(now: list[float]) -> None:
    client: Any = aio.AsyncClient(NOBODY)
    client._state = client._state._replace(reached=True)
    client._routes = Slow(now, 8, 1, 2)
    with pytest.raises(ServerUnavailable, match="connect"):
        await client.run(COMMAND)
    broken, again, late = client._routes.answers
    assert isinstance(broken, lib.ConnectionError)
    assert isinstance(again, lib.ConnectionError)
    assert isinstance(late, DeadlineExceeded)


@pytest.mark.anyio
async def test_nor_what_has_waited_for_its_turn(now: list[float]) -> None:
    client: Any = aio.AsyncClient(NOBODY)
    steps = client._routes.deliver([("PING",)], ["key"])
    slots = client._open.current.slots
    for _ in range(aio.CONNECTIONS):
        await slots.acquire()
    waiting = asyncio.create_task(client._drive(steps, until=now[-1] + 10))
    await asyncio.sleep(0)
    now.append(now[-1] + 11)
    slots.release()
    assert isinstance(await waiting, DeadlineExceeded)


@pytest.mark.parametrize("is_question", [True, False])
def test_that_jobs_are_not_served_a_question_does_not_show(is_question: bool) -> None:
    client: Any = blocking.Client(NOBODY)
    client._talk(NodeRequest(NOBODY, [("PING",)], is_question), None)
    assert client.answers is is_question


@pytest.mark.anyio
@pytest.mark.parametrize("is_question", [True, False])
async def test_by_neither_executor(is_question: bool) -> None:
    client: Any = aio.AsyncClient(NOBODY)
    await client._visit(NodeRequest(NOBODY, [("PING",)], is_question), 0, None)
    assert client.answers is is_question


@pytest.mark.anyio
async def test_each_reply_has_the_time_of_one_reply(now: list[float]) -> None:
    connection = SimpleNamespace(_writer=SimpleNamespace())
    deadline = aio._ReplyDeadline(connection, 5)
    deadline.start()
    now.append(now[-1] + 4)
    deadline.replied_at = now[-1]
    now.append(now[-1] + 4)
    deadline._look()
    assert (deadline.has_passed, connection._writer is None) == (False, False)
    now.append(now[-1] + 2)
    deadline._look()
    assert (deadline.has_passed, connection._writer is None) == (True, True)
    deadline.end()


@pytest.mark.anyio
async def test_a_connection_that_a_deadline_broke_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its reply may have come all the same, if the process was held up."""
    client: Any = aio.AsyncClient(NOBODY)
    connection = SimpleNamespace(is_connected=False)
    monkeypatch.setattr(client, "_maker", lambda node: lambda: connection)

    async def talk(*args: Any) -> list[Any]:
        return ["PONG"]

    monkeypatch.setattr(client, "_talk", talk)
    request = NodeRequest(NOBODY, [("PING",)])
    assert await client._visit(request, 0, None) == ["PONG"]
    assert client._open.current.idle == {NOBODY: []}
    connection.is_connected = True
    await client._visit(request, 0, None)
    assert client._open.current.idle == {NOBODY: [connection]}


@pytest.mark.anyio
async def test_the_time_to_send_does_not_count_for_the_first_reply(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[Any] = []

    class Noted(aio._ReplyDeadline):
        def start(self) -> None:
            deadlines.append(self)
            super().start()

    class Slowly:
        is_connected = True
        _writer = None

        async def send_packed_command(self, packed: bytes, *, check_health: bool) -> None:
            now.append(now[-1] + 4)

        async def read_response(self) -> bytes:
            now.append(now[-1] + 4)
            deadlines[0]._look()
            return b"PONG"

    monkeypatch.setattr(aio, "_ReplyDeadline", Noted)
    client: Any = aio.AsyncClient(NOBODY)
    answer = await client._talk(Slowly(), NodeRequest(NOBODY, [("PING",)]), 5)
    assert (answer, deadlines[0].has_passed) == ([b"PONG"], False)
