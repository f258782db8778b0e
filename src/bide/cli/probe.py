"""What a server says of itself, asked with plain commands: for `bide doctor` and completion.

The executors run scripts and nothing else; this asks INFO, CONFIG GET and TIME, any of which a
server may deny, over a connection set up as theirs are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import redis
from redis import exceptions as lib
from redis.retry import Retry

from bide.connection import hide_password, options, resolve_prefix, resolve_url
from bide.dialogue import translate
from bide.keys import keys_of

ROUND_TRIPS: Final = 20
_AT_ONCE: Final = 0.3
"""Seconds that a shell may be kept waiting for names."""

T = TypeVar("T")


class Readings(NamedTuple):
    """What was found; None, or empty, where the server denied the question."""

    info: dict[str, Any]
    """INFO, as the client library reads it."""
    config: dict[str, str]
    """CONFIG GET of what INFO does not say."""
    skew: float | None
    """Seconds by which the server's clock is ahead of this machine's."""
    unsure: float
    """Seconds by which `skew` may be wrong: half of the shortest round trip."""
    round_trips: list[float]
    """Seconds, sorted."""


def probe(url: str | None) -> Readings:
    """Ask the server about itself.

    Raises:
        BideError: it cannot be reached or does not let us in.
    """
    url = resolve_url(url)
    where = hide_password(url)
    client = redis.Redis.from_url(url, **options(url, Retry, 5.0))
    try:
        client.ping()
        skew, unsure, round_trips = _measure(client)
        return Readings(
            info=_allowed(lambda: dict(client.info("everything")), {}),
            config=_config(client),
            skew=skew,
            unsure=unsure,
            round_trips=round_trips,
        )
    except (lib.RedisError, OSError) as error:
        raise translate(error, where) from None
    finally:
        client.close()


def queue_names(url: str | None, prefix: str | None) -> list[str]:
    """The queues there are, for a shell to complete; none if that is not quickly known."""
    try:
        url = resolve_url(url)
        limits = options(url, Retry, _AT_ONCE)
        if "socket_connect_timeout" in limits:
            limits["socket_connect_timeout"] = _AT_ONCE
        with redis.Redis.from_url(url, **limits) as client:
            names = client.hkeys(keys_of(None, resolve_prefix(prefix))["queues"])
        return sorted(_text(name) for name in names)
    except Exception:  # whatever it is, a half-typed command is no place to say so
        return []


def _measure(client: redis.Redis) -> tuple[float | None, float, list[float]]:
    """The clock's skew by the quickest round trip, and how long each took."""
    found: list[tuple[float, float]] = []
    for _ in range(ROUND_TRIPS):
        before, began = time.time(), time.monotonic()
        moment = _allowed(client.time, None)
        took = time.monotonic() - began
        if moment is None:
            return None, 0.0, [_ping(client) for _ in range(ROUND_TRIPS)]
        seconds, us = moment
        found.append((took, seconds + us / 1e6 - (before + took / 2)))
    took, skew = min(found)
    return skew, took / 2, sorted(took for took, _ in found)


def _ping(client: redis.Redis) -> float:
    began = time.monotonic()
    client.ping()
    return time.monotonic() - began


def _config(client: redis.Redis) -> dict[str, str]:
    asked = ("timeout", "tcp-keepalive", "save", "appendfsync")
    config: dict[str, str] = {}
    for name in asked:
        found: dict[Any, Any] = _allowed(partial(client.config_get, name), {})
        config |= {_text(name): _text(value) for name, value in found.items()}
    return config


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _allowed(ask: Callable[[], T], otherwise: T) -> T:
    """An answer, or `otherwise` where the server does not let us ask."""
    try:
        return ask()
    except (lib.ResponseError, lib.NoPermissionError):
        return otherwise
