"""`bide queues forget`: take a queue off the list, where it holds nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Final

import click

from bide.cli.options import server_options
from bide.cli.queues import queue_names
from bide.cli.screen import count, echo
from bide.cli.site import Site
from bide.errors import BideError
from bide.keys import keys_of
from bide.ops import manage, registry

_HOLDS: Final[dict[str, tuple[Callable[[int], str], str]]] = {
    "pending": (
        lambda n: f"holds {count(n, 'delayed, waiting or blocked job')}",
        "`bide queues empty {queue}` removes them",
    ),
    "active": (
        lambda n: f"holds {count(n, 'running job')}",
        "wait until they have finished",
    ),
    "ended": (
        lambda n: f"holds {count(n, 'finished job')}",
        "`bide jobs delete -q {queue}` removes them",
    ),
    "schedules": (
        lambda n: f"has {count(n, 'schedule')}",
        "`bide cron rm -q {queue} NAME` removes one",
    ),
    "groups": (
        lambda n: f"has settings of {count(n, 'group')}",
        "`bide queues groups {queue}` lists them",
    ),
    "edges": (
        lambda n: f"has {count(n, 'message')} for jobs of other queues",
        "a worker that serves {queue} delivers them",
    ),
    "paused": (lambda n: "is paused", "`bide queues resume {queue}` ends that"),
    "limits": (
        lambda n: "has limits",
        "`bide queues limit {queue} --rate none --max-active none` removes them",
    ),
    "aside": (
        lambda n: f"has {count(n, 'key')} that `bide fsck` has moved aside",
        "look at them with redis-cli, and delete them",
    ),
    "served": (
        lambda n: f"is served by {count(n, 'worker or reader', 'workers or readers')}",
        "stop them; a killed worker or reader counts for up to 15 s",
    ),
}
"""What a queue may hold, in words; and what to do about it."""


@click.command()
@queue_names
@server_options
def forget(names: tuple[str, ...], url: str | None, prefix: str | None) -> None:
    """Take a queue off the list, if it holds nothing.

    Use it for a queue whose name was misspelt. The command refuses a queue that has jobs (finished
    jobs too), schedules, settings of groups, limits or a pause, and a queue that a worker serves.
    It removes the queue's counts, its statistics and its retention. If the queue is used again, it
    is listed again.
    """
    site = Site(url, prefix)
    for name in site.known(names):
        _forget(site, name)
        echo(f"{name} is forgotten.")


def _forget(site: Site, name: str) -> None:
    """Remove what is left of a queue, and take it off the list.

    The list may be on another node of a Cluster than the queue, so no script sees both. A job that
    comes in between is found by the second look.
    """
    everywhere = keys_of(None, site.prefix)
    _check_workers(site, name)
    _remove(site, name)
    site.client.run(registry.unregister(everywhere, [name]))
    try:
        _remove(site, name)
    except BideError:
        site.client.run(registry.register(everywhere, [name]))
        raise


def _check_workers(site: Site, name: str) -> None:
    """Refuse a queue that a worker serves, busy ones with no slot left included."""
    for worker in site.workers():
        if name in worker.about.queues:
            raise BideError(
                f"{name} is served by the worker {worker.name}; stop it first, or start it without "
                f"this queue (`bide workers stop {worker.name}`)."
            )


def _remove(site: Site, name: str) -> None:
    """Remove what is left of a queue.

    Raises:
        BideError: it holds something, so nothing was removed.
    """
    holds = site.client.run(manage.forget(keys_of(name, site.prefix)))
    if holds:
        queue = shlex.quote(name)
        what, cures = zip(*(_HOLDS[kind] for kind in holds), strict=True)
        told = " and ".join(say(n) for say, n in zip(what, holds.values(), strict=True))
        fix = "; ".join(cure.format(queue=queue) for cure in cures)
        raise BideError(f"{name} {told}, so it is not forgotten; {fix}.")
