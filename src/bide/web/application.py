"""The ASGI application: which address leads where, and what every response carries."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from bide.cli.site import NotFound
from bide.web.access import HEADERS, Access, Authorize, Refused, Role, check_origin, check_reader
from bide.web.actions import act
from bide.web.api import data, failed_as_json
from bide.web.asked import Asked
from bide.web.live import Live
from bide.web.masking import Mask, mask_secrets
from bide.web.pages import failed_as_page, page, version
from bide.web.reads.table import READS
from bide.web.site import Site

VARIABLES: Final = {Role.VIEWER: "BIDE_WEB_VIEWER_TOKEN", Role.OPERATOR: "BIDE_WEB_OPERATOR_TOKEN"}
"""The environment's tokens, which hold where none is given."""


def credentials_are_set() -> bool:
    """Whether the environment has a token."""
    return any(os.environ.get(name) is not None for name in VARIABLES.values())


LONGEST_FORM: Final = 100_000
"""Bytes of a form."""

Answer = Callable[[Site, Request, Asked, Role], Awaitable[Response]]
Failed = Callable[[Request, Exception], Response]


def app(
    *,
    url: str | None = None,
    prefix: str | None = None,
    queues: Sequence[str] | None = None,
    viewer_token: str | None = None,
    operator_token: str | None = None,
    authorize: Authorize | None = None,
    local_role: Role | str | None = None,
    mask: Mask = mask_secrets,
) -> Starlette:
    """Make the page, to be served or to be mounted in another application.

    Args:
        url: of the server; else as for `Queue`.
        prefix: of all keys; else as for `Queue`.
        queues: the only ones that are shown; else all.
        viewer_token: with which one may look, 16 characters or more; else
            `$BIDE_WEB_VIEWER_TOKEN`.
        operator_token: with which one may change things too; else `$BIDE_WEB_OPERATOR_TOKEN`.
        authorize: decides instead of tokens, for a host application with users of its own: from a
            Starlette request to `"viewer"`, `"operator"` or None; a coroutine function is awaited.
        local_role: of who sits at this machine, where there is neither token nor `authorize`: for
            development, and for a page that no proxy passes on to others.
        mask: what is shown of a payload; else `mask_secrets`.

    Raises:
        UsageError: an argument cannot be meant, or nothing says who may look.
    """
    if authorize is None and viewer_token is None and operator_token is None:
        viewer_token = os.environ.get(VARIABLES[Role.VIEWER])
        operator_token = os.environ.get(VARIABLES[Role.OPERATOR])
    access = Access(viewer_token, operator_token, authorize, local_role)
    site = Site(url, prefix, queues, mask)
    live = Live(site)

    def route(path: str, answer: Answer, failed: Failed, method: str = "GET") -> BaseRoute:
        return Route(path, _guarded(site, access, answer, failed), methods=[method])

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        """Where it stands alone; what is mounted is told nothing, and needs nothing."""
        yield
        await site.client.close()

    static = _Static(packages=[("bide.web", "static")])
    return Starlette(
        routes=[
            route("/", page, failed_as_page),
            Mount("/static/{version}", static),
            route("/api/live", live.stream, failed_as_json),
            route("/api/{name}", data, failed_as_json),
            route("/do", act, failed_as_page, "POST"),
            route("/{name}", page, failed_as_page),
            # Without it Starlette redirects, before anybody is authenticated, by the Host header.
            route("/{path:path}", _without_slash, failed_as_page),
        ],
        middleware=[Middleware(_WithHeaders)],
        lifespan=lifespan,
    )


async def _without_slash(site: Site, request: Request, asked: Asked, role: Role) -> Response:
    """Redirect an address that ends with a slash to the one without, on this host.

    Raises:
        NotFound: the page does not exist.
    """
    path: str = request.path_params["path"]
    name = path.rstrip("/")
    read = name.removeprefix("api/")
    if name == path or (read not in READS and name != "api/live"):
        raise NotFound(f"There is no page {path[:60]!r}.")
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(asked.address(f"{root}/{name}"), 307)


def _guarded(
    site: Site, access: Access, answer: Answer, failed: Failed
) -> Callable[[Request], Awaitable[Response]]:
    """Who asks, and what for, is looked at first; whatever fails is told."""

    async def guarded(request: Request) -> Response:
        try:
            role = await access.role(request)
            text = request.scope["query_string"]
            if request.method == "POST":
                check_origin(request)
                text = await _form(request)
            else:
                check_reader(request)
            return await answer(site, request, Asked(text), role)
        except ClientDisconnect:  # nobody reads the answer
            return Response(status_code=400)
        except Exception as error:  # one of ours is a sentence; another is logged as it is told
            return failed(request, error)

    return guarded


async def _form(request: Request) -> bytes:
    """The body of a form.

    Raises:
        Refused: it is too long.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_FORM:
            raise Refused(f"A form has {LONGEST_FORM:,} bytes at most; change less at once.", 413)
    return body


Scope = MutableMapping[str, Any]


class _Static(StaticFiles):
    """What stands beside pages; kept by browsers, as its address says which version it is."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if scope["path_params"]["version"] == version():  # an older page may ask for another
            response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


class _WithHeaders:
    """Every response says what a browser may do with it."""

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
