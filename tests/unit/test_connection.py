"""From a URL to a connection; a password is never printed."""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio
from hypothesis import example, given
from hypothesis import strategies as st
from redis import exceptions as lib
from redis.retry import Retry

from bide.client.url import DEFAULT_URL, hide_password, options, resolve_url
from bide.errors import UsageError

SECRET = "s3cr3t"


def test_the_url_given_then_the_environment_then_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BIDE_URL", raising=False)
    assert resolve_url(None) == DEFAULT_URL
    assert resolve_url("") == DEFAULT_URL
    monkeypatch.setenv("BIDE_URL", "redis://elsewhere:7000/3")
    assert resolve_url(None) == "redis://elsewhere:7000/3"
    assert resolve_url("redis://here") == "redis://here"


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://localhost:6379/0",
        "redis://127.0.0.1:6380/15",
        "redis://[::1]:6379/0",
        "redis://user:pw@host/0",
        "redis://:pw@host",
        "rediss://host:6380",
        "unix:///run/valkey.sock",
        "unix:///run/valkey.sock?db=2",
        "redis://host?db=3",
        "rediss://host?ssl_ca_certs=/etc/ca.pem",
        "rediss://host?ssl_certfile=a&ssl_keyfile=b&ssl_cert_reqs=none&ssl_check_hostname=false",
        "unix:///run/v.sock?username=u&password=p",
    ],
)
def test_urls_that_are_taken_as_they_are(url: str) -> None:
    assert resolve_url(url) == url


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("valkey://user:pw@host:6379/0", "redis://user:pw@host:6379/0"),
        ("valkeys://host?ssl_ca_certs=/etc/ca.pem", "rediss://host?ssl_ca_certs=/etc/ca.pem"),
        ("valkey+cluster://a:7000,b:7001", "redis+cluster://a:7000,b:7001"),
        ("valkeys+sentinel://a,b/shop/0", "rediss+sentinel://a,b/shop/0"),
    ],
)
def test_schemes_of_valkey_mean_those_of_redis(url: str, same: str) -> None:
    assert resolve_url(url) == same


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("localhost:6379", "not a URL that bide takes"),
        ("http://host", "not a URL that bide takes"),
        ("valkey", "not a URL that bide takes"),
        ("redis://", "names no host"),
        ("redis:///0", "names no host"),
        ("redis://host:0", "names no host"),
        ("redis://host/mail", "database .* is not a number"),
        ("redis://host:port", "is not a URL"),
        ("redis://host:99999", "is not a URL"),
        ("redis://[::1", "is not a URL"),
        ("unix://", "names no socket"),
        ("redis://ho..st", "names no host"),
        ("redis+cache://host", "not a URL that bide takes"),
        ("unix+cluster:///v.sock", "not a URL that bide takes"),
        ("http+cluster://host", "not a URL that bide takes"),
        ("redis://host?ssl_ca_certs=x", "is for TLS"),
        ("valkey://host?ssl_ca_certs=x", "is for TLS"),
        ("valkeyss://host", "not a URL that bide takes"),
    ],
)
def test_urls_that_are_not_with_the_form_that_is(url: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"(?s){reason}.*(rediss?://HOST:PORT|unix:///PATH)"):
        resolve_url(url)


@pytest.mark.parametrize(
    "url", ["redis://host/0?client_name=x", "unix:///v.sock?socket_timeout=1", "redis://h?retry="]
)
def test_options_that_would_undo_ours_are_not_taken_from_a_url(url: str) -> None:
    with pytest.raises(UsageError, match=r"bide does not take from a URL; it takes db, username"):
        resolve_url(url)


@pytest.mark.parametrize("name", ["", "token", "shop.auth:", ":token", "shop/auth:token", "a:b:c"])
def test_credentials_must_name_a_function(name: str) -> None:
    with pytest.raises(UsageError, match="must name a function; write credentials=MODULE:FUNCTION"):
        resolve_url(f"redis://host?credentials={name}")


@pytest.mark.parametrize("url", ["redis://u:pw@host?", "redis://host?password=pw&"])
def test_a_password_and_a_function_for_it_are_one_too_many(url: str) -> None:
    with pytest.raises(UsageError, match="has a password and credentials="):
        resolve_url(f"{url}credentials=shop.auth:token")


@pytest.mark.parametrize(
    "url", ["redis://host?db=x", "unix:///v.sock?db=", "redis://host?db=-1", "redis://host?db=²"]
)
def test_a_database_is_a_number_there_too(url: str) -> None:
    with pytest.raises(UsageError, match="is not a number"):
        resolve_url(url)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("ssl_cert_reqs=never", "is 'never'; write one of required, optional, none"),
        ("ssl_check_hostname=perhaps", "is 'perhaps'; write one of true, false"),
        ("ssl_magic=x", "does not take from a URL"),
    ],
)
def test_tls_options_that_cannot_be_meant(query: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        resolve_url(f"rediss://user:{SECRET}@host?{query}")


# -- passwords


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user@host/0", "redis://user@host/0"),
        (f"redis://:{SECRET}@host:6379/0", "redis://:***@host:6379/0"),
        (f"redis://user:{SECRET}@host", "redis://user:***@host"),
        (f"rediss://user:{SECRET}@[::1]:6380/1?x=y", "rediss://user:***@[::1]:6380/1?x=y"),
        (f"redis://:a@{SECRET}@host", "redis://:***@host"),
        (f"redis://:a/{SECRET}@host", "redis://:***@host"),
        (f"redis://:a?{SECRET}@host", "redis://:***@host"),
        (f"redis://:a#{SECRET}@host", "redis://:***@host"),
        (f"redis://:{SECRET}@[::1", "redis://:***@[::1"),
        (f"unix:///run/v.sock?password={SECRET}", "unix:///run/v.sock?password=***"),
        (
            f"unix:///run/v.sock?db=1&password=a&{SECRET}&username=y",
            "unix:///run/v.sock?db=1&password=***&username=y",
        ),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert hide_password(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@host",
        f"redis://user:{SECRET}@",
        f"redis://user:{SECRET}@host/mail",
        f"redis://user:{SECRET}@host:port",
        f"redis://:{SECRET}/x@host:6379",
        f"redis://:x/{SECRET}@host:6379",
        f"redis://:{SECRET}℀@host",
        f"redis://:{SECRET}@[::1",
        f"unix://:{SECRET}@",
        f"http://host?password={SECRET}",
        f"redis://host/mail?password={SECRET}",
        f"unix:///v.sock?password=a&{SECRET}",
        f"unix:///v.sock?password=a&{SECRET}=x&db=0",
    ],
)
def test_no_error_shows_it_either(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_url(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def complaint(url: str) -> str:
    """What is said against the URL, if anything is."""
    try:
        resolve_url(url)
    except UsageError as error:
        return str(error)
    return ""


@given(
    st.sampled_from(["redis", "rediss", "unix", "http"]),
    st.text(),
    st.text(),
    st.sampled_from(["host", "host:6379/0", "[::1]", "/run/v.sock", ""]),
)
@example("redis", "@0?", "", "host")
@example("redis", "?", "&", "host")
def test_whatever_stands_around_it(scheme: str, before: str, after: str, rest: str) -> None:
    url = f"{scheme}://:{before}{SECRET}{after}@{rest}"
    assert SECRET not in hide_password(url)
    assert SECRET not in complaint(url)


# -- options


def test_the_librarys_own_repeats_are_switched_off() -> None:
    """It repeats a command up to ten times without knowing what the command does."""
    retry = options("redis://host", Retry, 5.0)["retry"]
    calls = []

    def fail() -> None:
        calls.append(1)
        raise lib.ConnectionError("gone")

    with pytest.raises(lib.ConnectionError):
        retry.call_with_retry(fail, lambda error: None)
    assert len(calls) == 1


def test_a_dead_connection_is_noticed() -> None:
    tcp = options("redis://host", Retry, 5.0)
    assert tcp["socket_timeout"] == 5.0
    assert tcp["socket_connect_timeout"] > 0
    assert tcp["socket_keepalive"]
    assert "socket_keepalive" not in options("unix:///run/v.sock", Retry, 5.0)


def test_a_certificate_must_be_of_the_host_that_was_meant() -> None:
    """The library's default, up to version 5, is any host."""
    assert options("rediss://host", Retry, 5.0)["ssl_check_hostname"] is True
    assert "ssl_check_hostname" not in options("rediss://h?ssl_cert_reqs=none", Retry, 5.0)
    assert "ssl_check_hostname" not in options("redis://host", Retry, 5.0)


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_the_library_takes_every_option_that_bide_takes(kind: type[Any]) -> None:
    url = (
        "rediss://u:p@host:1/2?ssl_ca_certs=a&ssl_certfile=b&ssl_keyfile=c&ssl_cert_reqs=optional"
        "&ssl_check_hostname=false&ssl_ciphers=d"
    )
    pool = kind.from_url(**options(resolve_url(url), Retry, 5.0)).connection_pool
    connection = pool.connection_class(**pool.connection_kwargs)
    assert connection.check_hostname is False
    assert connection.keyfile == "c"
