"""What a worker says and asks when it starts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from bide.client import aio
from bide.client.errors import is_passing
from bide.client.url import hide_password, same_servers
from bide.errors import BideError, ClientTooOld, ServerReadOnly, ServerUnavailable, UsageError
from bide.logs import Log
from bide.model.payload.signing import Keyring
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.queues import StartReply, register_queues, worker_start
from bide.protocol.keys import Keys
from bide.queue import AsyncQueue, Queue
from bide.queue.binding import QueueHome, known_homes
from bide.queue.task import TaskCall
from bide.tasks.task import registering_modules
from bide.worker.heartbeat import set_declared
from bide.worker.loop import SAY_EVERY, pause_after

log = Log("bide.worker")

SCRIPTS: Final = ("note", "settle", "claim", "extend", "leave")
"""What a worker calls while it serves."""


async def prepare_server(
    client: aio.AsyncClient,
    everywhere: Keys,
    queues: Sequence[Keys],
    allow_eviction: bool,
    keyring: Keyring | None = None,
    *,
    waits: bool,
) -> None:
    """Note that the queues are in use, and set the schedules that are declared for them.

    Args:
        client: of the server.
        everywhere: the keys that no queue owns.
        queues: the keys of each queue.
        allow_eviction: whether the server may drop keys when its memory is full.
        keyring: what signs the jobs of schedules.
        waits: whether to try again until the server can be reached.

    Raises:
        ServerUnavailable: the server could not be reached, and it is not to be waited for, or
            waiting does not help: its certificate is not trusted, for instance.
        UsageError, ClientTooOld, BideError: as of `_begin`.
    """
    failures = 0
    while True:
        try:
            return await _begin(client, everywhere, queues, allow_eviction, keyring)
        except ServerUnavailable as error:
            if not waits or not is_passing(error):
                raise
            if failures % SAY_EVERY == 0:
                log.warning("%s Trying again until it works.", error)
        failures += 1
        await asyncio.sleep(pause_after(failures))


async def _begin(
    client: aio.AsyncClient,
    everywhere: Keys,
    queues: Sequence[Keys],
    allow_eviction: bool,
    keyring: Keyring | None,
) -> None:
    """Begin, or not at all; a repeat changes nothing.

    Raises:
        ServerUnavailable: the server could not be reached.
        UsageError: one of them holds data: all of it would fail; or its server drops keys when its
            memory is full, and that was not allowed.
        ClientTooOld: one of them was laid out by a newer bide.
    """
    # Of calls that share a round trip, one whose script the server does not know would be sent
    # again, behind the others: notes and outcomes go ahead of claims. And what is read now need not
    # be read when no file can be opened, or is another version's.
    await client.load(SCRIPTS, [keys["meta"] for keys in queues])
    noting = register_queues(everywhere, [str(keys.queue) for keys in queues])
    noted, *begun = await client.attempt_many([noting, *map(worker_start, queues)])
    for keys, found in zip(queues, begun, strict=True):
        if isinstance(found, ClientTooOld):
            raise found
        if not isinstance(found, StartReply):  # if it is refused, the loop says so
            continue
        if found.is_data:
            raise UsageError(
                f"Queue {keys.queue} is a delay queue: it holds data, which no worker can run; "
                "name another queue, or take what it holds with a DelayQueue."
            )
        if not allow_eviction:
            _check_policy(client.where, found.policy)
    # It will pass, and producers note their queues, too. The list may be on another node.
    if isinstance(noted, ServerReadOnly | ServerUnavailable):
        log.warning("%s", noted)
    elif isinstance(noted, BideError):
        raise noted
    await set_declared(client, queues, keyring)


def _check_policy(where: str, policy: str | None) -> None:
    """Refuse a server that forgets jobs rather than to refuse new ones."""
    if policy is None:
        log.info("whether %s drops jobs when it is full is not known: INFO is denied", where)
    elif policy != "noeviction":
        raise UsageError(
            f"The server at {where} would drop jobs without a word when its memory is full "
            f"(maxmemory-policy {policy}); set maxmemory-policy noeviction, or accept that with "
            "--allow-eviction or Worker(..., allow_eviction=True)."
        )


DEFAULT = "default"
"""The queue that is served where modules have none: that of `Queue()`."""


def queues_of(modules: Sequence[str], url: str, prefix: str) -> list[str]:
    """The names of the queues that modules have, in their order, without repeats.

    A queue of another server or prefix counts only if it has tasks: what is wrong with it, `warn`
    says.
    """
    found = task_queues_of(modules)
    names = [home.queue for home in found if found[home] or _is_here(home, url, prefix)]
    return list(dict.fromkeys(names)) or [DEFAULT]


def task_queues_of(modules: Sequence[str]) -> dict[QueueHome, list[str]]:
    """The queues of an application, and the names of the tasks that belong to each.

    They are the queues that stand in its modules, in their order, and in the modules that have
    registered tasks; then those that other tasks belong to.
    """
    found: dict[QueueHome, list[str]] = {}
    for module in (*modules, *sorted(registering_modules() - {*modules})):
        for value in list(vars(sys.modules.get(module, object)).values()):
            # `isinstance` would ask a lazy object, such as Flask's `request`, for its class.
            if issubclass(type(value), TaskCall):
                value = value.queue
            if issubclass(type(value), Queue | AsyncQueue):
                found.setdefault(value._home, [])
    for home, tasks in known_homes().items():
        found.setdefault(home, []).extend(tasks)
    return found


async def warn(
    client: aio.AsyncClient, everywhere: Keys, modules: Sequence[str], queues: Sequence[str]
) -> None:
    """Log which jobs of its modules' tasks a worker will never see.

    Modules that declare no task say nothing of queues: their functions are enqueued by import path.
    A queue that the worker leaves out on purpose is served by another worker.

    Args:
        client: of the worker's server.
        everywhere: the keys that no queue owns.
        modules: those that the worker was given.
        queues: those that it serves.
    """
    if not modules:
        return
    here: dict[str, list[str]] = {}
    for home, tasks in task_queues_of(modules).items():
        if not tasks:
            continue
        if _is_here(home, client.url, everywhere.prefix):
            here.setdefault(home.queue, []).extend(tasks)
        else:
            log.warning("%s", _elsewhere(home, tasks, client.url, everywhere.prefix))
    missed = [queue for queue in here if queue not in queues]
    if missed and here.keys().isdisjoint(queues):
        log.warning(
            "this worker serves %s, where its modules have no task: it will not run %s; start it "
            "with %s",
            _listed(queues),
            _tasks_on(here, missed),
            _options(missed),
        )
    elif missed:
        served = await _served_elsewhere(client, everywhere)
        missed = [queue for queue in missed if queue not in served]
        if missed:
            idle = [queue for queue in queues if queue not in here]
            served_idly = f"; on {_listed(idle)}, which it serves, its modules have no task"
            log.warning(
                "no worker runs %s: start this worker with %s too, or another%s",
                _tasks_on(here, missed),
                _options(missed),
                served_idly if idle else "",
            )


def _is_here(home: QueueHome, url: str, prefix: str) -> bool:
    """Whether a worker of that server and prefix can see jobs of a queue."""
    with suppress(UsageError):  # what is wrong with its URL, whoever enqueues is told
        return same_servers(home.server, url) and home.root == prefix
    return True


def _elsewhere(home: QueueHome, tasks: Sequence[str], url: str, prefix: str) -> str:
    """That jobs of a queue go where this worker does not look."""
    if same_servers(home.server, url):
        where, here = f"under the prefix {home.root!r}", f"the prefix {prefix!r}"
        what = "prefix"
    else:
        where, here = f"to {hide_password(home.server)}", hide_password(url)
        what = "url"
    return (
        f"jobs of {_some(tasks)} go {where} (queue {home.queue}), and this worker serves {here}; "
        f"give both the same, or leave {what}= out of the queue and set $BIDE_{what.upper()} for "
        "both"
    )


async def _served_elsewhere(client: aio.AsyncClient, everywhere: Keys) -> set[str]:
    """The queues that other workers serve; none where that cannot be read."""
    with suppress(BideError):
        seen = await client.run(queue_commands.workers(everywhere))
        return {queue for worker in seen if worker.alive for queue in worker.about.queues}
    return set()


def _tasks_on(here: dict[str, list[str]], queues: Sequence[str]) -> str:
    return ", ".join(f"{_some(here[queue])} on {queue}" for queue in queues)


def _some(tasks: Sequence[str]) -> str:
    """The first of some tasks, and how many others there are."""
    first, *others = dict.fromkeys(tasks)
    return f"{first} and {len(others)} more" if others else first


def _listed(queues: Iterable[str]) -> str:
    return ", ".join(queues)


def _options(queues: Iterable[str]) -> str:
    return " ".join(f"-q {queue}" for queue in queues)
