"""Database connections of jobs, which end as those of requests do.

Django closes a connection that is too old, or broken, when a request begins and ends. A job is no
request: without this, a thread of a worker would hold one that the database has long closed.

A connection that is in a transaction before the job starts is left alone. A test has begun the
transaction and runs the job in it, and closing the connection would break the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from bide.current import CurrentJob
from bide.middleware import Around, Middleware


class Connections(Middleware):
    """Around each run, lets go of database connections as Django does around a request.

    Tasks of `django.tasks` have it already; it is for those of `@queue.task`.
    """

    def running(self, job: CurrentJob) -> Around:
        """On the event loop, by the thread in which Django's asynchronous calls run."""
        around: Around = fresh_connections()
        return around


def fresh_connections() -> Any:
    """A context, plain in a thread and async on an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _in_thread()
    return _on_loop()


@contextmanager
def _in_thread() -> Iterator[None]:
    left = _close_old()
    try:
        yield
    finally:
        _close_old(left)


@asynccontextmanager
async def _on_loop() -> AsyncIterator[None]:
    left = await sync_to_async(_close_old)()
    try:
        yield
    finally:
        await sync_to_async(_close_old)(left)


def _close_old(but: Collection[str] | None = None) -> list[str]:
    """Close connections as `close_old_connections` of Django does.

    Args:
        but: the aliases of the connections to leave alone if they are in a transaction; by default
            any that is in one.

    Returns:
        The aliases of those that were left alone.
    """
    left = []
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block and (but is None or connection.alias in but):
            left.append(connection.alias)
        else:
            connection.close_if_unusable_or_obsolete()
    return left
