"""Which servers a URL means: one, the nodes of a Cluster, or a master that Sentinels watch.

    redis://HOST:PORT/DB                           one; rediss:// for TLS, or unix:///PATH?db=0
    redis+cluster://HOST:PORT,HOST:PORT            some nodes of a Cluster; they name the others
    redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB   Sentinels, and what they call the master

User, password and TLS options are those of every node. A Sentinel has its own in the query,
`sentinel_username` and `sentinel_password`, or none.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

Kind = Literal["one", "cluster", "sentinel"]
Address = tuple[str, int]
"""Host and port."""

KINDS: Final[dict[str, Kind]] = {"": "one", "cluster": "cluster", "sentinel": "sentinel"}
"""By what follows the `+` of the scheme."""

_PORTS: Final[dict[Kind, int]] = {"one": 6379, "cluster": 6379, "sentinel": 26379}
SENTINELS_OWN: Final = ("sentinel_username", "sentinel_password")


class Servers(NamedTuple):
    """What a URL says."""

    kind: Kind
    named: tuple[str, ...]
    """URLs of the servers that it names: of one each, as the client library takes them."""
    scheme: str
    user: str
    """User and password as they stand before the `@`, and that; or nothing."""
    path: str
    """`/` and the database, or nothing."""
    query: str
    master: str
    """What the Sentinels call it; empty for the other kinds."""

    def url_of(self, host: str, port: int) -> str:
        """The URL of one node that holds data."""
        return _url(self.scheme, self.user, (host, port), self.path, self.query)

    def beside(self, node: str, host: str | None, port: int) -> str:
        """`url_of` for an address that a node told: without a host, it means its own."""
        known = host if host and host != "?" else urlsplit(node).hostname or ""
        return self.url_of(known, port)


def read_servers(url: str) -> Servers:
    """Read a URL that `bide.connection.resolve_url` has passed.

    Raises:
        ValueError: it is not one.
    """
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
    """Whether two URLs that `bide.connection.resolve_url` has passed name the same data.

    User, password and TLS options may differ, and so may the nodes that are named. Two names of one
    host are taken for two hosts, but for those of this machine.
    """
    (kind, some, rest), (other_kind, others, other_rest) = _named(one), _named(other)
    return (kind, rest) == (other_kind, other_rest) and not some.isdisjoint(others)


def _named(url: str) -> tuple[Kind, set[Address], tuple[str, ...]]:
    """The kind of servers, those that a URL names, and what else says where the data are."""
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
    """Host and port of each server before the path of a Cluster's or Sentinels' URL.

    Raises:
        ValueError: a port is no number, or a host is missing.
    """
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
