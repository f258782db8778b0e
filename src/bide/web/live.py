"""Live pages: browsers are told that something has changed, and ask for the page again.

A server that is told to stop waits for its responses to end, and a stream has no end of its own. So
each looks whether uvicorn, which passes no word of it on, has been told; other servers cut it off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bide.client.coalesce import PerLoop, ReadThroughCache
from bide.errors import BideError
from bide.views._async import AsyncSite
from bide.views.params import Params
from bide.web.access import Role, check_origin

EVERY: Final = 1.0
"""Seconds between looks at the server, however many browsers watch."""

STREAMS: Final = 200
"""Streams that are open at once, at most."""

STREAMS_OF_ONE: Final = 100
"""Streams of one address, at most: one client alone does not use up the streams of all."""

_STEP: Final = 0.25
"""Seconds between looks whether the server stops."""

_QUIET: Final = 15.0
"""Seconds after which something is said, so that a connection that has gone is noticed."""

_AGAIN_MS: Final = 2_000
"""After how long a browser connects again, if its connection breaks."""
_LATER_MS: Final = 60_000
"""After how long it does so if its stream was ended to make room: otherwise two would end each
other's stream in turn."""


class _Look(NamedTuple):
    seen: float
    """When things stood so at the latest, of `time.time()`; hosts behind one address share it."""
    stand: int
    """A number for how things stood."""


@dataclass(eq=False)
class _Stream:
    """A browser that is told."""

    client: str
    """Its address."""
    is_over: bool = False
    """Whether it has made room for another."""


@dataclass
class _Here:
    """What the streams of one event loop share."""

    streams: dict[_Stream, None] = field(default_factory=dict)
    """The oldest first."""
    looks: ReadThroughCache[_Look] = field(default_factory=lambda: ReadThroughCache(EVERY * 0.9))

    def begin(self, client: str) -> _Stream:
        """Add a stream. If there are too many, the oldest one of the address with most ends.

        So every new client gets a stream, however many another client keeps open.
        """
        fresh = _Stream(client)
        self.streams[fresh] = None
        open_ones = Counter(each.client for each in self.streams)
        if open_ones[client] > STREAMS_OF_ONE:
            self._end_oldest(client)
        elif len(self.streams) > STREAMS:
            self._end_oldest(open_ones.most_common(1)[0][0])
        return fresh

    def _end_oldest(self, client: str) -> None:
        oldest = next(each for each in self.streams if each.client == client)
        oldest.is_over = True
        del self.streams[oldest]


class Live:
    """Looks at the counts of all queues while anybody watches."""

    def __init__(self, site: AsyncSite) -> None:
        self._site = site
        self._per_loop = PerLoop(_Here)

    async def stream(
        self, site: AsyncSite, request: Request, params: Params, role: Role
    ) -> Response:
        """Server-sent events: `change` with when it was seen, and `failure` with a sentence.

        Another site's page is refused: its browser would keep the connection.
        """
        check_origin(request)
        if request.method == "HEAD":  # a stream would not end, and the client waits for its end
            return Response(media_type="text/event-stream")
        client = request.client.host if request.client else ""
        return StreamingResponse(
            self._events(self._per_loop.current, client),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def _events(self, here: _Here, client: str) -> AsyncIterator[str]:
        stream = here.begin(client)
        try:
            yield f"retry: {_AGAIN_MS}\n\n"
            known: int | None = None
            said = time.monotonic()
            while not (stream.is_over or _server_stops()):
                event = ""
                try:
                    look = await self._next_look(here)
                    if look is None:
                        return
                    if look.stand != known:
                        known, event = look.stand, f"event: change\ndata: {look.seen}\n\n"
                except BideError as error:
                    known, event = None, f"event: failure\ndata: {json.dumps(str(error))}\n\n"
                if not event and time.monotonic() - said > _QUIET:
                    event = ": still here\n\n"
                if event:
                    said = time.monotonic()
                    yield event
                for _ in range(round(EVERY / _STEP)):
                    if not (stream.is_over or _server_stops()):
                        await asyncio.sleep(_STEP)
            if stream.is_over:
                yield f"retry: {_LATER_MS}\n\n"
        finally:
            here.streams.pop(stream, None)

    async def _next_look(self, here: _Here) -> _Look | None:
        """How things stand; None where the server stops before that is known."""
        while not _server_stops():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STEP):
                    return await here.looks.read("", self._look)
        return None

    async def _look(self) -> _Look:
        names = await self._site.queues()
        counts = await self._site.counts(names)
        workers = await self._site.workers(jobs=0)
        stand = (
            tuple((name, str(each._replace(now_us=0))) for name, each in counts.items()),
            tuple((one.name, one.alive, one.about.paused, one.about.busy) for one in workers),
        )
        return _Look(time.time(), hash(stand))


def _server_stops() -> bool:
    """Whether uvicorn was told to: its handler of signals belongs to what knows."""
    handlers = map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
    return any(getattr(getattr(each, "__self__", None), "should_exit", False) for each in handlers)
