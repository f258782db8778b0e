"""Converts a URL to a connection of the client library with the options that bide needs.

The library's own retries are switched off, because they repeat any command up to ten times. bide's
retries (`bide.client.execute`) use ids that make a repeat harmless.

    redis://HOST:PORT/DB                           one server; rediss:// for TLS; unix:///PATH?db=0
    redis+cluster://HOST:PORT,HOST:PORT            some nodes of a Cluster, which name the others
    redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB   Sentinels, and their name for the master

`valkey` means `redis` in each of them, and `valkeys` means `rediss`.

User, password and TLS options apply to every node. A Sentinel has its own in the query,
`sentinel_username` and `sentinel_password`, or none. `credentials=MODULE:FUNCTION` names a function
that returns the password of each new connection (`bide.client.credentials`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from redis import exceptions as lib
from redis.backoff import NoBackoff

from bide.client.config import url_or_prefix
from bide.errors import UsageError
from bide.protocol.keys import PREFIX

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    RedisClient = redis.Redis | redis.asyncio.Redis
    """A client of redis-py. A client of valkey-py has the same attributes."""
else:
    RedisClient = Any

Kind = Literal["one", "cluster", "sentinel"]
Address = tuple[str, int]
"""Host and port."""

KINDS: Final[dict[str, Kind]] = {"": "one", "cluster": "cluster", "sentinel": "sentinel"}
"""The kinds, by the part of the scheme after the `+`."""

_PORTS: Final[dict[Kind, int]] = {"one": 6379, "cluster": 6379, "sentinel": 26379}
SENTINELS_OWN: Final = ("sentinel_username", "sentinel_password")


class Servers(NamedTuple):
    """The parts of a URL."""

    kind: Kind
    named: tuple[str, ...]
    """The URL of each named server, as the client library takes it."""
    scheme: str
    user: str
    """User and password as written, with the `@`; or empty."""
    path: str
    """`/` and the database; or empty."""
    query: str
    master: str
    """The Sentinels' name for it; empty for the other kinds."""

    def url_of(self, host: str, port: int) -> str:
        """Return the URL of a node that holds data."""
        return _url(self.scheme, self.user, (host, port), self.path, self.query)

    def beside(self, node: str, host: str | None, port: int) -> str:
        """Return the URL for an address that a node reported; no host means the node's own."""
        known = host if host and host != "?" else urlsplit(node).hostname or ""
        return self.url_of(known, port)


def read_servers(url: str) -> Servers:
    """Read a URL that `bide.client.url.resolve_url` has passed."""
    parts = urlsplit(url)
    scheme, _, suffix = parts.scheme.partition("+")
    kind = KINDS[suffix]
    if kind == "one":
        return Servers(kind, (url,), scheme, "", "", "", "")
    user, at, _ = parts.netloc.rpartition("@")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query = urlencode([pair for pair in pairs if pair[0] not in SENTINELS_OWN])
    if kind == "cluster":
        read = Servers(kind, (), scheme, user + at, "", query, "")
        return read._replace(named=tuple(read.url_of(*one) for one in addresses(parts)))
    master, slash, db = parts.path[1:].rstrip("/").partition("/")
    own = dict(pair for pair in pairs if pair[0] in SENTINELS_OWN)
    tls = urlencode([pair for pair in pairs if pair[0].startswith("ssl_")])
    named = tuple(_url(scheme, _user(own), one, "", tls) for one in addresses(parts))
    return Servers(kind, named, scheme, user + at, slash + db, query, master)


def same_servers(one: str, other: str) -> bool:
    """Whether two URLs that `resolve_url` has passed name the same data.

    User, password, TLS options and the named nodes may differ. Two names of one host count as two
    hosts, except for the names of this machine.
    """
    (kind, some, rest), (other_kind, others, other_rest) = _named(one), _named(other)
    return (kind, rest) == (other_kind, other_rest) and not some.isdisjoint(others)


def _named(url: str) -> tuple[Kind, set[Address], tuple[str, ...]]:
    """Return the kind of servers, the named servers, and the database or socket."""
    parts = urlsplit(url)
    scheme, _, suffix = parts.scheme.partition("+")
    kind = KINDS[suffix]
    db = dict(parse_qsl(parts.query)).get("db", "0")
    if scheme == "unix":
        return kind, {(parts.path, 0)}, ("unix", db)
    path = parts.path.strip("/").split("/")
    master = path.pop(0) if kind == "sentinel" else ""
    if kind == "one":
        named = [(parts.hostname or "", parts.port or _PORTS[kind])]
    else:
        named = addresses(parts)
    hosts = {("localhost" if host in _LOCAL else host.lower(), port) for host, port in named}
    return kind, hosts, (master, "".join(path) or db)


_LOCAL: Final = ("127.0.0.1", "::1")


def addresses(parts: SplitResult) -> list[Address]:
    """Return the host and port of each server of a Cluster's or Sentinels' URL, or `ValueError`."""
    default = _PORTS[KINDS[parts.scheme.partition("+")[2]]]
    found: list[Address] = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"redis://{text}")
        if not one.hostname or one.port == 0:
            raise ValueError("no host")
        found.append((one.hostname, one.port or default))
    return found


def _url(scheme: str, user: str, address: Address, path: str, query: str) -> str:
    host, port = address
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{user}{shown}:{port}{path}" + (f"?{query}" if query else "")


def _user(own: dict[str, str]) -> str:
    name, password = (quote(own.get(key, ""), safe="") for key in SENTINELS_OWN)
    return f"{name}:{password}@" if password else f"{name}@" if name else ""


DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"

CONNECT_TIMEOUT: Final = 2.0
REPLY_TIMEOUT: Final = 5.0
"""Seconds without a byte after which a connection counts as broken."""

GOODBYE: Final = 1.0
"""Seconds for the goodbye to the server, which may be lost."""

WAKE_WAIT: Final = 10
"""Seconds per blocking call for a wake-up message, so that a broken connection is noticed."""

RECONNECT_PAUSE: Final = 0.2
LONGEST_RECONNECT_PAUSE: Final = 5.0
"""Seconds before a listener reconnects. The pause doubles with each refusal up to the longest,
for example if its user has no permission for the channel."""

_QUERY: Final = ("db", "username", "password", "credentials")
_TLS: Final = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
    "ssl_ciphers",
)
"""The options that all supported versions of the library take."""
_FUNCTION: Final = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_VALUES: Final = {
    "ssl_cert_reqs": ("required", "optional", "none"),
    "ssl_check_hostname": ("true", "false"),
}
_SAME: Final = {"valkey": "redis", "valkeys": "rediss"}
_SCHEMES: Final = ("redis", "rediss", "unix", *_SAME)
_FORMS: Final = (
    "redis://HOST:PORT/DB, rediss://... for TLS, unix:///PATH?db=0, redis+cluster://HOST:PORT,... "
    "or redis+sentinel://HOST:PORT,.../NAME/DB"
)

_PASSWORD: Final = re.compile(r"(://[^:@/]*:).*@", re.DOTALL)
# Up to the next known option: a password may hold a & that should be written as %26.
_QUERY_PASSWORD: Final = re.compile(
    r"([?&](?:sentinel_)?password=).*?"
    r"(?=&(?:db|credentials|(?:sentinel_)?username|(?:sentinel_)?password|ssl_[a-z_]+)=|$)",
    re.DOTALL,
)
# The end of the password is unknown in this case.
_PASSWORD_AND_AT: Final = re.compile(r"(://).*[?&](?:sentinel_)?password=.*@.*", re.DOTALL)


def resolve_url(url: str | RedisClient | None) -> str:
    """Return the URL given, otherwise `$BIDE_URL`, `url` of `[tool.bide]`, or the local default.

    The client library knows its scheme. A client is replaced by the URL of its server.
    """
    if url is not None and not isinstance(url, str):
        from bide.client.credentials import url_of  # only where a program gives a client

        url = url_of(url)
    found, origin = url_or_prefix("url", url)
    url = found or DEFAULT_URL
    shown = f"{hide_password(url)!r}{origin if found else ''}"
    if url != url.strip(" \t\r\n\"'"):
        raise UsageError(f"{shown} has quotes or spaces around the URL; leave them out.")
    try:
        parts = urlsplit(url)
        port = None if "+" in parts.scheme else parts.port
    except ValueError:  # its text may hold a part of the password
        raise UsageError(f"{shown} is not a URL; write {_meant(url)}.") from None
    base, _, suffix = parts.scheme.partition("+")
    kind = KINDS.get(suffix)
    if base not in _SCHEMES or kind is None or (kind != "one" and base == "unix"):
        raise UsageError(f"{shown} is not a URL that bide takes; write {_FORMS}.")
    if kind != "one":
        _check_several(parts, shown)
    elif parts.scheme == "unix":
        if not parts.path:
            raise UsageError(f"{shown} names no socket; write unix:///PATH?db=0.")
        if parts.netloc.rpartition("@")[2]:
            raise UsageError(
                f"{shown} names a host before the path of its socket; write unix:///PATH?db=0, "
                "with three slashes."
            )
    elif not _is_host(parts.hostname) or port == 0:
        raise UsageError(f"{shown} names no host; write redis://HOST:PORT/DB.")
    elif parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        raise UsageError(f"The database in {shown} is not a number; write redis://HOST:PORT/0.")
    _check_query(parts, shown)
    return _SAME[base] + url[len(base) :] if base in _SAME else url


def _meant(url: str) -> str:
    """Return the text that should stand in place of an invalid URL."""
    host = re.match(r"[a-z+]+://([^@/?#]*)(/\d*)?$", url)  # nothing that may be of a password
    if host is not None and "," in host[1]:
        return "redis+cluster://HOST:PORT,HOST:PORT or redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB"
    if host is not None and host[1].count(":") > 1 and "[" not in host[1]:
        return "redis://[ADDRESS]:PORT/DB, with an IPv6 address in brackets"
    return (
        "redis://HOST:PORT/DB, with a PORT of at most 65535, and with each character of a password "
        "that is not a letter or digit as %XX"
    )


def _check_several(parts: SplitResult, shown: str) -> None:
    if parts.scheme.endswith("cluster"):
        form, path = "redis+cluster://HOST:PORT,HOST:PORT", parts.path.strip("/")
        if path not in ("", "0"):
            raise UsageError(f"{shown} names a database, and a Cluster has only one; write {form}.")
    else:
        form = "redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB"
        master, _, db = parts.path[1:].rstrip("/").partition("/")
        if not master:
            raise UsageError(
                f"{shown} lacks the name of the master at the Sentinels; write {form}."
            )
        if db and not db.isdecimal():
            raise UsageError(f"The database in {shown} is not a number; write {form}.")
    try:
        found = addresses(parts)
    except ValueError:
        raise UsageError(f"{shown} names no host, or an invalid port; write {form}.") from None
    if not all(_is_host(host) for host, _ in found):
        raise UsageError(f"{shown} names no host; write {form}.")


def _check_query(parts: SplitResult, shown: str) -> None:
    base, _, several = parts.scheme.partition("+")
    taken = [*_QUERY, *(SENTINELS_OWN if several == "sentinel" else ())]
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _TLS and base not in ("rediss", "valkeys"):
            form = f"rediss+{several}" if several else "rediss"
            raise UsageError(f"{shown} sets {name!r}, which is for TLS; write {form}://HOST:PORT.")
        if name not in taken and name not in _TLS:
            # The name may be part of a password that is not percent-encoded.
            is_secret = "password=" in parts.query or "@" in parts.query
            option = "an option" if is_secret else repr(name)
            raise UsageError(
                f"{shown} sets {option}, which bide does not take from a URL; it takes "
                f"{', '.join(taken)} and, for TLS, {', '.join(_TLS)}."
            )
        if name == "db" and not (value.isdecimal() and (several != "cluster" or int(value) == 0)):
            raise UsageError(
                f"The database in {shown} is not a number; write db=0."
                if several != "cluster"
                else f"{shown} names a database, and a Cluster has only one; leave db= out."
            )
        in_path = parts.path.strip("/") if name == "db" and base != "unix" and not several else ""
        if in_path and int(in_path) != int(value):
            raise UsageError(f"{shown} names two databases, {in_path} and {value}; leave one out.")
        if value not in _VALUES.get(name, (value,)):
            raise UsageError(
                f"{name} in {shown} is {value!r}; write one of {', '.join(_VALUES[name])}."
            )
        if name == "credentials":
            if not _FUNCTION.fullmatch(value):
                raise UsageError(
                    f"credentials in {shown} must name a function; write "
                    "credentials=MODULE:FUNCTION."
                )
            if parts.password or "password" in dict(parse_qsl(parts.query)):
                raise UsageError(f"{shown} has a password and credentials=; leave one out.")


def _is_host(name: str | None) -> bool:
    try:
        return bool(name and name.encode("idna"))
    except UnicodeError:
        return False


def resolve_prefix(prefix: str | None) -> str:
    """Return the prefix given, otherwise `$BIDE_PREFIX`, `prefix` of `[tool.bide]`, or `bide`."""
    return url_or_prefix("prefix", prefix)[0] or PREFIX


def hide_password(url: str) -> str:
    """Return the URL without its password, also if it cannot be parsed."""
    if _PASSWORD_AND_AT.search(url):
        return _PASSWORD_AND_AT.sub(r"\1***", url)
    return _QUERY_PASSWORD.sub(r"\1***", _PASSWORD.sub(r"\1***@", url))


def check_master(role: Any) -> None:
    """Raise the library's `ConnectionError` if a node's reply to ROLE says that it is a replica.

    A permission error counts as a master.
    """
    if isinstance(role, list) and role[0] != b"master":
        raise lib.ConnectionError("the node is not a master now")


def options(url: str, retry: type[Any], reply_timeout: float | None) -> dict[str, Any]:
    """Return keyword arguments for the library's `from_url`; `retry` is its class of that kind.

    `reply_timeout` is None if the caller has a timer.
    """
    common: dict[str, Any] = {
        "url": url,
        "retry": retry(NoBackoff(), 0),
        "socket_timeout": reply_timeout,
        "decode_responses": False,
        "health_check_interval": 0,
        "protocol": 2,
    }
    if not url.startswith("unix:"):
        connect_timeout = min(CONNECT_TIMEOUT, reply_timeout or CONNECT_TIMEOUT)
        common |= {"socket_connect_timeout": connect_timeout, "socket_keepalive": True}
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query)
    if url.startswith("rediss:") and ("ssl_cert_reqs", "none") not in pairs:
        # Up to version 5 of the library, any host with a valid certificate was good enough.
        common["ssl_check_hostname"] = True
    given = dict(pairs)
    if name := given.pop("credentials", None):
        from bide.client.credentials import Credentials  # only where a URL names a function

        user = given.pop("username", None) or unquote(parts.username or "")
        host = parts.netloc.rpartition("@")[2]
        common["url"] = f"{parts.scheme}://{host}{parts.path}?{urlencode(given)}"
        common["credential_provider"] = Credentials(name, user)
    return common
