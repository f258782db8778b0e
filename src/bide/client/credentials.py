"""Credentials: from a function that returns user and password, or from a given client.

A function is for servers whose tokens expire. The URL names it, so one text configures queues,
workers and commands alike, and also a child process:

    rediss://shop@host:6380/0?credentials=shop.auth:token

The function is called for each new connection. It returns the password, or user and password.
Instead of a function, the name may mean a `redis.CredentialProvider`.

A program may also give a client that it has already, one of redis-py or valkey-py, blocking or
awaited. bide makes connections of its own: its retries know the ids that make a repeat harmless,
and its time-outs are those of its calls. So it takes from the client where the server is and how
to log in: host and port, socket, database, user, password, TLS options and the credential provider.
From a client for the master of Sentinels, it also takes the Sentinels. It does not use the client's
own connections.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote, urlencode

import redis
from redis import exceptions as lib

from bide.errors import UsageError


class Credentials(redis.CredentialProvider):
    """The client library's view of a function that returns credentials."""

    def __init__(self, name: str, user: str) -> None:
        """Set up; `name` is `MODULE:FUNCTION`, and `user` is for passwords without a user."""
        self._name = name
        self._user = user

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Call the function.

        An exception counts as a broken connection, because the function may ask another server: the
        call is retried.
        """
        provide = _find(self._name)
        try:
            found = provide()
        except Exception as error:
            raise lib.ConnectionError(
                f"{self._name} raised {type(error).__name__}: {error}"
            ) from error
        words = (found,) if isinstance(found, str) else found
        if (
            not isinstance(words, tuple | list)
            or len(words) not in (1, 2)
            or not all(isinstance(word, str) for word in words)
        ):
            raise UsageError(
                f"{self._name} returned {type(found).__name__}; return the password as str, or "
                "(user, password)."
            )
        if len(words) == 2:
            return words[0], words[1]
        return (self._user, words[0]) if self._user else (words[0],)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Call the function in a thread, because it may wait for another server."""
        return await asyncio.to_thread(self.get_credentials)


@lru_cache(maxsize=32)
def _find(name: str) -> Any:
    """Import the function of a name; of a `CredentialProvider`, return its method."""
    module, _, path = name.partition(":")
    try:
        found = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"credentials={name} in the URL cannot be imported ({error}); write "
            "credentials=MODULE:FUNCTION."
        ) from error
    if isinstance(found, redis.CredentialProvider):
        return found.get_credentials
    if not callable(found):
        raise UsageError(
            f"credentials={name} in the URL is {type(found).__name__}; name a function that "
            "returns the password, or a redis.CredentialProvider."
        )
    return found


given: Final = SimpleNamespace()
"""The credential providers of clients. A URL names each as `bide.client.credentials:given.NAME`."""

_TAKEN: Final = (
    *("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
    *("ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers"),
)
_NOT_TAKEN: Final = (
    *("ssl_ca_data", "ssl_ca_path", "ssl_password", "ssl_min_version"),
    *("ssl_include_verify_flags", "ssl_exclude_verify_flags"),
    *("ssl_validate_ocsp", "ssl_validate_ocsp_stapled"),
)


def url_of(client: Any) -> str:
    """Return the URL of a client's server.

    Raises:
        UsageError: it is not a client, or has an option that a URL cannot express.
    """
    pool: Any = getattr(client, "connection_pool", None)
    options: Any = getattr(pool, "connection_kwargs", None)
    if not isinstance(options, dict):
        is_cluster = hasattr(client, "nodes_manager")
        raise UsageError(
            "url= takes no client of a Cluster; write redis+cluster://HOST:PORT,HOST:PORT."
            if is_cluster
            else "url must be text, or a client of redis-py or valkey-py, not "
            f"{type(client).__name__}; write redis://HOST:PORT/DB."
        )
    kind = pool.connection_class
    login, query = _login(options)
    if any("SSL" in one.__name__ for one in kind.__mro__):
        scheme, more = "rediss", _tls(kind, options)
    else:
        scheme, more = "redis", {}
    db = str(options.get("db") or 0)
    if "path" in options:
        return f"unix://{login}{quote(options['path'])}?{urlencode({'db': db, **query})}"
    path = f"/{db}"
    if (service := getattr(pool, "service_name", None)) is not None:
        asked = pool.sentinel_manager.sentinels
        sentinels = [one.connection_pool.connection_kwargs for one in asked]
        own = {name: sentinels[0].get(name) for name in ("username", "password")}
        query |= {f"sentinel_{name}": value for name, value in own.items() if value}
        scheme, path = f"{scheme}+sentinel", f"/{quote(service, safe='')}{path}"
        hosts = ",".join(_host(one) for one in sentinels)
    else:
        hosts = _host(options)
    query |= more
    return f"{scheme}://{login}{hosts}{path}" + (f"?{urlencode(query)}" if query else "")


def _host(options: dict[str, Any]) -> str:
    host = options.get("host", "localhost")
    return f"{f'[{host}]' if ':' in host else host}:{options.get('port', 6379)}"


def _login(options: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return user and password as a URL has them before the host, and what its query says."""
    provider = options.get("credential_provider")
    if provider is not None:
        name = f"of_{id(provider):x}"
        setattr(given, name, provider.get_credentials)
        return "", {"credentials": f"{__name__}:given.{name}"}
    user, password = (quote(options.get(name) or "", safe="") for name in ("username", "password"))
    return f"{user}:{password}@" if password else f"{user}@" if user else "", {}


def _tls(kind: type[Any], options: dict[str, Any]) -> dict[str, str]:
    """Return the TLS options that differ from the defaults of the client's library."""
    defaults: dict[str, Any] = {}
    for one in kind.__mro__:
        start: Any = vars(one).get("__init__")
        for name, parameter in inspect.signature(start).parameters.items() if start else ():
            defaults.setdefault(name, parameter.default)
    found = {}
    for name in (*_TAKEN, *_NOT_TAKEN):
        value = options.get(name)
        if name == "ssl_cert_reqs" and name in options and value is None:
            value = "none"  # as the library reads it
        if value is None or value == defaults.get(name):
            continue
        if name not in _TAKEN:
            raise UsageError(
                f"The client has {name}, which bide does not take; give the URL of the server, "
                f"with {', '.join(_TAKEN)} as needed."
            )
        if isinstance(value, ssl.VerifyMode):
            value = value.name.removeprefix("CERT_").lower()
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
