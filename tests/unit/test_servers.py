"""Which servers a URL means, and at which URL each of them is."""

from __future__ import annotations

import pytest

from bide.client.url import hide_password, read_servers, resolve_url
from bide.errors import UsageError

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "named", "node"),
    [
        ("redis+cluster://a", ["redis://a:6379"], "redis://n:7"),
        ("redis+cluster://a:1,b:2/0", ["redis://a:1", "redis://b:2"], "redis://n:7"),
        (
            "redis+cluster://u:p@a,b",
            ["redis://u:p@a:6379", "redis://u:p@b:6379"],
            "redis://u:p@n:7",
        ),
        ("redis+cluster://[::1]:1,[::2]", ["redis://[::1]:1", "redis://[::2]:6379"], "redis://n:7"),
        (
            "rediss+cluster://a:1?ssl_ca_certs=ca.pem",
            ["rediss://a:1?ssl_ca_certs=ca.pem"],
            "rediss://n:7?ssl_ca_certs=ca.pem",
        ),
        ("redis+sentinel://a,b:2/shop", ["redis://a:26379", "redis://b:2"], "redis://n:7"),
        ("redis+sentinel://u:p@a/shop/3", ["redis://a:26379"], "redis://u:p@n:7/3"),
        ("redis+sentinel://a/shop?db=3", ["redis://a:26379"], "redis://n:7?db=3"),
        (
            "redis+sentinel://:p@a/shop?sentinel_username=s&sentinel_password=x%40y",
            ["redis://s:x%40y@a:26379"],
            "redis://:p@n:7",
        ),
        (
            "rediss+sentinel://a/shop/1?ssl_cert_reqs=none&sentinel_password=x",
            ["rediss://:x@a:26379?ssl_cert_reqs=none"],
            "rediss://n:7/1?ssl_cert_reqs=none",
        ),
    ],
)
def test_the_servers_that_a_url_names_and_those_that_are_told(
    url: str, named: list[str], node: str
) -> None:
    servers = read_servers(resolve_url(url))
    assert list(servers.named) == named
    assert servers.url_of("n", 7) == node


def test_an_address_of_the_newer_kind_stands_in_brackets() -> None:
    servers = read_servers("redis+cluster://a:1")
    assert servers.url_of("::1", 7) == "redis://[::1]:7"


@pytest.mark.parametrize("host", [None, "", "?"])
def test_a_node_that_names_no_host_means_its_own(host: str | None) -> None:
    servers = read_servers("redis+cluster://u:p@a:1")
    assert servers.beside("redis://u:p@b:2", host, 7) == "redis://u:p@b:7"


@pytest.mark.parametrize("url", ["redis://a:1/2", "unix:///run/v.sock?db=1", "rediss://u:p@a"])
def test_one_server_is_named_by_the_url_itself(url: str) -> None:
    assert read_servers(url).named == (url,)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis+cluster://", "names no host"),
        ("redis+cluster://a,,b", "names no host"),
        ("redis+cluster://a:b", "names no host, or an invalid port"),
        ("redis+cluster://a:0", "names no host, or an invalid port"),
        ("redis+cluster://a,b..c", "names no host"),
        ("redis+cluster://a:1/1", "names a database, and a Cluster has only one"),
        ("redis+cluster://a:1?db=1", "names a database, and a Cluster has only one"),
        ("redis+cluster://a:1?sentinel_password=x", "does not take from a URL"),
        ("redis+cluster://a:1?ssl_cert_reqs=none", r"write rediss\+cluster://HOST:PORT"),
        ("redis+sentinel://a:1", "lacks the name of the master"),
        ("redis+sentinel://a:1//0", "lacks the name of the master"),
        ("redis+sentinel://a:1/shop/x", "is not a number"),
        ("redis+sentinel://a:1/shop?ssl_ciphers=x", r"write rediss\+sentinel://HOST:PORT"),
        ("redis+sentinel://,/shop", "names no host"),
    ],
)
def test_urls_that_cannot_be_meant(url: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        resolve_url(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis+cluster://u:{SECRET}@a:1,b:2", "redis+cluster://u:***@a:1,b:2"),
        ("redis+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
        (
            f"redis+sentinel://:{SECRET}@a:1/shop/0?sentinel_password={SECRET}&db=0",
            "redis+sentinel://:***@a:1/shop/0?sentinel_password=***&db=0",
        ),
        (
            f"redis+sentinel://a/shop?sentinel_password={SECRET}&x{SECRET}&sentinel_username=s",
            "redis+sentinel://a/shop?sentinel_password=***&sentinel_username=s",
        ),
        (f"redis+sentinel://a:1,b:2/shop?sentinel_password=x@{SECRET}", "redis+sentinel://***"),
        (f"redis://h:1?password=x@{SECRET}", "redis://***"),
    ],
)
def test_they_are_shown_without_their_passwords(url: str, shown: str) -> None:
    assert hide_password(url) == shown
