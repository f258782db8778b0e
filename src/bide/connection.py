"""From a URL to a connection of the client library, set up as bide needs it.

The library's own retries are switched off: it repeats a command without knowing what the command
does, up to ten times. Ours (`bide.dialogue`) know the ids that make a repeat harmless.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from redis.backoff import NoBackoff

from bide.errors import UsageError
from bide.keys import PREFIX

DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"

CONNECT_TIMEOUT: Final = 2.0
REPLY_TIMEOUT: Final = 5.0
"""Seconds without a byte after which a connection counts as dead."""

RECONNECT_PAUSE: Final = 0.2
"""Seconds before a listener that was cut off connects again."""

_QUERY: Final = ("db", "username", "password")
_SCHEMES: Final = ("redis", "rediss", "unix")

_PASSWORD: Final = re.compile(r"(://[^:@/]*:).*@", re.DOTALL)
_QUERY_PASSWORD: Final = re.compile(r"([?&]password=)[^&]*")


def resolve_url(url: str | None) -> str:
    """The URL given, else `$BIDE_URL`, else the local default.

    Raises:
        UsageError: it is not of a form that bide takes.
    """
    url = url or os.environ.get("BIDE_URL") or DEFAULT_URL
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may hold a part of the password
        raise UsageError(
            f"{hide_password(url)!r} is not a URL; write redis://HOST:PORT/DB, and what is no "
            "letter or digit in a password as %XX."
        ) from None
    if parts.scheme not in _SCHEMES:
        raise UsageError(
            f"{hide_password(url)!r} is not a URL that bide takes; write "
            "redis://HOST:PORT/DB, rediss://... for TLS, or unix:///PATH?db=0."
        )
    if parts.scheme == "unix":
        if not parts.path:
            raise UsageError(f"{hide_password(url)!r} names no socket; write unix:///PATH?db=0.")
    elif not _is_host(parts.hostname) or port == 0:
        raise UsageError(f"{hide_password(url)!r} names no host; write redis://HOST:PORT/DB.")
    elif parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise UsageError(
            f"The database in {hide_password(url)!r} is not a number; write redis://HOST:PORT/0."
        )
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _QUERY and not name.startswith("ssl_"):
            raise UsageError(
                f"{hide_password(url)!r} sets {name!r}, which bide does not take from a URL; "
                f"it takes {', '.join(_QUERY)} and, for TLS, ssl_*."
            )
        if name == "db" and not value.isdigit():
            raise UsageError(f"The database in {hide_password(url)!r} is not a number.")
    return url


def _is_host(name: str | None) -> bool:
    try:
        return bool(name and name.encode("idna"))
    except UnicodeError:
        return False


def resolve_prefix(prefix: str | None) -> str:
    """The prefix given, else `$BIDE_PREFIX`, else `bide`."""
    return prefix or os.environ.get("BIDE_PREFIX") or PREFIX


def hide_password(url: str) -> str:
    """The URL as it may be printed; also one that cannot be parsed."""
    return _QUERY_PASSWORD.sub(r"\1***", _PASSWORD.sub(r"\1***@", url))


def options(url: str, retry: type[Any], reply_timeout: float | None) -> dict[str, Any]:
    """Keyword arguments for the library's `from_url`, for either kind of client.

    Args:
        url: as `resolve_url` returns it.
        retry: the library's `Retry` class of that kind.
        reply_timeout: seconds to wait for a reply; None where the caller sees to it.
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
