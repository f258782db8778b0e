"""The ASGI application: routes, headers of responses, live updates, and a server.

uvicorn waits for the rest of a request without a limit. A client that sends half a request would
keep its connection without end, and a thousand such clients would take all connections of the
process. So a request must arrive whole within `PATIENCE`. Of the connections that wait for a
request, the newest `MOST_WAITING` are kept.

Pages are live: a stream notifies browsers of changes, and they request the page again. A server
that stops waits for its responses to end, and a stream does not end by itself. So each stream
checks whether uvicorn, which does not notify applications, is stopping; other servers cut streams
off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from bide.client import config
from bide.client.coalesce import PerLoop, ReadThroughCache
from bide.errors import BideError, UsageError
from bide.logs import plain
from bide.queue.binding import Permit, moved
from bide.queue.select import Mask
from bide.views import READS
from bide.views._async import AsyncSite
from bide.views.job import read_mask
from bide.views.params import NotFound, Params
from bide.web.access import (
    HEADERS,
    Access,
    Authorize,
    Refused,
    Role,
    check_origin,
    check_reader,
    extra_headers,
    status_and_sentence,
)
from bide.web.actions import act
from bide.web.pages import failed_as_page, page, recent, version
from bide.worker.relay import OutboxLike


async def data(site: AsyncSite, request: Request, params: Params, role: Role) -> Response:
    """Return the result of a read as JSON."""
    read = READS.get(name := request.path_params["name"])
    if read is None:
        raise NotFound(f"There is no /api/{name}; there are {', '.join(READS)}.")
    return _json(await read(site, params), 200)


def failed_as_json(request: Request, error: Exception) -> Response:
    """Return an error as `{"error": sentence}`."""
    status, sentence = status_and_sentence(error)
    return _json({"error": sentence}, status)


def _json(value: Any, status: int) -> Response:
    text = json.dumps(plain(value))  # in ASCII, which no browser can misread
    return Response(text, status, extra_headers(status), "application/json")


VARIABLES: Final = {Role.VIEWER: "BIDE_WEB_VIEWER_TOKEN", Role.OPERATOR: "BIDE_WEB_OPERATOR_TOKEN"}
"""The variables with the tokens that apply if none are given."""


def credentials_are_set() -> bool:
    """Whether the environment has a token."""
    return any(os.environ.get(name) is not None for name in VARIABLES.values())


LONGEST_FORM: Final = 100_000
"""Maximum bytes of a form."""

Answer = Callable[[AsyncSite, Request, Params, Role], Awaitable[Response]]
Failed = Callable[[Request, Exception], Response]


def _check_outboxes(outboxes: object) -> None:
    if not isinstance(outboxes, Mapping):
        raise UsageError(f"outboxes must be a dict of each Outbox by its name, not {outboxes!r}.")
    for name, outbox in outboxes.items():
        if not hasattr(outbox, "list_rows"):
            raise UsageError(f"outboxes has {outbox!r} as {name!r}, which is not an Outbox.")


def app(
    *,
    url: str | None = None,
    prefix: str | None = None,
    queues: Sequence[str] | None = None,
    viewer_token: str | None = None,
    operator_token: str | None = None,
    authorize: Authorize | None = None,
    local_role: Role | str | None = None,
    mask: Mask | str | None = None,
    outboxes: Mapping[str, OutboxLike] | None = None,
) -> Starlette:
    """Create the dashboard, an ASGI application that you serve or mount in another application.

    Args:
        url: the URL of the server; default as for `Queue`.
        prefix: the prefix of all keys; default as for `Queue`.
        queues: the queues that the dashboard shows; default all.
        viewer_token: the token of viewers, 16 characters or more; default `$BIDE_WEB_VIEWER_TOKEN`.
        operator_token: the token of operators, who also change things; default
            `$BIDE_WEB_OPERATOR_TOKEN`.
        authorize: a function that decides instead of tokens, for an application with users of its
            own. It takes a Starlette request, and returns `"viewer"`, `"operator"` or None. It may
            be a coroutine function.
        local_role: the role of requests from this machine, if there is no token and no `authorize`.
            For development, and for a dashboard that is behind no proxy.
        mask: the function that masks payloads and errors, or its name: `"secrets"`
            (`mask_secrets`), `"none"` or `"module:function"`. Default `$BIDE_MASK`, otherwise
            `mask` in `[tool.bide]`, otherwise `"secrets"`.
        outboxes: outboxes whose rows the dashboard shows, by the names that it gives them. They
            have rows of all queues, so `queues` may not be given too. They are read in threads.

    Raises:
        UsageError: an argument is invalid, or no argument gives a role to any request.
    """
    if authorize is None and viewer_token is None and operator_token is None:
        viewer_token = os.environ.get(VARIABLES[Role.VIEWER])
        operator_token = os.environ.get(VARIABLES[Role.OPERATOR])
    access = Access(viewer_token, operator_token, authorize, local_role)
    if outboxes and queues is not None:
        raise UsageError("An outbox has rows of all queues; give either outboxes= or queues=.")
    if isinstance(queues, str):
        raise UsageError(f"queues must be a list of names, such as [{queues!r}], not text.")
    if outboxes is not None:
        _check_outboxes(outboxes)
    masked = read_mask(mask)

    def make() -> AsyncSite:
        site = AsyncSite(url, prefix, queues, masked)
        site.outboxes.update(outboxes or {})
        return site

    sites = _Sites(make, url)
    live = Live(sites)

    def route(path: str, answer: Answer, failed: Failed, method: str = "GET") -> BaseRoute:
        return Route(path, _guarded(sites, access, answer, failed), methods=[method])

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        """Close the client at shutdown. A mounted app gets no lifespan events, and needs none."""
        yield
        await sites.close()

    static = _Static(packages=[("bide.web", "static")])
    made = Starlette(
        routes=[
            route("/", page, failed_as_page),
            Mount("/static/{version}", static),
            route("/api/live", live.stream, failed_as_json),
            route("/api/{name}", data, failed_as_json),
            route("/do", act, failed_as_page, "POST"),
            route("/{name}", page, failed_as_page),
            # Otherwise Starlette redirects by the Host header, before the authentication.
            route("/{path:path}", _without_slash, failed_as_page),
        ],
        middleware=[Middleware(_WithHeaders)],
        lifespan=lifespan,
    )
    made.state.recent = recent()
    made.state.has_stream = True
    return made


async def _without_slash(site: AsyncSite, request: Request, params: Params, role: Role) -> Response:
    """Redirect an address that ends with a slash to the one without, on this host."""
    path: str = request.path_params["path"]
    name = path.rstrip("/")
    read = name.removeprefix("api/")
    if name == path or (read not in READS and name != "api/live"):
        raise NotFound(f"There is no page {path[:60]!r}.")
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(params.address(f"{root}/{name}"), 307)


class _Sites:
    """The site of the settings in force: a test bed moves the dashboard as it moves the queues."""

    def __init__(self, make: Callable[[], AsyncSite], url: str | None) -> None:
        self._make = make
        self._permit = Permit(url)
        self._generation = config.generation
        self._site = make()

    @property
    def current(self) -> AsyncSite:
        """The site; raises `UsageError` if the running test may not use its server."""
        if config.overridden().fake_server is not None:
            raise UsageError(
                "Eager mode has no server whose jobs the dashboard could show; use the fixture "
                "bide_test instead."
            )
        if self._generation != config.generation:
            self._leave_overridden()
            if config.overridden() != config.Override():
                moved.add(self)
        self._permit.check("the dashboard", self._site.client.url)
        return self._site

    def _leave_overridden(self) -> None:
        """Close the client, and make another for the settings in force."""
        self._site.client.abandon()
        self._generation, self._site = config.generation, self._make()

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._site.client.close()


def _guarded(
    sites: _Sites, access: Access, answer: Answer, failed: Failed
) -> Callable[[Request], Awaitable[Response]]:
    """Wrap an answer: check credentials and origin first, and turn errors into responses."""

    async def guarded(request: Request) -> Response:
        site = sites.current  # outside of `try`, so that a test sees the error
        try:
            role = await access.role(request)
            text = request.scope["query_string"]
            if request.method == "POST":
                check_origin(request)
                text = await _form(request)
            else:
                check_reader(request)
            return await answer(site, request, Params(text), role)
        except ClientDisconnect:  # the client does not read the answer
            return Response(status_code=400)
        except Exception as error:  # a `BideError` is shown; others are logged
            return failed(request, error)

    return guarded


async def _form(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_FORM:
            raise Refused(
                f"A form has {LONGEST_FORM:,} bytes at most; change fewer jobs at a time.", 413
            )
    return body


Scope = MutableMapping[str, Any]


class _Static(StaticFiles):
    """Static files, which browsers cache because their addresses contain the version."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if scope["path_params"]["version"] == version():  # an old page may request another
            response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


class _WithHeaders:
    """Adds the headers that restrict browsers to every response."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self.app(scope, receive, with_headers)


# -- live pages


EVERY: Final = 1.0
"""Seconds between reads of the server, however many browsers watch."""

STREAMS: Final = 200
"""Maximum number of open streams."""

STREAMS_OF_ONE: Final = 100
"""Maximum number of streams of one address, so that one client does not use up all streams."""

_STEP: Final = 0.25
"""Seconds between checks whether the server stops."""

_QUIET: Final = 15.0
"""Seconds after which a comment is sent, so that a lost connection is noticed."""

_AGAIN_MS: Final = 2_000
"""Milliseconds after which a browser connects again if its connection breaks."""
_LATER_MS: Final = 60_000
"""Milliseconds after which it connects again if its stream was ended for another: otherwise two
browsers would end each other's streams in turn."""


class _Look(NamedTuple):
    seen: float
    """The latest time of this state (`time.time()`), which hosts behind one address share."""
    stand: int
    """A number that identifies the state."""


@dataclass(eq=False)
class _Stream:
    """The stream of a browser."""

    client: str
    """The address of the browser."""
    is_over: bool = False
    """Whether it was ended for another stream."""


@dataclass
class _Here:
    """State that the streams of one event loop share."""

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
    """Reads the counts of all queues while there is a stream."""

    def __init__(self, sites: _Sites) -> None:
        self._sites = sites
        self._per_loop = PerLoop(_Here)

    async def stream(
        self, site: AsyncSite, request: Request, params: Params, role: Role
    ) -> Response:
        """Return server-sent events: `change` with its time, and `failure` with a sentence.

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
        """Return the present state; None if the server stops before it is read."""
        while not _server_stops():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STEP):
                    return await here.looks.read("", self._look)
        return None

    async def _look(self) -> _Look:
        site = self._sites.current
        names = await site.queues()
        counts = await site.counts(names)
        workers = await site.workers(jobs=0)
        stand = (
            tuple((name, str(each._replace(now_us=0))) for name, each in counts.items()),
            tuple((one.name, one.alive, one.about.paused, one.about.busy) for one in workers),
        )
        return _Look(time.time(), hash(stand))


def _server_stops() -> bool:
    """Whether uvicorn is stopping, according to the object of its signal handler."""
    handlers = map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
    return any(getattr(getattr(each, "__self__", None), "should_exit", False) for each in handlers)


# -- serving


LAST_WORDS: Final = 5
"""Seconds for requests to end when the dashboard stops: a change of many jobs, or a server that
does not answer. Streams end immediately."""

PATIENCE: Final = 10.0
"""Seconds within which a request must arrive, with its headers and its body."""

MOST_WAITING: Final = 100
"""Maximum number of connections that wait for a request or the rest of one."""

_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def serve(page: Starlette, listener: socket.socket) -> None:
    """Serve an application until a signal."""
    server(page, timeout_graceful_shutdown=LAST_WORDS).run(sockets=[listener])


def server(page: Any, **options: Any) -> uvicorn.Server:
    """Return a server that limits incomplete requests; `options` are uvicorn's."""

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
    """A connection that is closed if its request does not arrive in time.

    h11 limits the size of incomplete headers, and uvicorn limits how much of a body it buffers.
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
        cycle = self.cycle
        if cycle is not None and not (cycle.more_body or cycle.response_complete):
            self._stop_waiting()  # a whole request has arrived, and its response is on its way
        elif self not in self.waiting and not self.transport.is_closing():
            self._wait()

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
