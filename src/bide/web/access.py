"""Authentication and roles, and protection against requests from other sites.

A token is the password of HTTP Basic authentication, for which browsers ask, or a Bearer token in
`Authorization`. There are no cookies. But a browser also sends the password with requests that a
page of another site starts. So a change must come from the dashboard itself (`Sec-Fetch-Site`, or
`Origin` if the browser does not send that). Another site may link to a page, but its scripts and
images may not load one: that would keep the server busy, and a live stream would keep a connection.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from enum import StrEnum
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from bide.errors import (
    BideError,
    DuplicateJob,
    JobNotFound,
    ScheduleNotFound,
    ServerUnavailable,
    UsageError,
)
from bide.views.params import NotFound

SHORTEST_TOKEN: Final = 16
"""Minimum characters of a token. Long, because failed attempts are not counted or limited."""


class Role(StrEnum):
    """The permissions of the sender of a request."""

    VIEWER = "viewer"
    """May read."""
    OPERATOR = "operator"
    """May read and change."""


Authorize = Callable[[Request], "Awaitable[Role | str | None] | Role | str | None"]
"""A hook of the host application that returns the role for a request; None for no permission."""


class Refused(BideError):
    """A request is refused, mostly because its sender lacks the permission."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""The headers of every response: only our own scripts and styles, nothing inline, no frames."""


class Access:
    """Decides the role of the sender of a request."""

    def __init__(
        self,
        viewer_token: str | None = None,
        operator_token: str | None = None,
        authorize: Authorize | None = None,
        local_role: Role | str | None = None,
    ) -> None:
        """Set up; `local_role` is that of requests from this machine, without tokens and a hook."""
        for token in (viewer_token, operator_token):
            if token is not None and token != token.strip():
                raise UsageError(
                    "A token has spaces or a line break around it, which no request can send; "
                    "remove them."
                )
            if token is not None and len(token) < SHORTEST_TOKEN:
                raise UsageError(
                    f"A token of {len(token)} characters can be guessed; give one of "
                    f"{SHORTEST_TOKEN} or more, such as `openssl rand -hex 16` prints."
                )
        if authorize is not None and not callable(authorize):
            raise UsageError(
                f"authorize must be a function that takes a request, not {authorize!r}."
            )
        if authorize and (viewer_token or operator_token):
            raise UsageError("Give either tokens or authorize=, which decides alone.")
        if viewer_token and viewer_token == operator_token:
            raise UsageError("Viewers and operators have the same token; give them different ones.")
        self._tokens = [
            (hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), role)
            for token, role in ((viewer_token, Role.VIEWER), (operator_token, Role.OPERATOR))
            if token is not None
        ]
        self._authorize = authorize
        if self.is_open and local_role is None:
            raise UsageError(
                "No role is given: give app() an authorize= or tokens, or local_role='viewer' if "
                "it is served only to this machine, without a proxy."
            )
        if local_role and local_role not in list(Role):
            raise UsageError(f"local_role must be 'viewer' or 'operator', not {local_role!r}.")
        self._local_role = Role(local_role or Role.VIEWER)

    @property
    def is_open(self) -> bool:
        """Whether requests need no credentials, so that only this machine may be served."""
        return not self._tokens and self._authorize is None

    async def role(self, request: Request) -> Role:
        """Return the role of the sender."""
        if self._authorize is not None:
            found = self._authorize(request)
            if inspect.isawaitable(found):
                found = await found
            if found is None:
                raise Refused(
                    "You have no permission for this dashboard; ask its administrator.", 403
                )
            if found not in list(Role):
                log.error(
                    "the function that decides roles returned %r; it must return 'viewer', "
                    "'operator' or None",
                    found,
                )
                raise Refused(
                    "The dashboard cannot decide your role; its log has the details.", 500
                )
            return Role(found)
        if self._tokens:
            return self._by_token(request)
        if not _is_local(request):
            raise Refused(
                "Without credentials the dashboard answers only this machine; set "
                "$BIDE_WEB_VIEWER_TOKEN or $BIDE_WEB_OPERATOR_TOKEN, or give app() an authorize=.",
                403,
            )
        return self._local_role

    def _by_token(self, request: Request) -> Role:
        given = _token(request.headers.get("authorization", ""))
        if given is not None:
            digest = hashlib.sha256(given).digest()
            for known, role in self._tokens:
                if hmac.compare_digest(known, digest):
                    return role
        raise Refused("Give a token as the password; the user's name has no effect.", 401)


def _token(header: str) -> bytes | None:
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.encode("latin-1").strip()  # the sent bytes, in any encoding
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return None
    return None


_OF_PROXIES: Final = re.compile(
    # the address, the host or the port of the sender, in the headers of any proxy
    r".*(?:client|connecting|connection|external|originating|real|remote|socket|user)"
    r"-?(?:ip|addr|address|host|port)|(?:.*-)?forwarded(?:-.*)?"
    # headers that begin with the name of a proxy or CDN
    r"|(?:akamai|cdn|cf|fastly|fly|incap|tailscale)-.*"
    r"|x-(?:akamai|amzn|appengine|arr|azure|envoy|nf|original|sucuri|varnish|vercel)(?:-.*)?"
    r"|via|x-host|x-rewrite-url|x-scheme"
)
"""Headers that reverse proxies and CDNs add. A request with one was sent by another machine, even
if the proxy runs on this machine."""


def _is_local(request: Request) -> bool:
    """Whether the sender is this machine, and used a local name: other names may lead here too."""
    client = request.client
    if client is None or not is_loopback(client.host):  # None: over a unix socket, from a proxy
        return False
    if any(map(_OF_PROXIES.fullmatch, request.headers)):
        return False
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:  # no address
        return False
    return host == "localhost" or host.endswith(".localhost") or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_origin(request: Request) -> None:
    """Check that a change was sent by the page itself, or by a client that is not a browser."""
    if not _is_own(request):
        raise Refused(
            "The request came from another site; make the change on the dashboard itself.", 403
        )


def check_reader(request: Request) -> None:
    """Check that a read was sent by the page itself, a link, or a client without a browser."""
    headers = request.headers
    is_opened = headers.get("sec-fetch-dest") == "document"  # a browser loads it as a page
    is_typed = headers.get("sec-fetch-site") == "none"
    if not (is_opened or is_typed or _is_own(request)):
        raise Refused("A page of another site sent this request; open the dashboard itself.", 403)


def _is_own(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


log = logging.getLogger("bide.web")


_STATUS: Final[dict[type[Exception], int]] = {
    **dict.fromkeys((NotFound, JobNotFound, ScheduleNotFound), 404),
    DuplicateJob: 409,
    UsageError: 400,
    ServerUnavailable: 503,
    BideError: 502,
}
"""The status of an error, by the first matching class."""


def status_and_sentence(error: Exception) -> tuple[int, str]:
    """Return status and sentence for an error; other errors than bide's are only logged."""
    if isinstance(error, Refused):
        return error.status, str(error)
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return status, str(error)
    log.error("a request failed", exc_info=error)
    return 500, "The dashboard has an internal error; its log has the details."


def extra_headers(status: int) -> dict[str, str]:
    """Return the additional headers for a status."""
    return {"www-authenticate": 'Basic realm="bide", charset="UTF-8"'} if status == 401 else {}
