"""Database connections of jobs, which end as those of requests do.

Django closes a connection that is too old, or broken, when a request begins and ends. A job is no
request: without this, a thread of a worker would hold one that the database has long closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections

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
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@asynccontextmanager
async def _on_loop() -> AsyncIterator[None]:
    await sync_to_async(close_old_connections)()
    try:
        yield
    finally:
        await sync_to_async(close_old_connections)()
