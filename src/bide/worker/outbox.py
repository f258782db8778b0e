"""The outbox of an application, as a worker and the command line use it.

It is named by the module and the variable that hold it, `shop.db:outbox`. bide's own are in
`bide.contrib`, which a worker does not import by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from bide.errors import ServerRefused, UsageError
from bide.tasks.task import import_module


class OutboxRow(NamedTuple):
    """A row that has not been sent."""

    number: int
    queue: str
    verb: str
    """The change: `enqueue`, `push`, `cancel`, `cancel-waiting`, `reschedule` or `promote`."""
    job_id: str
    written: datetime
    """When it was written, by the clock of the database."""
    tries: int
    """How often it was tried, if the server answered."""
    refused: bool
    """Whether it stays until someone retries or deletes it."""
    error: str | None
    """The last error, if the server answered with one."""


class OutboxStats(NamedTuple):
    """The rows that have not been sent."""

    waiting: int
    """Rows that will be sent."""
    refused: int
    """Rows that stay until someone retries or deletes them."""
    age: float
    """Seconds since the oldest waiting row was written; 0 without one."""


class OutboxLike(Protocol):
    """What a worker and the command line need of an outbox."""

    def relay(self, *, burst: bool = False, stop: threading.Event | None = None) -> int:
        """Send the rows that were left; return their number."""
        raise NotImplementedError

    async def arelay(self) -> int:
        """Do as `relay`, beside a worker."""
        raise NotImplementedError

    def stats(self) -> OutboxStats:
        """Count the rows."""
        raise NotImplementedError

    def list_rows(self, limit: int = 50, *, refused: bool = False) -> list[OutboxRow]:
        """Return the oldest rows; with `refused`, only those."""
        raise NotImplementedError

    def retry_rows(self, numbers: Sequence[int] | None = None) -> int:
        """Have refused rows sent again, all or some; return their number."""
        raise NotImplementedError

    def delete_rows(self, numbers: Sequence[int]) -> int:
        """Remove rows without sending them; return their number."""
        raise NotImplementedError

    def check_ready(self) -> None:
        """Raise UsageError if the outbox cannot relay."""
        raise NotImplementedError


@contextmanager
def explained() -> Iterator[None]:
    """Convert an error of the application's database to bide's, without its statement."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None)  # as SQLAlchemy's errors have it
        repair = "create the outbox's tables in it"
        if type(error).__module__ == "django.db.utils":
            cause, repair = error, "run `manage.py migrate`"
        if cause is None:
            raise
        raise ServerRefused(
            f"The database of the outbox cannot be used ({' '.join(str(cause).split())}); start "
            f"it, and {repair}."
        ) from error


def load_outbox(path: str) -> OutboxLike:
    """Import an outbox that can relay.

    Raises:
        UsageError: `path` does not name an outbox, or it has no engine.
        TaskNotFound: the module cannot be imported.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise UsageError(f"{path!r} does not name an outbox; write it as shop.db:outbox.")
    found: Any = getattr(import_module(module), name, None)
    if not hasattr(found, "check_ready"):
        what = "has no variable" if found is None else "has another value in"
        raise UsageError(
            f"The module {module!r} {what} {name!r}; name the variable that holds "
            "Outbox(...) of bide.contrib.sqlalchemy or bide.contrib.django.outbox."
        )
    outbox: OutboxLike = found
    outbox.check_ready()
    return outbox


def outbox_beside(path: str, burst: bool) -> Callable[[], Coroutine[Any, Any, Any]] | None:
    """Return the coroutine function that relays beside a worker; in a burst, relay before it.

    Raises:
        UsageError: see `load_outbox`.
    """
    outbox = load_outbox(path)
    if not burst:
        return outbox.arelay
    outbox.relay(burst=True)
    return None
