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


class _Send:
    """What is sent at the commit; `hint` tells it from what others do then."""

    def __init__(self, send: Callable[[], Any]) -> None:
        self._send = send
        self.waits = True

    def __call__(self) -> None:
        self.waits = False
        self._send()


def at_commit(send: Callable[[], Any], using: str | None) -> None:
    """Call when the transaction is committed; at once where no database is set up."""
    name = using or "default"
    if connections[name].settings_dict["ENGINE"] == "django.db.backends.dummy":
        send()
    else:
        transaction.on_commit(_Send(send), using=name)


def hint() -> str:
    """What a test should know of enqueues that wait for a commit; empty where none waits."""
    waiting = sum(
        isinstance(call, _Send) and call.waits
        for connection in connections.all(initialized_only=True)
        for _, call, *_ in connection.run_on_commit
    )
    if not waiting:
        return ""
    what = "1 enqueue waits" if waiting == 1 else f"{waiting} enqueues wait"
    return (
        f"{what} for the commit of a transaction. A TestCase never commits: make the call inside "
        "of `with self.captureOnCommitCallbacks(execute=True):`."
    )
