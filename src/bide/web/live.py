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
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bide.errors import BideError
from bide.loops import PerLoop, Recent
from bide.web.access import Refused, Role
from bide.web.asked import Asked
from bide.web.site import Site

EVERY: Final = 1.0
"""Seconds between looks at the server, however many browsers watch."""

STREAMS: Final = 200
"""Browsers that are told, at most."""

_STEP: Final = 0.25
"""Seconds between looks whether the server stops."""

_QUIET: Final = 15.0
"""Seconds after which something is said, so that a connection that has gone is noticed."""


class _Look(NamedTuple):
    seen: float
    """When things stood so at the latest, of `time.time()`; hosts behind one address share it."""
    stand: int
    """A number for how things stood."""


@dataclass
class _Here:
    """What the streams of one event loop share."""

    streams: int = 0
    looks: Recent[_Look] = field(default_factory=lambda: Recent(EVERY * 0.9))


class Live:
    """Looks at the counts of all queues while anybody watches."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._per_loop = PerLoop(_Here)

    async def stream(self, site: Site, request: Request, asked: Asked, role: Role) -> Response:
        """Server-sent events: `change` with when it was seen, and `trouble` with a sentence."""
        here = self._per_loop.here
        if here.streams >= STREAMS:
            raise Refused(f"{STREAMS} pages are live already; reload this one by hand.", 503)
        if request.method == "HEAD":  # whoever asks waits for the end of what is not shown
            return Response(media_type="text/event-stream")
        return StreamingResponse(
            self._events(here), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _events(self, here: _Here) -> AsyncIterator[str]:
        here.streams += 1
        try:
            yield "retry: 2000\n\n"
            known: int | None = None
            said = time.monotonic()
            while not _server_stops():
                event = ""
                try:
                    look = await self._next_look(here)
                    if look is None:
                        return
                    if look.stand != known:
                        known, event = look.stand, f"event: change\ndata: {look.seen}\n\n"
                except BideError as error:
                    known, event = None, f"event: trouble\ndata: {json.dumps(str(error))}\n\n"
                if not event and time.monotonic() - said > _QUIET:
                    event = ": still here\n\n"
                if event:
                    said = time.monotonic()
                    yield event
                for _ in range(round(EVERY / _STEP)):
                    if not _server_stops():
                        await asyncio.sleep(_STEP)
        finally:
            here.streams -= 1

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
            tuple((one.name, one.alive, one.about.busy) for one in workers),
        )
        return _Look(time.time(), hash(stand))


def _server_stops() -> bool:
    """Whether uvicorn was told to: its handler of signals belongs to what knows."""
    handlers = map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
    return any(getattr(getattr(each, "__self__", None), "should_exit", False) for each in handlers)
