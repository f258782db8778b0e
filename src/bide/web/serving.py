"""Serving the page by itself, as `bide web` and `bide dev` do.

uvicorn waits for the rest of a request without a limit. A client that sends half a request would
keep its connection for ever, and a thousand such clients would take all connections of the process.
So a request must arrive whole within `PATIENCE`. Of the connections that wait for a request, the
newest `MOST_WAITING` are kept.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, ClassVar, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

LAST_WORDS: Final = 5
"""Seconds that a request has to end, once the page is told to stop: a change of many jobs, or a
server that does not answer. Streams end at once."""

PATIENCE: Final = 10.0
"""Seconds within which a request must arrive, with its headers and its body."""

MOST_WAITING: Final = 100
"""Connections that wait for a request, or for the rest of one, at most."""

_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def serve(page: Starlette, listener: socket.socket) -> None:
    """Serve a page until a signal says to stop."""
    server(page, timeout_graceful_shutdown=LAST_WORDS).run(sockets=[listener])


def server(page: Any, **options: Any) -> uvicorn.Server:
    """Make a server of an ASGI application that bounds half requests; `options` are uvicorn's."""

    class Bounded(_Bounded):
        """A connection to this server."""

        waiting: ClassVar[dict[_Bounded, None]] = {}

    config = uvicorn.Config(
        page,
        http=Bounded,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        **options,
    )
    return uvicorn.Server(config)


class _Bounded(H11Protocol):
    """A connection that is closed if its request does not arrive.

    h11 bounds the size of incomplete headers; uvicorn bounds how much of a body is read ahead.
    """

    waiting: ClassVar[dict[_Bounded, None]]
    """Connections whose request has not arrived, the oldest first."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self._is_answered():
            self._stop_waiting()
        elif self not in self.waiting and not self.transport.is_closing():
            self._wait()

    def _is_answered(self) -> bool:
        """Whether a whole request has arrived, whose response is on its way."""
        cycle = self.cycle
        return cycle is not None and not (cycle.more_body or cycle.response_complete)

    def _wait(self) -> None:
        self.waiting[self] = None
        self._deadline = self.loop.call_later(PATIENCE, self._give_up)
        if len(self.waiting) > MOST_WAITING:
            next(iter(self.waiting))._give_up()

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            cycle = self.cycle
            if cycle is None or not cycle.response_started:
                self.transport.write(_TIMEOUT)
            self.transport.close()
