"""The dashboard as a view of Django, under WSGI and ASGI, for the users that Django knows.

    path("jobs/", include("bide.contrib.django.urls"))

The dashboard is an ASGI application. Its requests run on an event loop in a thread of their own,
one per process, so that they share connections to the server. A view of Django returns when the
response is complete, so there is no live stream: a page reads its changes every few seconds.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, Final, TypeVar

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from bide.contrib.django.backend import common_server
from bide.contrib.django.outbox import outbox
from bide.contrib.django.outbox.writing import APP, OUTBOX
from bide.errors import UsageError

T = TypeVar("T")

_PATIENCE: Final = 60.0
"""Time-out of a request in seconds."""

_ROLE: Final = "bide.role"


def staff_role(request: HttpRequest) -> str | None:
    """Return the role of a request's user: superusers are operators, and staff are viewers."""
    user = getattr(request, "user", None)
    if user is None:
        raise ImproperlyConfigured(
            "The dashboard of bide asks for request.user; add AuthenticationMiddleware of "
            "django.contrib.auth to MIDDLEWARE, or pass a function as role."
        )
    if not user.is_active:
        return None
    return "operator" if user.is_superuser else "viewer" if user.is_staff else None


@csrf_exempt  # type: ignore[untyped-decorator]  # it checks the origin of changes by itself
def dashboard(
    request: HttpRequest,
    path: str = "",
    role: Callable[[HttpRequest], str | None] = staff_role,
) -> HttpResponse:
    """Answer a request with the dashboard.

    Args:
        request: the request.
        path: the part of its path below the dashboard's own.
        role: a function that returns the role of the request: `"viewer"`, `"operator"` or None.
    """
    found = role(request)
    if found is None:
        user = getattr(request, "user", None)
        if user is None or user.is_authenticated:
            raise PermissionDenied
        from django.contrib.auth.views import redirect_to_login  # its models need their app

        return redirect_to_login(request.get_full_path())
    if path == "api/live":
        return HttpResponse(status=204)  # a browser does not request this stream again
    return _on_loop(_answer(request, path, found))


async def _answer(request: HttpRequest, path: str, role: str) -> HttpResponse:
    body, response = request.body, HttpResponse()
    headers: Any = request.headers
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        await asyncio.Event().wait()  # the client stays until the response is complete
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            response.status_code = message["status"]
            del response.headers["content-type"]
            for name, value in message["headers"]:
                response.headers[name.decode("latin-1")] = value.decode("latin-1")
        else:
            response.write(message.get("body", b""))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "root_path": request.path.removesuffix(path).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in (("Host", request.get_host()), *headers.items())
        ],
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": (request.META.get("SERVER_NAME", ""), int(request.META.get("SERVER_PORT") or 80)),
        _ROLE: role,
    }
    await _page()(scope, receive, send)
    return response


@lru_cache(maxsize=1)
def _page() -> Any:
    try:
        from bide.web import app
    except ImportError as error:
        raise UsageError("The dashboard needs `pip install 'bide[web]'`.") from error
    server = common_server()
    page = app(
        url=server.get("url"),
        prefix=server.get("prefix"),
        authorize=lambda request: request.scope[_ROLE],
        outboxes={OUTBOX: outbox} if apps.is_installed(APP) else None,
    )
    page.state.has_stream = False
    return page


class _Loop:
    """An event loop in a thread; a forked child needs its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        run = self.loop.run_forever
        threading.Thread(target=run, name="bide-dashboard", daemon=True).start()


_lock: Final = threading.Lock()
_current: _Loop | None = None


def _on_loop(answer: Coroutine[Any, Any, T]) -> T:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _Loop()
    return asyncio.run_coroutine_threadsafe(answer, _current.loop).result(_PATIENCE)
