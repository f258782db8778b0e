"""What a Timer hears while it sleeps: a thread for hints, and one for the gate.

Each has a connection of its own, on which it is blocked. One that breaks is made again, for as
long as the Timer works; what was lost meanwhile, a look at the server makes good.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from rq.utils import as_text

from bide.connection import LONGEST_RECONNECT_PAUSE, RECONNECT_PAUSE
from bide.contrib.rq.connections import GONE, client_like
from bide.contrib.rq.gate import open_gate
from bide.contrib.rq.keys import Keys
from bide.logs import Log

log = Log("bide.rq")

BLOCK: Final = 10
"""Seconds per blocking call, so that a dead connection is noticed."""

_MARGIN: Final = 3.0

_STAYING: Final = 1.0
"""Seconds between looks at a gate where a job must stay."""


class Ear(threading.Thread):
    """A thread that listens until it is stopped; the Timer's own calls report what is wrong."""

    def __init__(self, connection: redis.Redis, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._client = client_like(connection, BLOCK + _MARGIN)
        self._stopping = threading.Event()

    def run(self) -> None:
        """Listen; after trouble, again, less and less often."""
        pause = RECONNECT_PAUSE
        while not self._stopping.is_set():
            try:
                self.listen()
                pause = RECONNECT_PAUSE
            except Exception as error:
                if self._stopping.is_set():
                    return
                if not isinstance(error, GONE):
                    log.error("%s cannot listen: %s", self.name, error)
                self._stopping.wait(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, LONGEST_RECONNECT_PAUSE)

    def listen(self) -> None:
        """Listen for some seconds."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it, at once."""
        self._stopping.set()
        while self.is_alive():
            self._client.connection_pool.disconnect()  # it may be about to connect: so again
            self.join(0.05)
        self._client.close()


class Hints(Ear):
    """Hears when a job becomes the earliest of its queue."""

    def __init__(
        self,
        connection: redis.Redis,
        name: str,
        queues: Sequence[Keys],
        heard: Callable[[str, float], None],
        deaf: Callable[[], None],
    ) -> None:
        """Set up.

        Args:
            connection: to be made like.
            name: of the thread.
            queues: whose hints to hear.
            heard: told a queue's name, and the server's time at which the job is due.
            deaf: told that hints may have been missed until now.
        """
        super().__init__(connection, name)
        self._queues = {keys.hints: keys.name for keys in queues}
        self._heard = heard
        self._deaf = deaf
        self._pubsub: Any = None

    def listen(self) -> None:
        """Subscribe if need be, and hear one message."""
        pubsub = self._pubsub or self._subscribe()
        try:
            message = pubsub.get_message(timeout=BLOCK)
        except BaseException:
            self._drop()
            raise
        if message and message["type"] == "subscribe":
            self._deaf()
        elif message and message["type"] == "message":
            self._heard(self._queues[as_text(message["channel"])], float(message["data"]))

    def _subscribe(self) -> Any:
        self._pubsub = pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        try:
            pubsub.subscribe(*self._queues)
        except BaseException:
            self._drop()
            raise
        return pubsub

    def _drop(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        pubsub.close()


class Gate(Ear):
    """Opens the gate whenever RQ's workers push jobs there."""

    def __init__(self, connection: redis.Redis, name: str, queues: Sequence[Keys]) -> None:
        """Set up.

        Args:
            connection: to be made like.
            name: of the thread.
            queues: of the Timer; all have the same gate.
        """
        super().__init__(connection, name)
        self._keys = queues[0]

    def listen(self) -> None:
        """Wait until the gate's list has a job, and let it through."""
        gate = self._keys.gate
        # From its head to its head: it waits for the list, and changes nothing.
        came = self._client.blmove(gate, gate, BLOCK, "LEFT", "LEFT") is not None
        if came and not open_gate(self._client, self._keys):
            self._stopping.wait(_STAYING)  # BLMOVE would not wait: the list is not empty
