"""`Timer`: sleeps until the next job is due, and moves it to the list that RQ's workers read.

Members of the sorted set that neither bide nor delay-rq has added stay there, and so do jobs with
unfinished dependencies. Each call continues after the members that the call before it has left, so
that they do not block other jobs. If a pass leaves more members than one call reads, the next
passes start after them, and sometimes a pass starts at the beginning again.

A Timer registers as a worker of the queue `delay_gate` only, which only Timers read. So it is not
counted among the workers that run jobs of a queue. The record expires without heartbeats.

Each listener blocks on a connection of its own, and reconnects as long as the Timer works. After
that, the Timer reads the server again, in case messages were lost.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import redis
import rq
from redis.exceptions import NoPermissionError
from rq.utils import as_text, now, utcformat
from rq.worker import WorkerStatus
from rq.worker_registration import clean_worker_registry

from bide.client.errors import map_error
from bide.client.url import GOODBYE, LONGEST_RECONNECT_PAUSE, RECONNECT_PAUSE, REPLY_TIMEOUT
from bide.contrib.rq.queue import (
    GONE,
    NO_CLUSTER,
    WAKEUPS,
    DelayQueue,
    RqKeys,
    check_connection,
    client_like,
    describe,
    run,
)
from bide.contrib.rq_sets import (
    DELAYED,
    GATE,
    GATE_WORKERS,
    OTHER_SETS,
    PREFIX,
    READY,
    SETS_FIELD,
    WORKER,
    WORKERS,
)
from bide.errors import AccessDenied, BideError, ServerRefused, UsageError
from bide.logs import Log, count
from bide.model.durations import JITTER
from bide.model.ids import short_id
from bide.worker import lifespan

log = Log("bide.rq")

AT_ONCE: Final = 100
"""Maximum jobs or members per call of a script, which limits its time."""


def run_dependency_hook(client: redis.Redis, keys: RqKeys) -> bool:
    """Move all jobs on from the gate; the delay of each starts.

    Returns:
        Whether no job stays. A job stays while another program uses the key of its queue's sorted
        set.

    Raises:
        redis.RedisError: the server cannot be reached, or refuses; other jobs are still at the
        gate.
    """
    staying: list[bytes] = []
    read = AT_ONCE
    while read == AT_ONCE:
        args = [keys.jobs, DELAYED, WAKEUPS, GATE, len(staying), AT_ONCE, READY]
        read, through, strays, stay = run(client, "open", [keys.dependency_hook], args)
        staying += stay
        for id in through:
            log.debug("the delay of job %s starts now", shown(id))
        for id in strays:
            log.warning("job %s does not wait for a delay; dropped", shown(id))
    for key in sorted(set(staying)):
        log.warning(
            "%s cannot be moved: another program uses the key %s; delete that key",
            count(staying.count(key), "due job"),
            shown(key),
        )
    return not staying


def shown(id: bytes) -> str:
    """Format an id or a name for logs: another program may have written it."""
    return short_id(id.decode("utf-8", "backslashreplace"))


def server_of(client: redis.Redis) -> tuple[object, ...]:
    """Return what distinguishes the servers of two clients: address and database."""
    options = client.connection_pool.connection_kwargs
    host = options.get("host")
    address = "127.0.0.1" if host == "localhost" else host
    return address, options.get("port"), options.get("path"), options.get("db") or 0


LONGEST_SLEEP: Final = 10.0
"""Maximum seconds of sleep: the cost of a lost wake-up message, or of a change of the clock."""

UNANNOUNCED_SLEEP: Final = 0.1
"""Seconds between reads while delay-rq adds jobs, because it sends no wake-up messages."""

UNANNOUNCED: Final = 3600.0
"""Seconds of such reads after the last job of delay-rq."""

UNSAVED: Final = 60.0
"""Seconds for which a due member may have no job: delay-rq adds the member, by its own clock,
before it saves the job."""

_START: Final = "-inf"
_NAMED: Final = 3
"""Maximum number of ids in a warning."""


@dataclass
class Left:
    """The due members that a pass leaves in a sorted set."""

    staying: int = 0
    """The number of members."""
    others: int = 0
    """Number of these that are jobs of other queues, which the Timers of those queues move."""
    strange: set[bytes] = field(default_factory=set)
    """The members that belong to no delayed job."""
    waiting: set[bytes] = field(default_factory=set)
    """The members whose jobs depend on other jobs."""


class Mover:
    """One queue of a Timer."""

    def __init__(self, keys: RqKeys) -> None:
        """Set up; nothing is sent before `move`."""
        self.keys: Final = keys
        self.due = 0.0
        """When to read the server, on this process's monotonic clock."""
        self._pause = RECONNECT_PAUSE
        self._resting_until = 0.0
        """When to retry after a failed call; wake-up messages do not change it."""
        self.server_ahead = 0.0
        """The server's clock minus our monotonic clock, in seconds."""
        self.left = Left()
        """The members that the last pass has left."""
        self._leaving = Left()
        """The members that this pass has left so far."""
        self._from, self._skip = _START, 0
        """The start of the next call, in the script's form."""
        self._begun = False
        """Whether a pass is under way."""
        self._start_at = 0.0
        """When the next pass starts at the beginning again."""
        self._unannounced_until = 0.0

    def move(self, client: redis.Redis) -> tuple[int, bool]:
        """Move due jobs, up to a limit.

        Returns:
            How many jobs were moved, and whether more may be due.

        Raises:
            redis.RedisError: the server cannot be reached, or refuses; other jobs are still there.
            UsageError: the server is part of a cluster.
        """
        if not self._begun:
            self._begin()
        keys = self.keys
        reply = run(
            client,
            "move",
            [keys.delayed, keys.list, keys.scheduled, keys.queues],
            [
                *(keys.name, keys.jobs, DELAYED, GATE, AT_ONCE),
                *(self._from, self._skip, round(UNSAVED * 1e6), PREFIX),
            ],
        )
        self._pause = RECONNECT_PAUSE
        moved, theirs, gone, cancelled, taken, strange, waiting, stay, at, skip, *rest = reply
        due, now, others = rest
        monotonic = time.monotonic()
        self.server_ahead = float(now) - monotonic
        if theirs:
            self._unannounced_until = monotonic + UNANNOUNCED
        for ids, level, text in (
            (moved, logging.DEBUG, "job %s moved to %s"),
            (gone, logging.WARNING, "job %s of %s is gone; dropped"),
            (cancelled, logging.INFO, "job %s of %s was cancelled"),
            (taken, logging.WARNING, "job %s of %s was enqueued elsewhere; dropped"),
        ):
            for id in ids:
                log.log(level, text, shown(id), keys.name)
        self._leaving.staying += stay
        self._leaving.others += others
        self._leaving.strange.update(strange)
        self._leaving.waiting.update(waiting)
        if at:
            self._from, self._skip = at.decode(), skip
            self.due = monotonic
        else:
            self._end(now.decode())
            longest = LONGEST_SLEEP
            if monotonic < self._unannounced_until:
                longest = UNANNOUNCED_SLEEP
            left = float(due) - float(now) if due else longest
            self.due = monotonic + min(left, longest)
        return len(moved), bool(at)

    def hear(self, due: float) -> None:
        """Record that a job was delayed until then, on the server's clock."""
        self.due = max(self._resting_until, min(self.due, due - self.server_ahead))
        behind = float(self._from.lstrip("("))
        if due <= behind:  # a pass that starts there would not see it
            self._from, self._skip = repr(due), 0

    def look(self) -> None:
        """Start a pass at the beginning now: messages may have been lost."""
        self.due = self._start_at = self._resting_until = 0.0
        self._begun = False

    def failed(self) -> None:
        """Pause before the next call; the pause grows until a call succeeds."""
        self.due = self._resting_until = time.monotonic() + self._pause * JITTER.uniform(0.5, 1)
        self._pause = min(2 * self._pause, LONGEST_RECONNECT_PAUSE)

    def _begin(self) -> None:
        """Start a pass; at the beginning if it is time, or if few members would be read again."""
        if self._start_at <= time.monotonic():
            self._from, self._skip = _START, 0
        if self._from == _START:
            self._leaving = Left()
            self._start_at = time.monotonic() + LONGEST_SLEEP
        self._begun = True

    def _end(self, now: str) -> None:
        """End a pass that has read all members that were due by `now`."""
        self._begun = False
        if new := self._leaving.strange - self.left.strange:
            log.warning(
                "%s of %s stay: neither bide nor delay-rq delayed these jobs on %s; enqueue them, "
                "or remove them with ZREM",
                _some(new),
                self.keys.delayed,
                self.keys.name,
            )
        for id in self._leaving.waiting - self.left.waiting:
            log.info("job %s of %s is due, and waits for other jobs", shown(id), self.keys.name)
        self.left = deepcopy(self._leaving)
        few = self.left.staying < AT_ONCE
        self._from, self._skip = (_START if few else f"({now}"), 0


def _some(ids: Iterable[bytes]) -> str:
    named = sorted(shown(id) for id in ids)
    more = len(named) - _NAMED
    return ", ".join(named[:_NAMED]) + (f" and {more} more members" if more > 0 else "")


HEARTBEAT_EVERY: Final = 10.0
"""Seconds between heartbeats."""

KEPT: Final = 30
"""Seconds after the last heartbeat for which a Timer counts as alive."""


class Presence:
    """The record of one Timer."""

    def __init__(self, timer: str, movers: Sequence[Mover]) -> None:
        """Set up; nothing is sent before `beat`."""
        self.due = 0.0
        """When the next heartbeat is due, on this process's monotonic clock."""
        self._timer = timer
        self._movers = movers
        self._key = f"{WORKER}{timer}.{secrets.token_hex(3)}"  # several may have this name
        self._birth = ""
        self._is_known = False
        self._is_refused = False

    def beat(self, client: redis.Redis) -> None:
        """Send a heartbeat if it is due; an error is only logged."""
        if self.due > time.monotonic():
            return
        self.due = time.monotonic() + HEARTBEAT_EVERY
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
            if not isinstance(error, GONE) and not self._is_refused:  # a move reports these
                self._is_refused = True
                log.warning(
                    "timer %s cannot write its heartbeat (%s), so `bide health` does not see it",
                    self._timer,
                    error,
                )

    def end(self, connection: redis.Redis) -> None:
        """Remove the record if that is possible within about a second; otherwise it expires."""
        self.due = 0.0
        if not self._is_known:
            return
        self._is_known = False
        with (
            closing(client_like(connection, GOODBYE)) as client,
            suppress(redis.RedisError, OSError),
            client.pipeline() as pipe,
        ):
            pipe.srem(WORKERS, self._key)
            pipe.srem(GATE_WORKERS, self._key)
            pipe.delete(self._key)
            pipe.execute()

    def _record(self) -> dict[Any, Any]:
        """Return the fields of a worker that RQ reads, and ours."""
        sets = {
            mover.keys.delayed: [mover.left.staying - mover.left.others, len(mover.left.strange)]
            for mover in self._movers
        }
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


BLOCK: Final = 10
"""Seconds per blocking call, so that a dead connection is noticed."""

_MARGIN: Final = 3.0

_STAYING: Final = 1.0
"""Seconds between reads of a gate where a job must stay."""


class ListenerThread(threading.Thread):
    """A thread that listens until it is stopped; the Timer's own calls report problems."""

    def __init__(
        self,
        connection: redis.Redis,
        name: str,
        listen: Callable[[redis.Redis], Iterator[float]],
    ) -> None:
        """Set up; `listen` listens for some seconds, yields the length of a pause, and repeats."""
        super().__init__(name=name, daemon=True)
        self._client = client_like(connection, BLOCK + _MARGIN)
        self._listen = listen
        self._stopping = threading.Event()

    def run(self) -> None:
        """Listen; after an error, retry with growing pauses."""
        pause = RECONNECT_PAUSE
        while not self._stopping.is_set():
            try:
                for rest in self._listen(self._client):
                    pause = RECONNECT_PAUSE
                    if self._stopping.wait(rest):
                        return
            except Exception as error:
                if self._stopping.is_set():
                    return
                if not isinstance(error, GONE):
                    log.error("%s cannot listen: %s", self.name, error)
                self._stopping.wait(pause * JITTER.uniform(0.5, 1))
                pause = min(2 * pause, LONGEST_RECONNECT_PAUSE)

    def stop(self) -> None:
        """Stop it immediately."""
        self._stopping.set()
        while self.is_alive():
            self._client.connection_pool.disconnect()  # again, because it may be about to connect
            self.join(0.05)
        self._client.close()


class Timer:
    """Moves the delayed jobs of queues when they are due; several may serve the same queues."""

    def __init__(
        self,
        queues: rq.Queue | str | Iterable[rq.Queue | str],
        *,
        connection: redis.Redis | None = None,
        name: str | None = None,
    ) -> None:
        """Create a Timer; nothing is sent before `work`.

        Args:
            queues: one or more, as objects or names.
            connection: RQ's connection; by default that of the first queue that is an object.
            name: the Timer's name in logs; by default host and process id.

        Raises:
            UsageError: there is no queue or no connection, or the connection is to a cluster.
        """
        given = [queues] if isinstance(queues, str | rq.Queue) else list(queues)
        if not given:
            raise UsageError("A Timer needs at least one queue; give its name.")
        for one in given:
            if not isinstance(one, str | rq.Queue):
                kind = type(one).__name__
                if type(one).__module__.startswith("bide."):
                    kind += " of bide, which needs no Timer"
                raise UsageError(f"A queue is an rq.Queue or a name, not {kind}.")
        if connection is None:
            connections = [q.connection for q in given if isinstance(q, rq.Queue)]
            connection = next(iter(connections), None)
            if len({server_of(each) for each in connections}) > 1:
                raise UsageError(
                    "The queues are on different servers, and a Timer serves one; start a Timer "
                    "for each."
                )
        if connection is None:
            raise UsageError(
                "Queues are given as names only; give connection=redis.Redis(...) too."
            )
        check_connection(connection)
        objects = [DelayQueue(q, connection) if isinstance(q, str) else q for q in given]
        self.name: Final = name or f"{socket.gethostname()}.{os.getpid()}"
        """The name in logs."""
        self._connection = connection
        self._queues = list(dict.fromkeys(RqKeys.of(q) for q in objects))
        self._movers = [Mover(keys) for keys in self._queues]
        self._presence = Presence(self.name, self._movers)
        self._woken: queue.SimpleQueue[tuple[str, float] | None] = queue.SimpleQueue()
        """Wake-up messages; an empty name if messages may be lost, None to stop."""
        self._moved = 0
        self._stopping = False

    def work(self, burst: bool = False) -> int:
        """Move jobs when they are due, until SIGINT or SIGTERM; with `burst`, only jobs due now.

        If the server is unreachable, the Timer waits for it.

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
            with lifespan.heard(self._signalled):
                self._check_server(client)
                log.info(
                    "timer %s moves due jobs of %s",
                    self.name,
                    ", ".join(dict.fromkeys(k.name for k in self._queues)),
                )
                for mover in self._movers:
                    mover.look()
                if burst:
                    self._burst(client)
                else:
                    self._go_on(client)
                log.info("timer %s stopped after %s", self.name, count(self._moved, "job"))
        except (redis.RedisError, OSError) as error:
            raise _sentence(error, describe(self._connection)) from error
        finally:
            self._stopping = False
            client.close()
        return self._moved

    def stop(self) -> None:
        """Stop the Timer, as a signal would. Any thread may call this, also before `work`."""
        self._stopping = True
        self._woken.put(None)

    def _burst(self, client: redis.Redis) -> None:
        run_dependency_hook(client, self._queues[0])
        for mover in self._movers:
            while not self._stopping and self._move(client, mover):
                pass

    def _go_on(self, client: redis.Redis) -> None:
        listeners = [
            ListenerThread(self._connection, f"{self.name} wake-ups", self._listen_for_wakeups),
            ListenerThread(self._connection, f"{self.name} gate", self._watch_dependency_hook),
        ]
        for listener in listeners:
            listener.start()
        try:
            while not self._stopping:
                self._presence.beat(client)
                for mover in self._movers:
                    if mover.due <= time.monotonic():
                        self._try_to_move(client, mover)
                self._sleep()
        finally:
            for listener in listeners:
                listener.stop()
            self._presence.end(self._connection)

    def _try_to_move(self, client: redis.Redis, mover: Mover) -> None:
        """Move due jobs, or report the problem and try again later."""
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
        """Move due jobs of a queue, up to a limit; return whether more may be due."""
        moved, is_more = mover.move(client)
        self._moved += moved
        return is_more

    def _sleep(self) -> None:
        """Sleep until the next job is due, or a message arrives."""
        while not self._stopping:
            wake = min(mover.due for mover in self._movers)
            left = min(wake, self._presence.due) - time.monotonic()
            try:
                message = self._woken.get(timeout=left) if left > 0 else self._woken.get_nowait()
            except queue.Empty:
                return
            if message is None:
                continue
            name, due = message
            for mover in self._movers:
                if not name:
                    mover.look()
                elif name == mover.keys.name:
                    mover.hear(due)

    def _listen_for_wakeups(self, client: redis.Redis) -> Iterator[float]:
        """Yield when a job becomes the earliest of its queue, or messages may have been missed."""
        names = {keys.wakeups: keys.name for keys in self._queues}
        with client.pubsub() as pubsub:  # type: ignore[no-untyped-call]
            pubsub.subscribe(*names)
            while True:
                message: Any = pubsub.get_message(timeout=BLOCK)
                if message and message["type"] == "subscribe":
                    self._look()
                elif message and message["type"] == "message":
                    name = names[as_text(message["channel"])]
                    self._woken.put((name, float(message["data"])))
                yield 0.0

    def _look(self) -> None:
        """Read all queues, because messages may be lost."""
        self._woken.put(("", 0.0))

    def _watch_dependency_hook(self, client: redis.Redis) -> Iterator[float]:
        """Open the gate whenever RQ's workers push jobs there; all queues have the same gate."""
        keys = self._queues[0]
        hook = keys.dependency_hook
        while True:
            stays = not run_dependency_hook(client, keys)
            yield _STAYING if stays else 0.0  # BLMOVE would not wait: the list is not empty
            # From the head to the head: it waits for the list, and changes nothing.
            client.blmove(hook, hook, BLOCK, "LEFT", "LEFT")

    def _check_server(self, client: redis.Redis) -> None:
        with suppress(NoPermissionError):  # the user may lack the permission
            if client.info("cluster").get("cluster_enabled"):
                raise UsageError(NO_CLUSTER)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.stop()


def _sentence(error: Exception, where: str) -> BideError:
    if "WRONGTYPE" in str(error):
        return ServerRefused(f"Another program uses a key of RQ's at {where} ({error}); delete it.")
    if isinstance(error, NoPermissionError):  # `bide acl` does not cover RQ's keys
        return AccessDenied(
            f"The server at {where} refuses access ({error}); check the user and its permissions."
        )
    return map_error(error, where)
