"""The Timer: sleeps until the next job is due, and moves it to the list that RQ's workers read."""

from __future__ import annotations

import os
import queue
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Final

import redis
import rq
from redis.exceptions import NoPermissionError

from bide import signals
from bide.connection import REPLY_TIMEOUT
from bide.contrib.rq.connections import GONE, client_like, describe
from bide.contrib.rq.ears import Ear, Gate, Hints
from bide.contrib.rq.gate import open_gate
from bide.contrib.rq.keys import Keys
from bide.contrib.rq.mover import Mover
from bide.contrib.rq.presence import Presence
from bide.contrib.rq.queue import DelayQueue
from bide.contrib.rq.scripts import NO_CLUSTER, check_connection
from bide.errors import AccessDenied, BideError, ServerRefused, UsageError
from bide.logs import Log
from bide.refusals import translate

log = Log("bide.rq")


class Timer:
    """Moves the delayed jobs of some queues when they are due. Any number may work at once."""

    def __init__(
        self,
        queues: rq.Queue | str | Iterable[rq.Queue | str],
        *,
        connection: redis.Redis | None = None,
        name: str | None = None,
    ) -> None:
        """Set up; nothing is sent before `work`.

        Args:
            queues: one or more, as objects or names.
            connection: RQ's; by default that of the first queue that is an object.
            name: what logs call it; by default host and process id.

        Raises:
            UsageError: there is no queue, or no connection, or it is to a cluster.
        """
        given = [queues] if isinstance(queues, str | rq.Queue) else list(queues)
        if not given:
            raise UsageError("A Timer needs at least one queue.")
        for one in given:
            if not isinstance(one, str | rq.Queue):
                raise UsageError(f"A queue is an rq.Queue or a name, not {type(one).__name__}.")
        if connection is None:
            connection = next((q.connection for q in given if isinstance(q, rq.Queue)), None)
        if connection is None:
            raise UsageError("Queues are given as names only; say connection=redis.Redis(...).")
        check_connection(connection)
        objects = [DelayQueue(q, connection) if isinstance(q, str) else q for q in given]
        self.name: Final = name or f"{socket.gethostname()}.{os.getpid()}"
        self._connection = connection
        self._queues = list(dict.fromkeys(Keys.of(q) for q in objects))
        self._movers = [Mover(keys) for keys in self._queues]
        self._presence = Presence(self.name, self._movers)
        self._woken: queue.SimpleQueue[tuple[str, float] | None] = queue.SimpleQueue()
        """Hints; an empty name where hints may have been missed, None to stop."""
        self._moved = 0
        self._stopping = False

    def work(self, burst: bool = False) -> int:
        """Move jobs when they are due, until SIGINT or SIGTERM; with `burst`, what is due now.

        A server that goes away is waited for.

        Returns:
            How many jobs this Timer moved.

        Raises:
            ServerUnavailable: the server could not be reached at the start, or in a burst.
            UsageError: the server is part of a cluster.
            BideError: the server refused.
        """
        client = client_like(self._connection, REPLY_TIMEOUT)
        self._moved = 0
        try:
            with signals.heard(self._signalled):
                self._check_server(client)
                log.info("timer %s moves what is due of %s", self.name, ", ".join(self._names()))
                for mover in self._movers:
                    mover.look()
                if burst:
                    self._burst(client)
                else:
                    self._go_on(client)
                log.info("timer %s stopped after %d jobs", self.name, self._moved)
        except (redis.RedisError, OSError) as error:
            raise _sentence(error, describe(self._connection)) from error
        finally:
            self._stopping = False
            client.close()
        return self._moved

    def stop(self) -> None:
        """Ask it to stop, as a signal would. Any thread may call, also before `work`."""
        self._stopping = True
        self._woken.put(None)

    def _burst(self, client: redis.Redis) -> None:
        open_gate(client, self._queues[0])
        for mover in self._movers:
            while not self._stopping and self._move(client, mover):
                pass

    def _go_on(self, client: redis.Redis) -> None:
        ears: list[Ear] = [
            Hints(self._connection, f"{self.name} hints", self._queues, self._hear, self._look),
            Gate(self._connection, f"{self.name} gate", self._queues),
        ]
        for ear in ears:
            ear.start()
        try:
            while not self._stopping:
                self._presence.beat(client)
                for mover in self._movers:
                    if mover.due <= time.monotonic():
                        self._try_to_move(client, mover)
                self._sleep()
        finally:
            for ear in ears:
                ear.stop()
            self._presence.end(self._connection)

    def _try_to_move(self, client: redis.Redis, mover: Mover) -> None:
        """Move what is due, or report what is wrong and try again later."""
        try:
            self._move(client, mover)
        except (redis.RedisError, OSError) as error:
            gone = isinstance(error, GONE)
            what = "cannot reach the server" if gone else f"cannot move jobs of {mover.keys.name}"
            fix = ""
            if "WRONGTYPE" in str(error):
                keys = mover.keys
                fix = f"; another program uses {keys.delayed} or {keys.list}: delete that key"
            log.warning("timer %s %s (%s)%s; it tries again", self.name, what, error, fix)
            mover.failed()

    def _move(self, client: redis.Redis, mover: Mover) -> bool:
        """Move what is due of a queue, up to a limit; whether more may be due."""
        moved, is_more = mover.move(client)
        self._moved += moved
        return is_more

    def _sleep(self) -> None:
        """Until the next job is due, or something is heard that leaves none to wait for."""
        while not self._stopping:
            wake = min(mover.due for mover in self._movers)
            left = min(wake, self._presence.due) - time.monotonic()
            try:
                hint = self._woken.get(timeout=left) if left > 0 else self._woken.get_nowait()
            except queue.Empty:
                return
            if hint is None:
                continue
            name, due = hint
            for mover in self._movers:
                if not name:
                    mover.look()
                elif name == mover.keys.name:
                    mover.hear(due)

    def _names(self) -> list[str]:
        return list(dict.fromkeys(keys.name for keys in self._queues))

    def _hear(self, name: str, due: float) -> None:
        self._woken.put((name, due))

    def _look(self) -> None:
        """Look at all queues: hints may have been missed."""
        self._woken.put(("", 0.0))

    def _check_server(self, client: redis.Redis) -> None:
        with suppress(NoPermissionError):  # a user may not have the right to ask
            if client.info("cluster").get("cluster_enabled"):
                raise UsageError(NO_CLUSTER)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.stop()


def _sentence(error: Exception, where: str) -> BideError:
    if "WRONGTYPE" in str(error):
        return ServerRefused(f"Another program uses a key of RQ's at {where} ({error}); delete it.")
    if isinstance(error, NoPermissionError):  # `bide acl` knows nothing of RQ's keys
        return AccessDenied(
            f"The server at {where} refuses access ({error}); check user and rights."
        )
    return translate(error, where)
