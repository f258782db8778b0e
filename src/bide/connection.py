"""From a URL to a connection of the client library, set up as bide needs it.

The library's own retries are switched off: it repeats a command without knowing what the command
does, up to ten times. Ours (`bide.dialogue`) know the ids that make a repeat harmless.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from redis.backoff import NoBackoff

from bide.config import url_or_prefix
from bide.errors import UsageError
from bide.keys import PREFIX

DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"

CONNECT_TIMEOUT: Final = 2.0
REPLY_TIMEOUT: Final = 5.0
"""Seconds without a byte after which a connection counts as dead."""

GOODBYE: Final = 1.0
"""Seconds for what is said at the end, and costs nothing if it is lost."""

HINT_WAIT: Final = 10
"""Seconds per blocking call for a wake hint, so that a dead connection is noticed."""

RECONNECT_PAUSE: Final = 0.2
LONGEST_RECONNECT_PAUSE: Final = 5.0
"""Seconds before a listener that was cut off connects again; doubled as often as it is refused,
which it is for ever where its user has no right to the channel."""

_QUERY: Final = ("db", "username", "password")
_TLS: Final = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
    "ssl_ciphers",
)
"""What every kind of client of every supported version of the library takes."""
_VALUES: Final = {
    "ssl_cert_reqs": ("required", "optional", "none"),
    "ssl_check_hostname": ("true", "false"),
}
_SCHEMES: Final = ("redis", "rediss", "unix")
_FORMS: Final = "redis://HOST:PORT/DB, rediss://... for TLS, or unix:///PATH?db=0"

_PASSWORD: Final = re.compile(r"(://[^:@/]*:).*@", re.DOTALL)
# To the next option that there is: a password may hold a & that should have been written as %26.
_QUERY_PASSWORD: Final = re.compile(
    r"([?&]password=).*?(?=&(?:db|username|password|ssl_[a-z_]+)=|$)", re.DOTALL
)


def resolve_url(url: str | None) -> str:
    """The URL given, else `$BIDE_URL`, else that of `[tool.bide]`, else the local default.

    Raises:
        UsageError: it is not of a form that bide takes, or the file cannot be meant.
    """
    found, origin = url_or_prefix("url", url)
    url = found or DEFAULT_URL
    shown = f"{hide_password(url)!r}{origin if found else ''}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may hold a part of the password
        raise UsageError(
            f"{shown} is not a URL; write redis://HOST:PORT/DB, and what is no letter or digit "
            "in a password as %XX."
        ) from None
    base, _, kind = parts.scheme.partition("+")
    if base in _SCHEMES and kind in ("cluster", "sentinel"):
        raise UsageError(
            f"{shown} asks for {kind.capitalize()}, which bide does not speak yet; give one "
            f"server's address: {_FORMS}."
        )
    if parts.scheme not in _SCHEMES:
        raise UsageError(f"{shown} is not a URL that bide takes; write {_FORMS}.")
    if parts.scheme == "unix":
        if not parts.path:
            raise UsageError(f"{shown} names no socket; write unix:///PATH?db=0.")
    elif not _is_host(parts.hostname) or port == 0:
        raise UsageError(f"{shown} names no host; write redis://HOST:PORT/DB.")
    elif parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise UsageError(f"The database in {shown} is not a number; write redis://HOST:PORT/0.")
    _check_query(parts, shown)
    return url


def _check_query(parts: SplitResult, shown: str) -> None:
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _TLS and parts.scheme != "rediss":
            raise UsageError(f"{shown} sets {name!r}, which is for TLS; write rediss://HOST:PORT.")
        if name not in _QUERY and name not in _TLS:
            option = "an option" if "password=" in parts.query else repr(name)  # may be part of it
            raise UsageError(
                f"{shown} sets {option}, which bide does not take from a URL; it takes "
                f"{', '.join(_QUERY)} and, for TLS, {', '.join(_TLS)}."
            )
        if name == "db" and not value.isdigit():
            raise UsageError(f"The database in {shown} is not a number.")
        if value not in _VALUES.get(name, (value,)):
            raise UsageError(
                f"{name} in {shown} is {value!r}; write one of {', '.join(_VALUES[name])}."
            )


def _is_host(name: str | None) -> bool:
    try:
        return bool(name and name.encode("idna"))
    except UnicodeError:
        return False


def resolve_prefix(prefix: str | None) -> str:
    """The prefix given, else `$BIDE_PREFIX`, else that of `[tool.bide]`, else `bide`.

    Raises:
        UsageError: the file cannot be meant.
    """
    return url_or_prefix("prefix", prefix)[0] or PREFIX


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
        connect_timeout = min(CONNECT_TIMEOUT, reply_timeout or CONNECT_TIMEOUT)
        common |= {"socket_connect_timeout": connect_timeout, "socket_keepalive": True}
    if url.startswith("rediss:") and ("ssl_cert_reqs", "none") not in parse_qsl(
        urlsplit(url).query
    ):
        # Up to version 5 of the library, any host with a valid certificate was good enough.
        common["ssl_check_hostname"] = True
    return common
