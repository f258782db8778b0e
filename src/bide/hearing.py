"""What is heard over a connection of one's own, in code that blocks: wake hints, and words."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis

from bide.connection import HINT_WAIT, LONGEST_RECONNECT_PAUSE, RECONNECT_PAUSE, REPLY_TIMEOUT
from bide.connections import shut


class Hints:
    """Wake hints, as they come.

    A blocking call's own time-out is no clock: it fires up to a tenth of a second late. So the call
    stays outstanding for long, and who waits for its reply has a timer besides.
    """

    def __init__(
        self, locate: Callable[[], redis.Redis], doubt: Callable[[], None], key: str
    ) -> None:
        """Set up.

        Args:
            locate: finds the client library's client of the node that has the list.
            doubt: is told when that does not answer as it should.
            key: the list.
        """
        self._locate = locate
        self._doubt = doubt
        self._key = key
        self._connection: Any = None
        self._asks = False
        """Whether a call is outstanding."""
        self._answer_by = 0.0
        """When that has an answer at the latest, unless the server hangs (`time.monotonic()`)."""
        self._is_cut = False

    def hear(self, until: float) -> str | None:
        """Who pushed the next hint; None at `until` (`time.monotonic()`), or when some were lost.

        What came since the last time counts.
        """
        while True:
            try:
                if not self._asks:
                    self._ask()
                if self._is_cut:
                    return None
                by = min(until, self._answer_by)
                if not self._connection.can_read(timeout=max(0.0, by - time.monotonic())):
                    if by == until:
                        return None
                    raise redis.TimeoutError("no answer to BLPOP")
                hint = self._read()
            except (redis.RedisError, OSError):
                self._doubt()
                self._drop()
                if not self._is_cut:
                    time.sleep(max(0.0, min(RECONNECT_PAUSE, until - time.monotonic())))
                return None
            if hint is not None:
                return hint

    def close(self) -> bool:
        """Hear no more; whether a hint had come that nobody was told of."""
        came = False
        with suppress(redis.RedisError, OSError):
            came = self._asks and self._connection.can_read(timeout=0) and self._read() is not None
        self._drop()
        return came

    def cut(self) -> None:
        """Have `hear`, which waits in another thread, come back at once and for good."""
        self._is_cut = True
        shut(self._connection)

    def _ask(self) -> None:
        if self._connection is None:
            pool = self._locate().connection_pool
            self._connection = pool.connection_class(**pool.connection_kwargs)
            self._connection.connect()
        self._connection.send_command("BLPOP", self._key, HINT_WAIT)
        self._answer_by = time.monotonic() + HINT_WAIT + REPLY_TIMEOUT
        self._asks = True

    def _read(self) -> str | None:
        """Who pushed the hint that the reply has, if it has one."""
        self._asks = False
        reply = self._connection.read_response()
        return reply[1].decode("utf-8", "replace") if reply else None

    def _drop(self) -> None:
        self._asks = False
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(redis.RedisError, OSError):
                connection.disconnect()


class Waiter:
    """One who waits for a word; a connection that breaks is replaced, and costs words."""

    def __init__(
        self,
        locate: Callable[[], redis.Redis],
        doubt: Callable[[], None],
        channel: str,
        text: str,
    ) -> None:
        """Set up; `locate` and `doubt` as for `Hints`."""
        self._locate = locate
        self._doubt = doubt
        self._channel = channel
        self._text = text
        self._pubsub: Any = None
        self._pause = RECONNECT_PAUSE

    def __enter__(self) -> Waiter:
        self._connect()
        return self

    def __exit__(self, *exc: object) -> None:
        self._drop()

    def hear(self, until: float) -> None:
        """Return when the word is said, at `until` (`time.monotonic()`), or when some were lost."""
        while (left := until - time.monotonic()) > 0:
            if self._pubsub is None:
                time.sleep(min(left, self._pause))
                self._connect()
                return
            try:
                message = self._pubsub.get_message(timeout=left)
            except (redis.RedisError, OSError):
                self._drop()
                continue
            if message and message["type"] == "message" and message["data"] == self._text.encode():
                return

    def _connect(self) -> None:
        try:
            self._pubsub = self._locate().pubsub()  # type: ignore[no-untyped-call]
            self._pubsub.subscribe(self._channel)
            if self._pubsub.get_message(timeout=REPLY_TIMEOUT) is None:
                raise redis.TimeoutError("no answer to SUBSCRIBE")
            self._pause = RECONNECT_PAUSE
        except (redis.RedisError, OSError):
            self._doubt()
            self._pause = min(2 * self._pause, LONGEST_RECONNECT_PAUSE)
            self._drop()

    def _drop(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(redis.RedisError, OSError):
                pubsub.close()
