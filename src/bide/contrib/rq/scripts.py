"""The scripts of this package: loaded, named by their content, and run over RQ's connection."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import redis
from redis.client import Pipeline
from redis.exceptions import NoScriptError, ResponseError

from bide.errors import UsageError

NO_CLUSTER: Final = (
    "RQ's keys have no hash tag, so delayed jobs need one server or a Sentinel; "
    "this connection is to a cluster: give another."
)


@dataclass(frozen=True)
class Script:
    """A script's text, and the SHA-1 that a server knows it by."""

    text: str
    sha: str


@cache
def load(name: str) -> Script:
    """The script of this name, after the part that all share."""
    folder = resources.files("bide.contrib.rq").joinpath("lua")
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("common", name))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def run(client: Any, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
    """Run a script; its reply. In a pipeline it is only queued, and there is no reply.

    Raises:
        UsageError: the server is part of a cluster.
        redis.RedisError: as the client library has it.
    """
    script = load(name)
    if isinstance(client, Pipeline):
        # By its text: a server that has lost its scripts would refuse a part of a transaction.
        return client.eval(script.text, len(keys), *keys, *args)
    try:
        try:
            return client.evalsha(script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(script.text, len(keys), *keys, *args)
    except ResponseError as error:
        # The client library has classes for some of these replies, and has cut their first word.
        words = str(error) + type(error).__name__
        if any(word in words for word in ("CROSSSLOT", "CrossSlot", "MOVED", "Moved")):
            raise UsageError(NO_CLUSTER) from None
        raise


def check_connection(client: object) -> None:
    """Refuse a client of a cluster.

    Raises:
        UsageError: it is one.
    """
    if isinstance(client, redis.RedisCluster):
        raise UsageError(NO_CLUSTER)
