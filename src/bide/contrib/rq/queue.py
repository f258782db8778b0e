"""`DelayQueue`, an `rq.Queue` whose enqueue takes `delay=`; and the scripts of this package.

Scripts run over RQ's connection.
"""

from __future__ import annotations

import copy
import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, Final, Literal, cast

import redis
import rq
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import NoScriptError, ResponseError, WatchError
from redis.retry import Retry
from redis.sentinel import Sentinel
from rq import defaults
from rq.connections import parse_connection
from rq.exceptions import DuplicateJobError
from rq.job import Job, JobStatus
from rq.registry import CanceledJobRegistry, ScheduledJobRegistry
from rq.utils import as_text

from bide.client.url import CONNECT_TIMEOUT, REPLY_TIMEOUT, options, read_servers
from bide.contrib.rq_sets import DELAYED, GATE, OTHER_SETS, PREFIX
from bide.errors import UsageError
from bide.logs import Log
from bide.model.durations import Duration, at_to_us, delay_to_us

log = Log("bide.rq")

NO_CLUSTER: Final = (
    "RQ's keys have no hash tag, so delayed jobs need one server or a Sentinel; "
    "this connection is to a cluster: give another."
)


@cache
def load(name: str) -> tuple[str, str]:
    """Return the text of a script, after the shared part, and its SHA-1."""
    folder = resources.files("bide.contrib.rq").joinpath("lua")
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("common", name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def run(client: Any, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
    """Run a script and return its reply; in a pipeline it is only queued, without a reply.

    Raises:
        UsageError: the server is part of a cluster.
        redis.RedisError: as the client library has it.
    """
    text, sha = load(name)
    if isinstance(client, Pipeline):
        # By its text, because a server without the script would refuse a part of the transaction.
        return client.eval(text, len(keys), *keys, *args)
    try:
        try:
            return client.evalsha(sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(text, len(keys), *keys, *args)
    except ResponseError as error:
        # For some of these replies, the client library has classes, and removes the first word.
        words = str(error) + type(error).__name__
        if any(word in words for word in ("CROSSSLOT", "CrossSlot", "MOVED", "Moved")):
            raise UsageError(NO_CLUSTER) from None
        raise


def check_connection(client: object) -> None:
    """Refuse a client of a cluster, and an object that does not connect to a server.

    Raises:
        UsageError: it is one of these.
    """
    if isinstance(client, redis.RedisCluster):
        raise UsageError(NO_CLUSTER)
    if not hasattr(client, "connection_pool"):
        raise UsageError(
            f"connection must be a client, such as redis.Redis.from_url(...), not {client!r}."
        )


def checked_function(function: Any) -> Any:
    """Refuse a task of bide, whose function RQ could not pickle.

    Raises:
        UsageError: it is one.
    """
    if hasattr(type(function), "prepare"):
        raise UsageError(
            f"{function!r} is a task of bide, and RQ runs plain functions; remove its decorator, "
            "or call its own enqueue()."
        )
    return function


WAKEUPS: Final = f"{PREFIX}:delay_hint:"
"""The channel of each queue: the due time of a job that has just become its earliest."""


@dataclass(frozen=True)
class RqKeys:
    """The keys of one queue of RQ.

    Attributes:
        name: The queue's name.
        delayed: The sorted set of its delayed jobs.
        other_set: The key of a queue that names its own; otherwise empty.
        wakeups: The channel of its wake-up messages.
        list: RQ's list, which workers read.
        dependency_hook: RQ's list of the gate.
        scheduled: RQ's registry of jobs that wait for RQ's own scheduler.
        cancelled: RQ's registry of cancelled jobs.
        queues: RQ's set of all queues.
        jobs: The start of the key of a job.
    """

    name: str
    delayed: str
    other_set: str
    wakeups: str
    list: str
    dependency_hook: str
    scheduled: str
    cancelled: str
    queues: str
    jobs: str

    @classmethod
    def of(cls, queue: rq.Queue) -> RqKeys:
        """Return the keys of a queue; a subclass may change RQ's prefixes.

        Raises:
            UsageError: its name is that of the gate, its `delay_key` is not the name of a key, or
                RQ 2 runs with the prefix of RQ 3.
        """
        if getattr(defaults, "RQ_KEY_PREFIX", "rq") != PREFIX:
            raise UsageError(
                f"RQ {rq.__version__} does not read $RQ_KEY_PREFIX; unset it, or install RQ 3."
            )
        if queue.name == GATE:
            raise UsageError(
                f"{GATE!r} is reserved for delayed jobs with dependencies; give the queue "
                f"another name."
            )
        usual = f"{DELAYED}{queue.name}"
        delayed = getattr(queue, "delay_key", usual)
        if not isinstance(delayed, str) or not delayed:
            raise UsageError(f"delay_key must be the name of a key, as text, not {delayed!r}.")
        return cls(
            name=queue.name,
            delayed=delayed,
            other_set="" if delayed == usual else delayed,
            wakeups=f"{WAKEUPS}{queue.name}",
            list=queue.key,
            dependency_hook=f"{queue.redis_queue_namespace_prefix}{GATE}",
            scheduled=ScheduledJobRegistry.key_template.format(queue.name),
            cancelled=CanceledJobRegistry.key_template.format(queue.name),
            queues=queue.redis_queues_keys,
            jobs=queue.job_class.key_for(""),
        )


GONE: Final = (redis.ConnectionError, redis.TimeoutError, OSError)
"""The errors of a lost server."""

_NOT_TCP: Final = "path"


def client_like(connection: redis.Redis, reply_timeout: float) -> redis.Redis:
    """Create a client of the same server, with the same credentials and its own pool.

    The library's own retries are off: the caller must learn at once that a server is gone.

    Args:
        connection: the client to copy. It must live as long as the new one, because connections
            through a Sentinel ask it for the master.
        reply_timeout: seconds without a reply after which a connection counts as dead.
    """
    client, kind, options = parse_connection(connection)
    options |= {
        "socket_timeout": reply_timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "decode_responses": False,
        "retry_on_error": [],
    }
    if _NOT_TCP not in options:
        options["socket_keepalive"] = True
        if options.get("socket_connect_timeout") is None:
            options["socket_connect_timeout"] = CONNECT_TIMEOUT
    # From a pool, because `close` of a client that is given one leaves its connections open.
    return client.from_pool(redis.ConnectionPool(connection_class=kind, **options))


def client_of(url: str) -> redis.Redis:
    """Create a client from a URL that `bide.client.url.resolve_url` has returned.

    Raises:
        UsageError: the URL means a Cluster.
    """
    servers = read_servers(url)
    if servers.kind == "cluster":
        raise UsageError(NO_CLUSTER)
    if servers.kind == "one":
        return redis.Redis.from_url(**options(url, Retry, REPLY_TIMEOUT))
    sentinels: Any = Sentinel([])  # type: ignore[no-untyped-call]
    sentinels.sentinels = [
        redis.Redis.from_url(**options(one, Retry, REPLY_TIMEOUT)) for one in servers.named
    ]
    node = servers.url_of("master", 0)  # the Sentinels return its address
    pool = redis.ConnectionPool.from_url(**options(node, Retry, REPLY_TIMEOUT))
    settings = {k: v for k, v in pool.connection_kwargs.items() if k not in ("host", "port")}
    is_tls = issubclass(pool.connection_class, redis.SSLConnection)
    client: redis.Redis = sentinels.master_for(servers.master, ssl=is_tls, **settings)
    return client


def describe(connection: redis.Redis) -> str:
    """Return the server of a connection as text, without its password."""
    options: dict[str, Any] = connection.connection_pool.connection_kwargs
    if "path" in options:
        return f"unix://{options['path']}"
    if "host" in options:
        return f"{options['host']}:{options.get('port', 6379)}"
    return "the Sentinel's master"


From = Literal["in", "at"]
"""The start of a time in microseconds: the server's present time, or 1970."""

_YEAR_2200: Final = 7_258_118_400


class DelayQueue(rq.Queue):
    """An `rq.Queue` whose jobs may be delayed; a `Timer` moves them when they are due.

    `enqueue` and `enqueue_call` take `delay=` beside every option of RQ. `ttl` then counts from the
    move, `at_front` applies at the move, and with `depends_on` the delay counts from the end of the
    dependencies. Without a delay, these methods are RQ's own, like all other methods. `enqueue_at`
    and `enqueue_in` are for RQ's own scheduler.
    """

    delay_key: str
    """The key of the sorted set of delayed jobs: job ids by due time, in seconds since the epoch.
    By default `rq:delay_queue:<name>`; a class or an instance may set another key."""

    _delay_us = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `rq.Queue`.

        Raises:
            UsageError: the connection is to a cluster.
        """
        super().__init__(*args, **kwargs)
        check_connection(self.connection)
        if "delay_key" not in vars(self) and not hasattr(type(self), "delay_key"):
            self.delay_key = f"{DELAYED}{self.name}"

    @property
    def _keys(self) -> RqKeys:
        return RqKeys.of(self)

    def enqueue(self, f: Any, *args: Any, delay: Duration | None = None, **kwargs: Any) -> Job:
        """Enqueue a call, as RQ does; with `delay`, for later.

        Args:
            f: a function, or its name.
            args: its arguments.
            delay: seconds, a `timedelta`, or text such as `"1h30m"`; None, 0 or a negative delay
                means now. A function that has an argument of this name gets it as
                `kwargs={"delay": …}`.
            kwargs: RQ's options and the function's keyword arguments.

        Raises:
            UsageError: the delay is invalid.
        """
        return rq.Queue.enqueue(self._delaying(delay), checked_function(f), *args, **kwargs)

    def enqueue_call(
        self, func: Any, *args: Any, delay: Duration | None = None, **kwargs: Any
    ) -> Job:
        """Enqueue a call with its arguments in `args` and `kwargs`; with `delay`, for later.

        Raises:
            UsageError: the delay is invalid.
        """
        func = checked_function(func)
        return rq.Queue.enqueue_call(self._delaying(delay), func, *args, **kwargs)

    def enqueue_job(
        self,
        job: Job,
        pipeline: Pipeline | None = None,
        at_front: bool = False,
        unique: bool = False,
    ) -> Job:
        """Enqueue a job that `create_job` has created, as RQ does; every enqueue calls this."""
        if not self._delay_us:
            return super().enqueue_job(job, pipeline=pipeline, at_front=at_front, unique=unique)
        if unique and not job._id:
            raise ValueError("unique=True requires an explicit job_id")
        if unique and job._dependency_ids:
            raise ValueError("unique=True is not supported with job dependencies")
        if unique and getattr(job, "rate_limit_key", None):
            raise ValueError("unique=True is not supported with rate-limited jobs")
        check_limit = getattr(super(), "_check_rate_limit_namespace", None)  # of RQ 3
        if check_limit is not None:
            check_limit(job)
        if job._dependency_ids:
            return self._after_others(job, pipeline, at_front)
        self.setup_dependencies(job, pipeline=pipeline)  # has a pipeline begin its transaction
        return self._delay(job, "in", self._delay_us, pipeline, at_front, unique)

    def enqueue_delay_job(self, job: Job, ts: float, pipeline: Pipeline | None = None) -> Job:
        """Delay a job until a moment, without regard to the jobs that it depends on.

        Args:
            job: a job of `create_job`, or a job that has run.
            ts: seconds since the epoch, with fractions, on the server's clock; a moment in the past
                is due at once.
            pipeline: a pipeline to which the commands are added, instead of being sent.

        Raises:
            UsageError: it is not a number of seconds between the years 1970 and 2200.
        """
        ts_us = _ts_to_us(ts)
        if ts < _YEAR_1973:
            log.warning(
                "enqueue_delay_job got ts=%r, a moment before 1974, so the job is due at once; for "
                "a delay, use enqueue(..., delay=%r)",
                *(ts, ts),
            )
        return self._delay(job, "at", ts_us, pipeline, False, False)

    def delayed_jobs(self, offset: int = 0, length: int = -1) -> list[Job]:
        """Return the delayed jobs, earliest first.

        Args:
            offset: number of jobs to skip.
            length: number of jobs to read; -1 for all.
        """
        end = offset + length - 1 if length >= 0 else -1
        if length == 0:
            return []
        keys = self._keys
        found = cast("list[bytes]", self.connection.zrange(keys.delayed, offset, end))
        ids = [as_text(id) for id in found]
        jobs = self.job_class.fetch_many(ids, self.connection, serializer=self.serializer)
        with self.connection.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hmget(self.job_class.key_for(id), "delayed_on", "delayed_in")
            places = pipe.execute(raise_on_error=False)
        ours = [keys.name.encode(), keys.other_set.encode() or None]
        return [
            job
            for job, place in zip(jobs, places, strict=True)
            if job is not None
            and ((place == ours and _waits(job)) or _is_delay_rqs(job, keys.name))
        ]

    def delayed_until(self, job: Job | str) -> datetime | None:
        """Return when a delayed job is due, in UTC; None if it is not delayed."""
        score = self.connection.zscore(self._keys.delayed, _id(job))
        return None if score is None else datetime.fromtimestamp(score, UTC)

    def cancel_delayed(self, job: Job | str) -> bool:
        """Cancel a job, only if it is still delayed; its status is then RQ's `canceled`.

        RQ's own `job.cancel()` does the same, and also cancels a job that was moved already.

        Returns:
            Whether it was delayed.
        """
        keys, id = self._keys, _id(job)
        done = run(
            self.connection,
            "cancel",
            [keys.jobs + id, keys.delayed, keys.cancelled],
            [id, self.name, GATE, DELAYED],
        )
        if done and isinstance(job, Job):
            job._status = JobStatus.CANCELED
        return bool(done)

    def reschedule(
        self, job: Job | str, delay: Duration | None = None, *, at: datetime | None = None
    ) -> bool:
        """Set when a delayed job is due.

        Args:
            job: the job, or its id.
            delay: from now: seconds, a `timedelta`, or text such as `"1h30m"`; a negative delay
                means now.
            at: a moment, as a `datetime` with a time zone; a moment in the past means now.

        Returns:
            Whether the job was still delayed; if not, nothing has changed.

        Raises:
            UsageError: both or neither are given, or the delay or the moment is invalid.
        """
        if (delay is None) == (at is None):
            raise UsageError("Give either a delay or at=, and not both.")
        count_from: From = "in" if at is None else "at"
        us = delay_to_us(delay) if delay is not None else at_to_us(cast("datetime", at))
        keys, id = self._keys, _id(job)
        return bool(
            run(
                self.connection,
                "reschedule",
                [keys.jobs + id, keys.delayed],
                [id, self.name, count_from, us, keys.wakeups, GATE, DELAYED],
            )
        )

    def fetch_job(self, job_id: str) -> Job | None:
        """Return the job with this id, if it belongs to this queue; also a job that is deferred.

        While it waits, its `origin` is that of the gate, as on the server, so that saving it
        changes nothing.
        """
        job = super().fetch_job(job_id)
        if job is None:
            key = self.job_class.key_for(job_id)
            on = self.connection.hmget(key, ["delay_queue", "delayed_on"])
            if self.name.encode() in on:
                job = self.job_class.fetch(job_id, self.connection, serializer=self.serializer)
        return job

    def _delaying(self, delay: Duration | None) -> DelayQueue:
        """Return a copy of this queue for one delayed enqueue: RQ reads all other options."""
        us = delay_to_us(delay) if delay is not None else 0
        if not us:
            return self
        self.get_redis_server_version()  # once, not in each copy
        one = copy.copy(self)
        one._delay_us = us
        return one

    def _delay(
        self,
        job: Job,
        count_from: From,
        us: int,
        pipeline: Pipeline | None,
        at_front: bool,
        unique: bool,
        call: str | None = None,
    ) -> Job:
        call = call or secrets.token_hex(8)  # by which the script recognises a repeat
        self._prepare(job)
        job._status = JobStatus.SCHEDULED
        keys = self._keys
        delayed = self._fields(job, at_front) | {"delayed_on": self.name}
        if keys.other_set:
            delayed["delayed_in"] = keys.other_set
        fields = [part for pair in delayed.items() for part in pair]
        reply = run(
            self.connection if pipeline is None or unique else pipeline,
            "delay",
            [job.key, keys.delayed, keys.queues, OTHER_SETS],
            [
                *(job.id, count_from, us, "unique" if unique else ""),
                *(keys.list, keys.wakeups, call),
                *(keys.other_set, *fields),
            ],
        )
        if unique and as_text(reply) == "exists":
            raise DuplicateJobError(f"Job with ID '{job.id}' already exists")
        return job

    def _after_others(self, job: Job, pipeline: Pipeline | None, at_front: bool) -> Job:
        """Delay a job from the end of its dependencies, which may have finished already."""
        pipe = pipeline if pipeline is not None else self.connection.pipeline()
        call = secrets.token_hex(8)  # one for all tries: a try without a reply may have succeeded
        while True:
            try:
                self._defer_or_delay(job, pipe, at_front, call)
                if pipeline is None:
                    pipe.execute()
                return job
            except WatchError:
                if pipeline is not None:
                    raise
            finally:
                if pipeline is None:
                    pipe.reset()

    def _defer_or_delay(self, job: Job, pipe: Pipeline, at_front: bool, call: str) -> None:
        self._prepare(job)
        job._status = JobStatus.QUEUED
        job.origin = GATE  # also in the object, which its holder may save
        ttl, job.ttl = job.ttl, None  # RQ would count it from now
        limited: Any = job  # only RQ 3 has the attribute
        limit = getattr(job, "rate_limit_key", None)
        if limit:  # RQ would have it wait for a slot before its delay
            limited.rate_limit_key = None
        try:
            self.setup_dependencies(job, pipeline=pipe)
            deferred = self._fields(job, at_front)
        finally:
            job.ttl = ttl
        if job.get_status(refresh=False) != JobStatus.DEFERRED:
            if limit:
                limited.rate_limit_key = limit
            self._delay(job, "in", self._delay_us, pipe, at_front, False, call)
            return
        deferred |= {
            "delay_queue": self.name,
            "delay_us": self._delay_us,
            "delay_call": call,
        }
        if ttl is not None:
            deferred["delay_ttl"] = ttl
        if limit:
            deferred["delay_limit"] = limit
        other_set = self._keys.other_set
        if other_set:
            deferred["delay_key"] = other_set
            pipe.sadd(OTHER_SETS, other_set)
        pipe.sadd(self.redis_queues_keys, self.key)
        pipe.hdel(
            *(job.key, "ttl", "enqueued_at", "delay_ttl", "delay_key", "delay_limit"),
            *("delayed_on", "delayed_in", "rate_limit_key"),
        )
        pipe.hset(job.key, mapping=deferred)
        pipe.persist(job.key)

    def _prepare(self, job: Job) -> None:
        """Set what RQ sets at an enqueue, except what the move sets."""
        job.redis_server_version = self.get_redis_server_version()
        job.origin = self.name
        job.enqueued_at = None
        if job.timeout is None:
            job.timeout = self._default_timeout

    def _fields(self, job: Job, at_front: bool) -> dict[Any, Any]:
        saved = {name: value for name, value in job.to_dict().items() if value is not None}
        return saved | {"delay_front": int(bool(at_front or job.enqueue_at_front))}


def _waits(job: Job) -> bool:
    """Whether RQ's own fields, which may have been saved late, agree with `delayed_on`."""
    status = job.get_status(refresh=False)
    gated = ("deferred", "ready_to_enqueue", "queued")  # the second is RQ 3's
    return status == JobStatus.SCHEDULED or (job.origin == GATE and status.value in gated)


def _is_delay_rqs(job: Job, name: str) -> bool:
    """Whether delay-rq delayed it, as in `is_delay_rqs` of `common.lua`."""
    waits = job.get_status(refresh=False) == JobStatus.QUEUED and job.origin == name
    return waits and (job.enqueued_at is None or job.enqueued_at < job.created_at)


def _id(job: Job | str) -> str:
    return job.id if isinstance(job, Job) else job


_YEAR_1973: Final = 100_000_000
"""Seconds since 1970. A smaller number is probably a delay."""


def _ts_to_us(ts: float) -> int:
    number = isinstance(ts, int | float) and not isinstance(ts, bool)
    if not number or not math.isfinite(ts) or not 0 <= ts < _YEAR_2200:
        raise UsageError(
            f"ts must be seconds since the epoch, between the years 1970 and 2200, not {ts!r}."
        )
    return round(ts * 1_000_000)
