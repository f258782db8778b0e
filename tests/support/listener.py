"""Hearing what scripts say over channels, and that they say no more."""

from __future__ import annotations

from typing import Any, Self

import redis

from bide.protocol.keys import Keys

CHANNELS = ("asked", "waiters")
_END = "that is all"


class ChannelListener:
    """Listens on the channels of a queue."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._names = {keys[name].encode(): name for name in CHANNELS}
        self._pubsub: Any = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._pubsub.subscribe(*self._names)
        self.heard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pubsub.close()

    def heard(self) -> list[tuple[str, str]]:
        """All that was said since it was last asked for: channel and text."""
        for channel in self._names:
            self._client.publish(channel, _END)
        ends = 0
        said: list[tuple[str, str]] = []
        while ends < len(self._names):
            message = self._pubsub.get_message(timeout=90)
            if message is None:
                continue  # that somebody subscribed
            text = message["data"].decode()
            if text == _END:
                ends += 1
            else:
                said.append((self._names[message["channel"]], text))
        return said
