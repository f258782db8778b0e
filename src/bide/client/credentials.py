"""Users and passwords that a function returns, for servers whose tokens expire.

The URL names the function, so one text configures queues, workers and commands alike, and also a
child process:

    rediss://shop@host:6380/0?credentials=shop.auth:token

The function is called for each new connection. It returns the password, or user and password.
Instead of a function, the name may mean a `redis.CredentialProvider`.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from typing import Any

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
