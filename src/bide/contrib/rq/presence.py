"""A Timer's heartbeat: its record among RQ's workers, for `bide health` and for `rq info`.

A Timer registers as a worker of the queue `delay_gate`, and of no other. It is the only reader of
that queue; and what counts the workers of a queue counts only those that run its jobs. The server
forgets the record when no beat has come for some time.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import redis
import rq
from rq.utils import now, utcformat
from rq.worker import WorkerStatus
from rq.worker_registration import clean_worker_registry

from bide.connection import GOODBYE
from bide.contrib.rq.connections import GONE, client_like
from bide.contrib.rq.mover import Mover
from bide.contrib.rq_sets import (
    GATE,
    GATE_WORKERS,
    OTHER_SETS,
    SETS_FIELD,
    WORKER,
    WORKERS,
)
from bide.logs import Log

log = Log("bide.rq")

EVERY: Final = 10.0
"""Seconds between beats."""

KEPT: Final = 30
"""Seconds after the last beat for which a Timer counts as alive."""


class Presence:
    """The record of one Timer."""

    def __init__(self, timer: str, movers: Sequence[Mover]) -> None:
        """Set up; nothing is sent before `beat`."""
        self.due = 0.0
        """When the next beat is due, on this process's monotonic clock."""
        self._timer = timer
        self._movers = movers
        self._key = f"{WORKER}{timer}.{secrets.token_hex(3)}"  # several may have the same name
        self._birth = ""
        self._is_known = False
        self._is_refused = False

    def beat(self, client: redis.Redis) -> None:
        """Tell the server that the Timer is alive, if it is time; an error stops nothing."""
        if self.due > time.monotonic():
            return
        self.due = time.monotonic() + EVERY
        try:
            if not self._is_known:
                self._birth = utcformat(now())
                clean_worker_registry(rq.Queue(GATE, connection=client))
            with client.pipeline() as pipe:
                pipe.hset(self._key, mapping=self._record())
                pipe.expire(self._key, KEPT)
                pipe.sadd(WORKERS, self._key)
                pipe.sadd(GATE_WORKERS, self._key)
                for mover in self._movers:
                    if mover.keys.other_set:
                        pipe.sadd(OTHER_SETS, mover.keys.other_set)
                pipe.execute()
            self._is_known = True
        except (redis.RedisError, OSError) as error:
            if not isinstance(error, GONE) and not self._is_refused:  # of those, a move tells
                self._is_refused = True
                log.warning(
                    "timer %s cannot write its heartbeat (%s), so `bide health` does not see it",
                    self._timer,
                    error,
                )

    def end(self, connection: redis.Redis) -> None:
        """Remove the record, within about a second or not at all; it expires soon anyway."""
        self.due = 0.0
        if not self._is_known:
            return
        self._is_known = False
        client = client_like(connection, GOODBYE)
        with suppress(redis.RedisError, OSError), client.pipeline() as pipe:
            pipe.srem(WORKERS, self._key)
            pipe.srem(GATE_WORKERS, self._key)
            pipe.delete(self._key)
            pipe.execute()
        client.close()

    def _record(self) -> dict[Any, Any]:
        """The fields that RQ reads of a worker, and ours."""
        sets = {m.keys.delayed: [m.staying - m.others, len(m.strange)] for m in self._movers}
        return {
            "birth": self._birth,
            "last_heartbeat": utcformat(now()),
            "state": WorkerStatus.IDLE.value,
            "queues": GATE,
            "pid": os.getpid(),
            "hostname": socket.gethostname(),
            "ip_address": "unknown",
            "version": rq.__version__,
            "python_version": sys.version,
            SETS_FIELD: json.dumps(sets),
        }
