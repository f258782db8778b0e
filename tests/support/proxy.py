"""A server's bad line: a proxy that loses replies and requests, delays them, refuses connections.

    with Proxy(server.url) as proxy:
        proxy.lose_reply(3)             # of what comes from now on
        client = sync.Client(proxy.url)

A reply is lost after the server has done what was asked: the replies before it arrive, then the
connection ends. A request is lost before the server has seen it. Both are counted over all
connections. The proxy listens on the loopback interface and runs in a thread of its own.

Beside what happens to single messages there is the state of the whole line: slow, dripping, reset,
deaf in one direction. Deaf is what a router does that has forgotten a connection: what is sent
disappears, nobody is told, and that connection never recovers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from tests.support.eventually import PATIENCE
from tests.support.resp import take_messages

Judge = Callable[[int, bytes], bool]
"""Whether the n-th message, counted from 1, is lost."""

Way = Literal["requests", "replies"]

_BITE = 1 << 16
_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER so that closing a connection resets it."""


class Delays(NamedTuple):
    """How fast the line is, in each direction."""

    delay: float = 0.0
    """Seconds by which each message is late."""
    drip: int = 0
    """Bytes that go out at a time; 0 for all."""
    pause: float = 0.0
    """Seconds between two drips."""


def _never(n: int, message: bytes) -> bool:
    return False


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close a connection, after what was written to it has gone out if its reader takes it."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1)
        return
    writer.transport.abort()


class Plan:
    """What is to go wrong; it counts from the moment at which it was made."""

    def __init__(
        self,
        replies: Judge = _never,
        requests: Judge = _never,
        then: Callable[[], object] | None = None,
        hangs: bool = False,
        late: tuple[bytes, float] | None = None,
        late_way: Way = "replies",
    ) -> None:
        self.replies = replies
        self.requests = requests
        self.then = then
        self.hangs = hangs
        self.late = late
        self.late_way = late_way
        self.replies_seen = 0
        self.requests_seen = 0
        self.lost = 0

    def loses_reply(self, message: bytes) -> bool:
        self.replies_seen += 1
        return self._loses(self.replies(self.replies_seen, message))

    def loses_request(self, message: bytes) -> bool:
        self.requests_seen += 1
        return self._loses(self.requests(self.requests_seen, message))

    def delay(self, message: bytes, way: Way) -> float:
        if self.late is None or way != self.late_way or self.late[0] not in message:
            return 0
        seconds, self.late = self.late[1], None
        if self.then is not None:
            self.then()
        return seconds

    def _loses(self, verdict: bool) -> bool:
        if verdict:
            self.lost += 1
            if self.then is not None:
                self.then()
        return verdict


class Proxy:
    """Stands between clients and one server until the end of its `with` block."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._plan = Plan()
        self._refuses = False
        self._delays = Delays()
        self._deaf: Way | None = None
        self.swallowed = 0
        """How many connections are deaf since `swallow` was first called."""
        self._loop = asyncio.new_event_loop()
        self._delivers = asyncio.Event()
        self._delivers.set()
        self._links: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0))
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{port}/0"
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def lost(self) -> int:
        """How many messages the present plan has lost."""
        return self._plan.lost

    @property
    def replies(self) -> int:
        """How many replies the present plan has seen, delivered or lost."""
        return self._plan.replies_seen

    def lose_reply(self, *numbers: int, then: Callable[[], object] | None = None) -> None:
        """Lose the replies with these numbers; `then` is called at each loss, before it shows."""
        self._plan = Plan(replies=lambda n, _: n in numbers, then=then)

    def hang_reply(self, *numbers: int) -> None:
        """Lose replies without a sign: their connections stay open, and silent."""
        self._plan = Plan(replies=lambda n, _: n in numbers, hangs=True)

    def hang_reply_with(self, text: bytes) -> None:
        """Lose, without a sign, the next reply that has this text."""
        self._plan = Plan(replies=lambda _, reply: text in reply and not self.lost, hangs=True)

    def delay_reply(self, text: bytes, seconds: float, then: Callable[[], object]) -> None:
        """Deliver the next reply that has this text late; `then` is called when it has come."""
        self._plan = Plan(late=(text, seconds), then=then)

    def delay_request(self, text: bytes, seconds: float) -> None:
        """Deliver the next request that has this text late, also when its sender has gone."""
        self._plan = Plan(late=(text, seconds), late_way="requests")

    def lose_replies_with(self, text: bytes) -> None:
        """Lose every reply that has this text."""
        self._plan = Plan(replies=lambda _, message: text in message)

    def lose_every_reply(self, k: int) -> None:
        """Lose every k-th reply."""
        self._plan = Plan(replies=lambda n, _: n % k == 0)

    def lose_request(self, *numbers: int) -> None:
        """Lose the requests with these numbers: the server does not see them."""
        self._plan = Plan(requests=lambda n, _: n in numbers)

    def lose_at_random(self, share: float, seed: int) -> None:
        """Lose this share of all requests, and of all replies."""
        dice = random.Random(seed)
        self._plan = Plan(lambda n, _: dice.random() < share, lambda n, _: dice.random() < share)

    def behave(self) -> None:
        """Lose nothing more."""
        self._plan = Plan()

    def hold(self) -> None:
        """Keep all replies back until `deliver`: the server works, and nobody hears of it."""
        self._call(self._set_delivers(False))

    def deliver(self) -> None:
        """Hand out what was kept back, and keep nothing back any more."""
        self._call(self._set_delivers(True))

    def slow_down(self, delay: float = 0.0, drip: int = 0, pause: float = 0.0) -> None:
        """Be as slow as this from now on; without arguments as fast as before."""
        self._delays = Delays(delay, drip, pause)

    def swallow(self, way: Way) -> None:
        """Let all that goes this way disappear, without a sign, until `hear`."""
        self._deaf = way

    def hear(self) -> None:
        """Be deaf no more: new connections work; those that were deaf stay so."""
        self._deaf = None

    def point_at(self, upstream: str) -> None:
        """Lead to another server from now on, as a failover does; all connections end."""
        self._upstream = upstream
        self.cut()

    def wait(self) -> None:
        """Wait until all connections have ended, and what came over them was handed on."""
        self._call(self._wait_all())

    def cut(self) -> None:
        """End all connections."""
        self._call(self._cut_all())

    def reset(self) -> None:
        """End all connections as a crash does: by a reset, with nothing delivered any more."""
        self._call(self._reset_all())

    def refuse(self) -> None:
        """End all connections, and each new one at once."""
        self._refuses = True
        self.cut()

    def accept(self) -> None:
        """Take connections again."""
        self._refuses = False

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    async def _set_delivers(self, delivers: bool) -> None:
        if delivers:
            self._delivers.set()
        else:
            self._delivers.clear()

    async def _cut_all(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _wait_all(self) -> None:
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _reset_all(self) -> None:
        for writer in list(self._clients):
            line: socket.socket = writer.get_extra_info("socket")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            writer.transport.abort()
        await self._cut_all()

    async def _close(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # whoever was accepted last begins, and so ends properly
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        self._clients.add(writer)
        try:
            if not self._refuses:
                await self._link(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(link)
            self._clients.discard(writer)
            await _end(writer)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry messages both ways until either side ends, or one is lost."""
        parts = urlsplit(self._upstream)
        if parts.scheme == "unix":
            server_reader, server_writer = await asyncio.open_unix_connection(unquote(parts.path))
        else:
            server_reader, server_writer = await asyncio.open_connection(parts.hostname, parts.port)
        ways = [
            asyncio.create_task(self._carry(reader, server_writer, "requests")),
            asyncio.create_task(self._carry(server_reader, writer, "replies")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server_writer.close()  # before anything is awaited: this may be cancelled once more
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await _end(server_writer)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Way
    ) -> None:
        data = bytearray()
        while bite := await source.read(_BITE):
            data += bite
            for message in take_messages(data):
                plan = self._plan
                loses = plan.loses_request if way == "requests" else plan.loses_reply
                if loses(message):
                    if plan.hangs:
                        await asyncio.Event().wait()
                    return
                await asyncio.sleep(plan.delay(message, way))
                if way == "replies":
                    await self._delivers.wait()
                if self._deaf == way:
                    self.swallowed += 1
                    await asyncio.Event().wait()
                await self._pour(sink, message)
            await sink.drain()

    async def _pour(self, sink: asyncio.StreamWriter, message: bytes) -> None:
        delays = self._delays
        if delays.delay:
            await asyncio.sleep(delays.delay)
        if not delays.drip:
            sink.write(message)
            return
        for start in range(0, len(message), delays.drip):
            sink.write(message[start : start + delays.drip])
            await sink.drain()
            await asyncio.sleep(delays.pause)
