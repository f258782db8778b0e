"""The logic that blocking and awaited queues share, without I/O."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from itertools import repeat
from operator import is_not, itemgetter
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, ParamSpec, TypeVar, Unpack, cast
from weakref import WeakSet

from bide.client import config
from bide.client.execute import check_retry_for
from bide.client.url import RedisClient, resolve_url
from bide.errors import (
    BideError,
    DuplicateJob,
    DurabilityTimeout,
    ServerUnavailable,
    UsageError,
)
from bide.model.dedup import Batch, write_dedup
from bide.model.durations import Duration, at_to_us, delay_to_us, is_whole, to_us
from bide.model.ids import check_name
from bide.model.job import Event, check_kinds
from bide.model.limits import (
    DECLARED,
    KEEP,
    TOGETHER,
    Declared,
    stored_active,
    stored_rate,
)
from bide.model.options import (
    CONSTRAINTS,
    MEANT,
    OF_QUEUES,
    OF_TASKS,
    GroupSettings,
    Options,
    QueueSettings,
    TaskOptions,
    check_concurrency,
    check_names,
    has_dedup,
    not_here,
)
from bide.model.payload.body import Body, is_item
from bide.model.payload.serializers import CODECS, Codec
from bide.model.payload.signing import VARIABLE, Kind, Seal
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared, Receipt, wanted
from bide.protocol.commands.jobs import MOST_CHANGED, QueueStats
from bide.protocol.keys import Keys
from bide.queue.binding import Permit, ServerBinding, TaskQueue, moved
from bide.queue.dependencies import constraints_of, references
from bide.queue.event_reader import EventReader
from bide.tasks import middleware
from bide.tasks.middleware import Middleware
from bide.tasks.registry import NamedTask, check_function, task_name
from bide.tasks.task import (
    APART,
    Function,
    body_fields,
    check_options,
    check_timeout,
    defaults_of,
    is_unicode,
    known,
    register,
    with_owner,
)

if TYPE_CHECKING:
    from bide.model.payload.signature import Signature
    from bide.queue._async.queue import AsyncQueue
    from bide.queue._sync.queue import Queue

_SENT_APART: Final = CONSTRAINTS | APART

_OPTIONS: Final = frozenset(Options.__annotations__)
_SETTINGS: Final = frozenset(QueueSettings.__annotations__)
_values_of: Final = itemgetter(*_OPTIONS)


def body_options(options: Options) -> dict[str, Any]:
    """Convert the given options that are stored in the body to the body's fields."""
    if _SENT_APART.issuperset(options):
        return {}
    check_names(options)
    return body_fields(options)


C = TypeVar("C")


class QueueCore(Generic[C]):
    """The part of a queue that needs no server."""

    def __init__(
        self,
        name: str,
        url: str | RedisClient | None,
        prefix: str | None,
        serializer: Codec,
        retry_for: float,
    ) -> None:
        if serializer not in CODECS:
            raise UsageError(
                f"serializer must be 'json', 'msgpack' or 'pickle', not {serializer!r}."
            )
        self.name: Final = check_name(name, "queue name")
        self.serializer: Final = serializer
        """How arguments and results are encoded."""
        self._codec: Final[dict[str, Any]] = {} if serializer == "json" else {"codec": serializer}
        """The codec field of a body, if it is not the default."""
        self._url = None if url is None else resolve_url(url)
        self._prefix = None if prefix is None else check_name(prefix, "prefix")
        self._retry_for = check_retry_for(retry_for)
        self._cached_binding: ServerBinding[C] | None = None
        self._permit = Permit(self._url)
        self._defaults: Mapping[str, Any] = {}
        """Options of the queue's jobs that neither the task nor the call has."""
        self._declared: QueueSettings = {}
        """Settings that a worker applies when it starts."""
        self.lifo = False
        """Whether workers that import this object start the newest due job first."""
        self._set_up()

    def _set_up(self) -> None:
        """Create what only one side of queues has."""

    def _declare(self, defaults: TaskOptions | None, lifo: bool, settings: QueueSettings) -> None:
        """Check and keep what the queue declares: options of its jobs, its order, its settings."""
        if not isinstance(lifo, bool):
            raise UsageError(f"lifo must be True or False, not {lifo!r}.")
        if lifo:
            self.lifo = True
            _declaring.add(self)
        given: object = defaults or {}
        if not isinstance(given, Mapping):
            raise UsageError(f"defaults must be a dict such as {{'delay': '5m'}}, not {given!r}.")
        self._defaults = {k: v for k, v in given.items() if v is not None}
        try:
            check_options(cast(TaskOptions, self._defaults))
        except UsageError as error:
            raise UsageError(f"defaults of queue {self.name}: {error}") from None
        self._declared = settings
        if settings:
            unknown = next((name for name in settings if name not in _SETTINGS), None)
            if unknown is not None:
                if unknown in ("connection", "client"):
                    raise UsageError(
                        f"{type(self).__name__} has no argument {unknown!r}; give a client, or the "
                        "URL of the server, as url=."
                    )
                known = [*inspect.signature(type(self)).parameters][:-1] + sorted(_SETTINGS)
                raise UsageError(
                    f"{type(self).__name__} has no argument {unknown!r}; there are "
                    f"{', '.join(known)}."
                )
            declared_of(settings)
            _declaring.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the call of bide, for calls that other libraries have."""
            raise not_here(self, name, OF_QUEUES)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._binding.url

    @property
    def prefix(self) -> str:
        """The prefix of all keys."""
        return self._binding.prefix

    @property
    def keys(self) -> Keys:
        """The names of the queue's keys."""
        return self._binding.keys

    @property
    def _pickle_seal(self) -> Seal | None:
        """The seal that checks pickles before they are read; None if this queue reads none."""
        return self._binding.seal if self.serializer == "pickle" else None

    @property
    def _task_queue(self) -> TaskQueue:
        """The queue's name, and the URL and prefix that it was given."""
        return TaskQueue(self.name, self._url, self._prefix)

    @property
    def _binding(self) -> ServerBinding[C]:
        """The current server, prefix and clock of the queue."""
        binding = self._cached_binding
        if binding is not None and binding.generation == config.generation:
            return binding
        with _moving:  # concurrent first calls of several threads share one client
            binding = self._cached_binding
            if binding is None or binding.generation != config.generation:
                if binding is not None:
                    self._leave(binding.made)
                binding = self._cached_binding = ServerBinding(
                    self.name, self._url, self._prefix, self._make_client, self._permit
                )
                if config.overridden() != config.Override():
                    moved.add(self)
            return binding

    @property
    def _client(self) -> C:
        return self._binding.client

    def _make_client(self, url: str, clock: str) -> C:
        raise NotImplementedError

    def _leave(self, client: C) -> None:
        """Close a client that is not used any more."""
        raise NotImplementedError

    def _leave_overridden(self) -> None:
        """Close the client of an override that has ended."""
        binding, self._cached_binding = self._cached_binding, None
        if binding is not None:
            self._leave(binding.made)

    def prepare(
        self,
        task: Function | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Prepared:
        """Prepare a job for `enqueue_many`; arguments and errors as for `enqueue_call`."""
        name, signature, defaults, registered = known(task)
        if self.serializer == "pickle" and self._binding.seal.keyring is None:
            raise UsageError(
                'serializer="pickle" needs a signing key, because otherwise anyone who can write '
                f"to the server can run code; set ${VARIABLE} here and for the workers, or use "
                '"json".'
            )
        if type(args) is not tuple and not isinstance(args, list | tuple):
            raise UsageError(f"args must be a list or tuple, not {args!r}; (x,) holds one x.")
        kwargs = kwargs or {}
        if kwargs and not all(isinstance(key, str) for key in kwargs):
            raise UsageError("The names in kwargs must be strings.")
        if isinstance(task, MethodType):
            args = with_owner(task, args)
        if signature is not None and not signature.fits(args, kwargs):
            # A task may be given to an outbox too, where `enqueue` would be the wrong call.
            where = "task.options({}=...)" if registered else "queue.enqueue(function, ..., {}=...)"
            signature.check(args, kwargs, name, MEANT, where)
        names = signature.positional if signature else ()
        if self._defaults:
            options = self._over_defaults(options, defaults)
        delay, at, priority = options.get("delay"), options.get("at"), options.get("priority")
        job_id, durability = options.get("job_id"), options.get("durability")
        if not defaults and APART.issuperset(options):  # the usual case: no options in the body
            body = (
                Body(name, args, kwargs, **self._codec) if self._codec else Body(name, args, kwargs)
            )
            if middleware.in_use or (signature is not None and signature.has_records):
                body = self._passed(body, signature)
            return enqueue_commands.prepare(body, delay, at, priority, job_id, names, durability)
        depends_on = options.get("depends_on")
        parents = () if depends_on is None else references(self, depends_on)
        held = body_options(options)
        if parents:
            held["parents"] = parents
        unique = options.get("unique")
        unique = defaults.get("unique") if unique is None else unique
        body = Body(name, args, kwargs, **self._codec, **held)
        body = self._passed(body, signature, isinstance(unique, Batch))
        if durability is None:
            durability = defaults.get("durability")
        if delay is None and at is None:
            delay = defaults.get("delay")
        if priority is None:
            priority = defaults.get("priority")
        constraints = ""
        if not (CONSTRAINTS.isdisjoint(options) and CONSTRAINTS.isdisjoint(defaults)):
            if job_id is not None and job_id in parents:
                raise UsageError(
                    f"Job {job_id!r} would wait for itself, and never run; remove its own id from "
                    "depends_on=."
                )
            dedup = write_dedup(unique, name, body.args, body.kwargs, names, self.serializer)
            constraints = constraints_of(options, defaults, parents, dedup)
        return enqueue_commands.prepare(
            body, delay, at, priority, job_id, names, durability, constraints, parents
        )

    def _over_defaults(self, options: Options, of_task: TaskOptions) -> Options:
        """Merge the options of a call over the queue's defaults that its task does not have."""
        given = {name: value for name, value in options.items() if value is not None}
        has_time = "at" in given or "delay" in given
        merged = {
            name: value
            for name, value in self._defaults.items()
            if of_task.get(name) is None and not (name == "delay" and has_time)
        }
        return cast(Options, merged | given)

    def _passed(self, body: Body, signature: Signature | None, is_batched: bool = False) -> Body:
        """Return the body as middleware changes it, if its records will arrive as they are."""
        for one in middleware.in_use:
            body = _checked(one, one.enqueuing(self.name, body), body)
        if signature is not None:
            args = [[item] for item in body.args] if is_batched else body.args
            signature.check_records(args, body.kwargs, body.task, body.codec)
        return body

    def _make_reader(
        self,
        name: str | None,
        after: str | None,
        kinds: str | Iterable[str] | None,
        job_id: str | Iterable[str] | None,
        timeout: Duration | None,
    ) -> EventReader:
        """Create a reader of events; arguments and errors as for `events`."""
        if self._binding.fake_server is not None:
            raise UsageError(
                "Eager mode has no server, and only that has events; test it with "
                "`with bide.testing.start():`."
            )
        self._binding.check()
        return EventReader(self.keys, name, after, kinds, job_id, timeout)

    def _pipeline(self, jobs: Sequence[Prepared], binding: ServerBinding[C]) -> Iterator[Exchange]:
        """Yield the exchanges that add jobs; the first also registers the queue.

        Before each write, the script checks whether the server can give the durability. But after a
        refusal, WAIT would still wait for a replica that does not exist. So a server that has not
        confirmed this durability recently is asked first.
        """
        kinds = wanted(jobs, binding.clock)
        if not binding.confirms.issuperset(kinds):
            yield Exchange(binding, [enqueue_commands.enqueue(binding.keys, [], kinds)])
        for calls in enqueue_commands.enqueue_many(binding.keys, jobs, kinds):
            commands: list[Command[Any]] = [*calls]
            if binding.makes_known:
                known = queue_commands.register_queues(binding.everywhere, [self.name])
                commands.append(known._replace(best_effort=True))
            yield Exchange(binding, commands)


def _kind(job: Prepared) -> Kind:
    """The kind of a body's signature: without an id if another job may take the body over."""
    return "item" if is_item(job.body) else "dedup" if has_dedup(job.constraints) else "job"


class Exchange(NamedTuple):
    """One round trip that adds jobs."""

    binding: ServerBinding[Any]
    commands: list[Command[Any]]

    def read(self, replies: Sequence[Any], receipts: list[Receipt | BideError]) -> bool:
        """Append a receipt or an error for each job; return whether no job failed.

        If registering the queue fails, the enqueue succeeds; a later enqueue tries again.
        """
        succeeded = True
        for command, reply in zip(self.commands, replies, strict=True):
            if command.script == "queue_register":
                self.binding.made_known(not isinstance(reply, BideError))
            elif isinstance(reply, BideError):
                self.binding.confirms.clear()
                receipts += [reply] * max(1, enqueue_commands.jobs_in(command))
                succeeded = False
            else:
                self.binding.confirms.update(command.confirm)
                receipts += reply
        return succeeded


def signed(jobs: Sequence[Prepared], seal: Seal) -> Sequence[Prepared]:
    """Sign the jobs, if there is a key."""
    if seal.keyring is None:
        return jobs
    return [
        job._replace(
            body=seal.sign(_kind(job), "" if has_dedup(job.constraints) else job.id, job.body)
        )
        for job in jobs
    ]


def _checked(one: Middleware, body: Any, before: Body) -> Body:
    """Check the body that a middleware returned."""
    who = f"{type(one).__qualname__}.enqueuing"
    if not isinstance(body, Body):
        raise UsageError(f"{who} must return the body, or a changed copy, not {body!r}.")
    if body.task != before.task:
        raise UsageError(
            f"{who} changed the task of a job from {before.task} to {body.task}; only arguments "
            f"and options can be changed, so enqueue the other task instead."
        )
    if body.timeout is not None:
        check_timeout(body.timeout)
    if body.keep is not None:
        to_us(body.keep, "keep")
    return body


_declaring: Final[WeakSet[QueueCore[Any]]] = WeakSet()
"""The queues that declare settings."""


def declaring_queues(name: str) -> list[QueueCore[Any]]:
    """Return the objects of this process that declare settings for the queue of this name."""
    return [queue for queue in list(_declaring) if queue.name == name]


def declared_of(settings: QueueSettings) -> Declared:
    """Check declared settings, and convert them to their stored forms."""
    check_names(settings, QueueSettings)
    kept = KEEP
    if "retention" in settings:
        bounds, results = job_commands.stored_retention(settings["retention"])
        kept = f"{bounds} {results}"
    return Declared(*_limits_of(settings), kept)


_moving: Final = threading.RLock()


def retryable(failed: BideError, jobs: Sequence[Prepared]) -> BideError:
    """Return the error of an enqueue, with the ids that make a retry safe."""
    error = copy(failed)
    if isinstance(error, ServerUnavailable | DurabilityTimeout):
        error.job_ids = tuple(job.id for job in jobs)
    if isinstance(error, DurabilityTimeout):
        few = jobs[0].id if len(jobs) == 1 else f"{jobs[0].id}, ... (see job_ids)"
        error.args = (f"{error} Repeating with its id is safe: {few}.",)
    return error


def checked_callback(
    kinds: str | Iterable[str], callback: Callable[[Event], object]
) -> frozenset[str]:
    """Check the kinds of events and the callback of a listener; return the kinds."""
    checked = check_kinds(kinds)
    if checked is None:
        raise UsageError("on(kinds, callback) needs at least one kind, such as 'completed'.")
    if not callable(callback):
        raise UsageError(f"The callback must be a function that takes an event, not {callback!r}.")
    return checked


def chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split ids into chunks that fit into one call."""
    ids = checked_ids(ids)
    for i in range(0, len(ids), MOST_CHANGED):
        yield ids[i : i + MOST_CHANGED]


def checked_ids(ids: Any) -> list[str]:
    """Check ids before they are sent."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        shown = f"the text {ids!r}" if isinstance(ids, str) else repr(ids)
        raise UsageError(f"Give a list of ids, not {shown}.")
    listed: list[str] = list(ids)
    try:
        "".join(listed).encode("utf-8", "surrogateescape")
    except (TypeError, UnicodeEncodeError):
        odd = next(id for id in listed if not isinstance(id, str) or not is_unicode(id))
        raise UsageError(f"An id is text, such as job.id, not {odd!r}.") from None
    return listed


def checked_limit(limit: Any) -> int | None:
    """A maximum number of jobs; None for no limit."""
    if limit is not None and not is_whole(limit, 1, 2**53):
        raise UsageError(f"limit={limit!r} must be a whole number, 1 or more; None for no limit.")
    return limit  # type: ignore[no-any-return]


def options_only(task: Function | str, values: dict[str, Any]) -> Options:
    """Return the options of `enqueue` that were given, out of the values of all parameters.

    If the function has a parameter of the same name, the call is ambiguous, and refused.
    """
    if not any(map(is_not, _values_of(values), repeat(None))):  # the usual case
        return {}
    given: dict[str, Any] = {}
    for name, value in values.items():
        if value is not None and name in _OPTIONS:
            given[name] = value
    signature = known(task).signature
    if signature is not None and not signature.names.isdisjoint(given):
        name = next(name for name in given if name in signature.names)
        raise UsageError(
            f"{name}= is an option of a job and an argument of {task_name(task)} too; give the "
            f"option with enqueue_call(f, args, kwargs, {name}=...), and the argument in its "
            f"kwargs or with task.enqueue({name}=...)."
        )
    return cast(Options, given)


def as_declared(settings: QueueSettings, counts: QueueStats, queue: str) -> QueueSettings:
    """Replace `"declared"` by what a worker's program declares.

    Raises:
        UsageError: it declares no such setting.
    """
    found: dict[str, Any] = {**settings}
    for name, *burst in TOGETHER:
        if found.get(name) != DECLARED:
            continue
        if any(one in found for one in burst):
            raise UsageError(f"The declared {name} has its own burst; leave out {burst[0]}=.")
        if name not in counts.declared:
            raise UsageError(
                f"No worker of queue {queue} has declared {name}=; write it into Queue({queue!r}, "
                f"{name}=...) and start a worker, or configure a value."
            )
        found |= {one: counts.declared[one] for one in (name, *burst)}
    return cast("QueueSettings", found)


def settings_calls(keys: Keys, settings: QueueSettings) -> list[Command[Any]]:
    """Return the calls that change these settings, and no others."""
    check_names(settings, QueueSettings)
    calls: list[Command[Any]] = []
    if "retention" in settings:
        calls.append(job_commands.configure(keys, settings["retention"]))
    limits = _limits_of(settings)
    if any(limit != KEEP for limit in limits):
        calls.append(job_commands.limit(keys, *limits))
    if not calls:
        raise UsageError(
            "Give a setting to configure: retention=, rate=, burst=, concurrency=, group_rate= or "
            "group_burst=."
        )
    return calls


def _limits_of(settings: QueueSettings) -> tuple[str, str, str]:
    """Rate, concurrency, and rate of each group, in their stored forms."""
    is_kept = "concurrency" not in settings
    concurrency = KEEP if is_kept else stored_active(settings["concurrency"])
    shared = _rate_of(settings, KEEP, "group_rate", "group_burst")
    return _rate_of(settings, KEEP), concurrency, shared


def _rate_of(
    settings: QueueSettings | GroupSettings,
    unchanged: str,
    rate: str = "rate",
    burst: str = "burst",
) -> str:
    if rate in settings:
        return stored_rate(settings.get(rate), settings.get(burst), rate)
    if burst in settings:
        raise UsageError(
            f"{burst}= says how many of a rate come at once; give it along with {rate}=."
        )
    return unchanged


def settings_call(keys: Keys, name: str, settings: GroupSettings) -> Command[None]:
    """Return the call that changes these settings of a group, and no others."""
    check_names(settings, GroupSettings)
    rate = _rate_of(settings, "-")
    if not settings:
        raise UsageError("Give a setting to configure: concurrency=, rate= or burst=.")
    count = None
    if "concurrency" in settings:
        concurrency = settings["concurrency"]
        count = queue_commands.UNSET if concurrency is None else check_concurrency(concurrency)
    return queue_commands.configure(keys, name, concurrency=count, rate=rate)


def not_unique(holder: str, key: str) -> DuplicateJob:
    """Return the error for a rejected job; `key` describes its key, for people."""
    error = DuplicateJob(
        f"The job {holder} holds the key {key}; wait for it or cancel it, or enqueue with "
        'on_conflict="keep" or "replace".'
    )
    error.job_id = holder
    return error


# -- tasks

P = ParamSpec("P")
R = TypeVar("R")
"""The type of the job's result."""
Q = TypeVar("Q", bound="Queue | AsyncQueue")


class TaskCall(Generic[P, R, Q]):
    """A task with options: ready to be given its arguments."""

    def __init__(
        self, function: Callable[P, Any], queue: Q, options: Options, given: str | None
    ) -> None:
        given_queue: object = queue
        if not isinstance(given_queue, QueueCore):
            raise UsageError(
                f"queue must be a queue, not {queue!r}; write queue=Queue(...), or AsyncQueue(...) "
                "for a task of an AsyncQueue."
            )
        self.function: Final = function
        """The plain function."""
        self.queue: Final = queue
        """The queue of its jobs."""
        self._options: Final = options
        self._given: Final = given
        """The name that the task was given, if there is one."""

    def __repr__(self) -> str:
        name = self._given or self.function.__qualname__
        return f"<{type(self).__name__} {name} on {self.queue.name}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the call of bide, for calls that other libraries have."""
            raise not_here(self, name, OF_TASKS)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Refuse a call of a task with options, whose `enqueue` was forgotten."""
            raise UsageError(
                f"{self!r} with options adds a job by task.options(...).enqueue(...); without "
                "options, task(...) calls the function here."
            )

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Prepare a job for `enqueue_many`."""
        return self.queue.prepare(self._given or self.function, args, kwargs, **self._options)

    def _over(self, options: Options) -> Options:
        """Merge options over the present ones; a new `at` or `delay` replaces both."""
        check_names(options)
        merged = self._options.copy()
        if options.get("at") is not None or options.get("delay") is not None:
            merged["at"] = merged["delay"] = None
        merged.update(options)
        return merged


def enrolled(
    function: Callable[P, Any], options: TaskOptions, name: str | None
) -> tuple[Callable[P, Any], str, str | None]:
    """Register a function, or the function inside a task or a static method.

    Return the function, its name, and the same name if it was given.
    """
    task: Any = function
    if isinstance(task, TaskCall) and isinstance(task, NamedTask):
        options = options or defaults_of(task.name)
        name = name or task._given
        function = task.function
    elif isinstance(function, staticmethod):
        function = function.__func__
    check_function(function)
    return function, register(function, options, name), name


def as_due(when: float | str | timedelta | datetime) -> Options:
    """Convert a delay or a moment to the option `delay` or `at`."""
    if isinstance(when, datetime):
        at_to_us(when)
        return Options(at=when)
    if not isinstance(when, int | float | str | timedelta):
        raise UsageError(
            f"later() needs a delay such as '30m' or an aware datetime, not {type(when).__name__}."
        )
    delay_to_us(when)
    return Options(delay=when)
