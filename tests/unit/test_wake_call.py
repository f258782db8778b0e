"""The blocking call for wake-up messages, over connections that fail."""

from __future__ import annotations

import asyncio

import pytest

from bide.client.pubsub import WakeCall

pytestmark = pytest.mark.anyio


class Connection:
    """Breaks at the reply; or, `hangs`, cannot be made."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs = hangs
        self.connecting = asyncio.Event()
        self.closed = False

    async def connect(self) -> None:
        self.connecting.set()
        if self.hangs:
            await asyncio.Event().wait()

    async def send_packed_command(self, command: bytes, check_health: bool) -> None:
        """It goes nowhere."""

    async def read_response(self) -> None:
        raise OSError("broken")

    async def disconnect(self, nowait: bool) -> None:
        self.closed = True


async def test_a_command_is_lost_once() -> None:
    left = [Connection()]

    async def make() -> Connection:
        if not left:
            raise OSError("no connection can be made")
        return left.pop()

    call = WakeCall(make, lambda: None, "list")
    with pytest.raises(OSError, match="broken"):
        await call.wait(b"claim")
    assert call.has_command
    with pytest.raises(OSError, match="no connection"):
        await call.wait()
    assert not call.has_command


async def test_a_connection_that_is_being_made_is_closed_too() -> None:
    connection = Connection(hangs=True)

    async def make() -> Connection:
        return connection

    call = WakeCall(make, lambda: None, "list")
    waiting = asyncio.ensure_future(call.wait())
    await connection.connecting.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert connection.closed
