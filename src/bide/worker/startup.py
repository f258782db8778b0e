"""The startup of a worker: it registers its queues, sets schedules, and logs warnings."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, Final, cast

from bide.client import aio
from bide.client.errors import is_passing
from bide.client.url import hide_password, read_servers, same_servers
from bide.errors import (
    BideError,
    ClientTooOld,
    ServerFull,
    ServerReadOnly,
    ServerUnavailable,
    UsageError,
)
from bide.logs import Log
from bide.model.options import QueueSettings
from bide.model.payload.signing import Keyring
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.jobs import declare
from bide.protocol.commands.queues import StartReply, register_queues, worker_start
from bide.protocol.keys import Keys
from bide.queue import AsyncQueue, Queue
from bide.queue.binding import TaskQueue, known_task_queues
from bide.queue.core import TaskCall, declared_of, declaring_queues
from bide.tasks.registry import task_inside
from bide.tasks.task import defaults_of, policy_of, registering_modules
from bide.worker.heartbeat import set_declared
from bide.worker.loop import LOG_EVERY, pause_after

log = Log("bide.worker")

SCRIPTS: Final = ("add_notes", "settle", "claim", "extend", "worker_leave")
"""The scripts that a worker calls while it serves."""


def declared_settings(queues: Sequence[Keys], url: str) -> dict[Keys, QueueSettings]:
    """Return the settings that this process declares for these queues of a server.

    Raises:
        UsageError: two `Queue` objects declare different values for one setting.
    """
    found = {}
    for keys in queues:
        merged: dict[str, Any] = {}
        for queue in declaring_queues(keys.queue or ""):
            if not _is_here(queue._task_queue, url, keys.prefix):
                continue
            for name, value in queue._declared.items():
                if merged.setdefault(name, value) != value:
                    raise UsageError(
                        f"Queue {keys.queue} is declared with {name}={merged[name]!r} and with "
                        f"{name}={value!r}; declare it once, and import that object."
                    )
        if merged:
            found[keys] = cast(QueueSettings, merged)
    return found


def is_lifo(keys: Keys, url: str) -> bool:
    """Whether this process has a `Queue` object that declares the queue as last in, first out."""
    return any(
        queue.lifo and _is_here(queue._task_queue, url, keys.prefix)
        for queue in declaring_queues(keys.queue or "")
    )


async def apply_declared(client: aio.AsyncClient, declared: Mapping[Keys, QueueSettings]) -> None:
    """Apply the settings that this process declares, except those that people changed.

    Raises:
        BideError: the server could not be reached, or refused.
    """
    calls = [declare(keys, declared_of(its), starts=True) for keys, its in declared.items()]
    replies = await client.attempt_many(calls)
    for (keys, settings), reply in zip(declared.items(), replies, strict=True):
        if isinstance(reply, ServerFull | ServerReadOnly):  # the present settings stay
            log.warning("declared settings of queue %s: %s", keys.queue, reply)
        elif isinstance(reply, BideError):
            raise reply
        elif reply:
            values: Mapping[str, Any] = {**settings}
            log.info(
                "queue %s: the declared %s has no effect, because another value was configured; "
                "`bide queues limit %s --declared` lets the code decide again",
                keys.queue,
                " and ".join(f"{name}={values[name]!r}" for name in reply),
                keys.queue,
            )


async def prepare_server(
    client: aio.AsyncClient,
    everywhere: Keys,
    queues: Sequence[Keys],
    allow_eviction: bool,
    keyring: Keyring | None = None,
    declared: Mapping[Keys, QueueSettings] | None = None,
    *,
    waits: bool,
) -> None:
    """Register the queues, and set the schedules and settings that are declared for them.

    If `waits` is true, this is retried until the server can be reached.

    Raises:
        ServerUnavailable: the server could not be reached, and `waits` is false; or waiting does
            not help, for instance because the certificate is not trusted.
        UsageError: a queue holds data, or the server may drop keys and that is not allowed.
        ClientTooOld: a newer bide has changed the layout of a queue.
        BideError: a schedule cannot be set.
    """
    failures = 0
    while True:
        try:
            await _register(client, everywhere, queues, allow_eviction, keyring, waits)
            return await apply_declared(client, declared or {})
        except ServerUnavailable as error:
            if not waits or not is_passing(error):
                raise
            if failures % LOG_EVERY == 0:
                log.warning("%s Trying again until it works.", error)
        failures += 1
        await asyncio.sleep(pause_after(failures))


async def _register(
    client: aio.AsyncClient,
    everywhere: Keys,
    queues: Sequence[Keys],
    allow_eviction: bool,
    keyring: Keyring | None,
    waits: bool,
) -> None:
    """Register the queues and set the schedules; a repeat changes nothing."""
    # If the server lacks the script of a call, that call is repeated after the other calls of its
    # round trip. Notes and outcomes must come before claims, so all scripts are loaded first. Later
    # the files may have been replaced by another version, or the process may have no descriptors.
    await client.load(SCRIPTS, [keys["meta"] for keys in queues])
    registration = register_queues(everywhere, [str(keys.queue) for keys in queues])
    registered, *started = await client.attempt_many([registration, *map(worker_start, queues)])
    for keys, found in zip(queues, started, strict=True):
        if isinstance(found, ClientTooOld):
            raise found
        if not isinstance(found, StartReply):  # the loop logs why it was refused
            continue
        if found.is_data:
            raise UsageError(
                f"Queue {keys.queue} is a delay queue: it holds data, which no worker can run; "
                "name another queue, or take what it holds with a DelayQueue."
            )
        if not allow_eviction:
            _check_policy(client.where, found.policy)
    # These errors are temporary, and producers register their queues too. The list of queues may be
    # on another node of a Cluster. A single server that takes no changes is a replica.
    is_alone = read_servers(client.url).kind != "cluster"
    if isinstance(registered, ServerUnavailable) and is_alone and not waits:
        raise registered
    if isinstance(registered, ServerReadOnly | ServerUnavailable):
        log.warning("%s", registered)
    elif isinstance(registered, BideError):
        raise registered
    await set_declared(client, queues, keyring)


def _check_policy(where: str, policy: str | None) -> None:
    """Refuse a server that drops stored jobs, instead of refusing new ones, when it is full."""
    if policy is None:
        log.info("whether %s drops jobs when it is full is not known: INFO is denied", where)
    elif policy != "noeviction":
        raise UsageError(
            f"The server at {where} would drop jobs without an error when its memory is "
            f"full (maxmemory-policy {policy}); run `CONFIG SET maxmemory-policy noeviction` on "
            "it, or accept that with --allow-eviction or Worker(..., allow_eviction=True)."
        )


DEFAULT = "default"
"""The queue that is served if the modules have none; `Queue()` uses it too."""


def queues_of(modules: Sequence[str], url: str, prefix: str) -> list[str]:
    """Return the names of the modules' queues, in their order, without repeats.

    A queue of another server or prefix counts only if it has tasks; `warn` logs a warning for it.
    """
    found = task_queues_of(modules)
    names = [
        task_queue.queue
        for task_queue in found
        if found[task_queue] or _is_here(task_queue, url, prefix)
    ]
    return list(dict.fromkeys(names)) or [DEFAULT]


def task_queues_of(modules: Sequence[str]) -> dict[TaskQueue, list[str]]:
    """Return the queues of an application, with the names of the tasks of each.

    First come the queues that are variables of `modules`, in their order, or of modules that have
    registered tasks; then the queues of all other tasks.
    """
    found: dict[TaskQueue, list[str]] = {}
    for module in (*modules, *sorted(registering_modules() - {*modules})):
        for value in list(vars(sys.modules.get(module, object)).values()):
            # `isinstance` would ask a lazy object, such as Flask's `request`, for its class.
            if issubclass(type(value), TaskCall):
                value = value.queue
            if issubclass(type(value), Queue | AsyncQueue):
                found.setdefault(value._task_queue, [])
    for task_queue, tasks in known_task_queues().items():
        found.setdefault(task_queue, []).extend(tasks)
    return found


def _has_functions(module: str) -> bool:
    """Whether a module has a public function, or a class, that can be enqueued by its name."""
    public = vars(sys.modules.get(module, object)).items()
    return any(
        isinstance(value, FunctionType | type) for name, value in public if not name.startswith("_")
    )


def tasks_longer_than(seconds: float, queues: Sequence[str]) -> list[str]:
    """Return the known tasks of these queues that have a `timeout=` of more than these seconds.

    The default time-out does not count, because it does not say that a task takes long.
    """
    names = {
        task: None
        for task_queue, tasks in known_task_queues().items()
        if task_queue.queue in queues
        for task in tasks
    }
    options = {name: defaults_of(name) for name in names}
    return [
        name
        for name, its in options.items()
        if its.get("timeout") is not None and policy_of(its).timeout > seconds
    ]


def _decorated(modules: Sequence[str]) -> list[str]:
    """Return the functions that wrap a task, as a decorator above that of the task does."""
    found = []
    for module in modules:
        for name, value in list(vars(sys.modules[module]).items()):
            if type(value) is FunctionType and task_inside(value) is not None:
                found.append(f"{module}:{name}")
    return found


async def warn(
    client: aio.AsyncClient,
    everywhere: Keys,
    modules: Sequence[str],
    queues: Sequence[str],
    others: Sequence[str] = (),
) -> None:
    """Log a warning about tasks in the worker's modules whose jobs it will never receive.

    Modules that declare no task are skipped: their functions are enqueued by import path, to any
    queue. A queue that another worker serves is skipped too, and so are `others`, whose workers may
    start at this moment.
    """
    if not modules:
        return
    here: dict[str, list[str]] = {}
    of_queues = task_queues_of(modules)
    if not any(of_queues.values()) and not any(map(_has_functions, modules)):
        log.warning(
            "%s: no task and no function is defined there, so this worker has nothing to run; "
            "start it with the modules of your tasks",
            ", ".join(modules),
        )
    for name in _decorated(modules):
        log.warning(
            "%s has a decorator above the decorator of its task, so its jobs run without that; put "
            "it below",
            name,
        )
    for task_queue, tasks in of_queues.items():
        if not tasks:
            continue
        if _is_here(task_queue, client.url, everywhere.prefix):
            here.setdefault(task_queue.queue, []).extend(tasks)
        else:
            log.warning("%s", _elsewhere(task_queue, tasks, client.url, everywhere.prefix))
    missed = [queue for queue in here if queue not in queues and queue not in others]
    if missed and here.keys().isdisjoint(queues):
        log.warning(
            "this worker serves %s, where its modules have no task: it will not run %s; start it "
            "with %s",
            ", ".join(queues),
            _tasks_on(here, missed),
            _options(missed),
        )
    elif missed:
        served = await _served_elsewhere(client, everywhere)
        missed = [queue for queue in missed if queue not in served]
        if missed:
            idle = [queue for queue in queues if queue not in here]
            served_idly = f"; on {', '.join(idle)}, which it serves, its modules have no task"
            log.warning(
                "no worker runs %s: start this worker with %s too, or another%s",
                _tasks_on(here, missed),
                _options(missed),
                served_idly if idle else "",
            )


def _is_here(task_queue: TaskQueue, url: str, prefix: str) -> bool:
    """Whether a worker of that server and prefix can see jobs of a queue."""
    with suppress(UsageError):  # the queue's URL is invalid: `enqueue()` reports that
        return same_servers(task_queue.server, url) and task_queue.root == prefix
    return True


def _elsewhere(task_queue: TaskQueue, tasks: Sequence[str], url: str, prefix: str) -> str:
    """Describe a queue on another server or under another prefix than this worker's."""
    if same_servers(task_queue.server, url):
        where, here = f"under the prefix {task_queue.root!r}", f"the prefix {prefix!r}"
        what = "prefix"
    else:
        where, here = f"to {hide_password(task_queue.server)}", hide_password(url)
        what = "url"
    return (
        f"jobs of {_some(tasks)} go {where} (queue {task_queue.queue}), and this worker serves "
        f"{here}; give both the same, or leave {what}= out of the queue and set "
        f"$BIDE_{what.upper()} for both"
    )


async def _served_elsewhere(client: aio.AsyncClient, everywhere: Keys) -> set[str]:
    """Return the queues that other workers serve; none if the server does not allow to read it."""
    with suppress(BideError):
        seen = await client.run(queue_commands.workers(everywhere))
        return {queue for worker in seen if worker.alive for queue in worker.about.queues}
    return set()


def _tasks_on(here: dict[str, list[str]], queues: Sequence[str]) -> str:
    return ", ".join(f"{_some(here[queue])} on {queue}" for queue in queues)


def _some(tasks: Sequence[str]) -> str:
    """Name the first task, and count the others."""
    first, *others = dict.fromkeys(tasks)
    return f"{first} and {len(others)} more" if others else first


def _options(queues: Iterable[str]) -> str:
    return " ".join(f"-q {queue}" for queue in queues)
