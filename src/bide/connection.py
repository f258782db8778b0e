"""From a URL to a connection of the client library, set up as bide needs it.

The library's own retries are switched off: it repeats a command without knowing what the command
does, up to ten times. Ours (`bide.dialogue`) know the ids that make a repeat harmless.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from redis.backoff import NoBackoff

from bide.errors import UsageError

DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"

CONNECT_TIMEOUT: Final = 2.0
REPLY_TIMEOUT: Final = 5.0
"""Seconds without a byte after which a connection counts as dead."""

_SCHEMES: Final = ("redis", "rediss", "unix")


def resolve_url(url: str | None) -> str:
    """The URL given, else `$BIDE_URL`, else the local default.

    Raises:
        UsageError: it is not of a form that bide takes.
    """
    url = url or os.environ.get("BIDE_URL") or DEFAULT_URL
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{hide_password(url)!r} is not a URL: {error}.") from None
    if parts.scheme not in _SCHEMES:
        raise UsageError(
            f"{hide_password(url)!r} is not a URL that bide takes; write "
            "redis://HOST:PORT/DB, rediss://... for TLS, or unix:///PATH?db=0."
        )
    if parts.scheme == "unix":
        if not parts.path:
            raise UsageError(f"{url!r} names no socket; write unix:///PATH?db=0.")
    elif not parts.hostname or port == 0:
        raise UsageError(f"{hide_password(url)!r} names no host; write redis://HOST:PORT/DB.")
    elif parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise UsageError(
            f"The database in {hide_password(url)!r} is not a number; write redis://HOST:PORT/0."
        )
    return url


def hide_password(url: str) -> str:
    """The URL as it may be printed."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
        user, _, host = parts.netloc.rpartition("@")
        netloc = f"{user.partition(':')[0]}:***@{host}"
        return urlunsplit(parts._replace(netloc=netloc))
    except ValueError:
        return re.sub(r"://[^@]*@", "://***@", url)


def options(url: str, retry: type[Any], reply_timeout: float = REPLY_TIMEOUT) -> dict[str, Any]:
    """Keyword arguments for the library's `from_url`, for either kind of client.

    Args:
        url: as `resolve_url` returns it.
        retry: the library's `Retry` class of that kind.
        reply_timeout: seconds to wait for a reply.
    """
    common: dict[str, Any] = {
        "retry": retry(NoBackoff(), 0),
        "socket_timeout": reply_timeout,
        "decode_responses": False,
        "health_check_interval": 0,
        "protocol": 2,
    }
    if not url.startswith("unix:"):
        common |= {"socket_connect_timeout": CONNECT_TIMEOUT, "socket_keepalive": True}
    return common
