"""Enqueue when the transaction is committed: no sooner, and not at all if it is rolled back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec

from django.db import connections, transaction

from bide.errors import UsageError
from bide.queue import Queue
from bide.queue.tasks import BlockingCall

P = ParamSpec("P")


class OnCommit(Generic[P]):
    """A task whose jobs are enqueued at the commit."""

    def __init__(self, call: BlockingCall[P, Any], using: str | None) -> None:
        self._call = call
        self._using = using

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Check and encode a job now; send it at the commit, or now where no transaction is.

        A delay counts from then.

        Returns:
            The job's id, under which it can be found once it is there.

        Raises:
            PayloadError: an argument cannot be stored, or is not what the task takes.
            UsageError: an option cannot be meant.
        """
        prepared = self._call.prepare(*args, **kwargs)
        at_commit(lambda: self._call.queue.enqueue_many([prepared]), self._using)
        return prepared.id


def on_commit(call: BlockingCall[P, Any], *, using: str | None = None) -> OnCommit[P]:
    """A task, or one with options, whose jobs are enqueued when the transaction is committed.

    `on_commit(remind.later("3d")).enqueue(order.id)`

    Args:
        call: a task of a `bide.Queue`.
        using: which database's transaction; by default the default one's.

    Raises:
        UsageError: it is no such task.
    """
    if not isinstance(call, BlockingCall) or not isinstance(call.queue, Queue):
        raise UsageError(
            f"on_commit() wants a task of a bide.Queue, such as send or send.later('5m'), not "
            f"{call!r}."
        )
    return OnCommit(call, using)


def at_commit(send: Callable[[], Any], using: str | None) -> None:
    """Call when the transaction is committed; at once where no database is set up."""
    name = using or "default"
    if connections[name].settings_dict["ENGINE"] == "django.db.backends.dummy":
        send()
    else:
        transaction.on_commit(send, using=name)
