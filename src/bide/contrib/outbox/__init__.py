"""A transactional outbox, without a database library.

    rows.py     a change as a row, and what `once` stores: written in the user's transaction
    sending.py  the outcome of each row, and the relay that sends the remaining rows

`bide.contrib.sqlalchemy` and `bide.contrib.django.outbox` keep the rows in a database.
docs/decisions/0019-outbox.md explains the rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from bide.contrib.outbox.sending import FastPath, relay_in_thread
from bide.model.durations import Duration, from_us, to_us
from bide.worker.relay import OutboxRow, OutboxStats

T = TypeVar("T")


class UnsentRows(Protocol):
    """The rows that have not been sent, in the table of one database library."""

    def stats(self) -> OutboxStats:
        """Count the rows."""
        raise NotImplementedError

    def list(self, limit: int, refused: bool) -> list[OutboxRow]:
        """Return the oldest rows; with `refused`, only those."""
        raise NotImplementedError

    def retry(self, numbers: Sequence[int] | None) -> int:
        """Have refused rows sent again, all or some; return their number."""
        raise NotImplementedError

    def delete(self, numbers: Sequence[int]) -> int:
        """Remove rows without sending them; return their number."""
        raise NotImplementedError


class OutboxBase:
    """The part of an outbox that does not depend on the database library."""

    def __init__(self, url: str | None, fast: bool, keep: Duration) -> None:
        self.fast = fast
        self.keep_us: Final = to_us(keep, "keep")
        self._given_url: Final = url
        self._fast_path: Final = FastPath()

    # -- relaying

    def relay(self, *, burst: bool = False, stop: threading.Event | None = None) -> int:
        """Send the rows that were left, until `stop` is set.

        Args:
            burst: whether to end when no row can be sent now.
            stop: ends the relay, within a second.

        Returns:
            The number of rows that were sent.

        Raises:
            UsageError: see `check_ready`; on Django, also if the caller is in a transaction.
            BideError: in a burst, the server could not be reached.
        """
        self.check_ready()
        return self._relay(burst, stop or threading.Event())

    async def arelay(self, *, burst: bool = False, stop: threading.Event | None = None) -> int:
        """Do as `relay`, beside the running event loop: in a thread if the database blocks."""
        return await self._relay_beside(burst, stop or threading.Event())

    async def _relay_beside(self, burst: bool, stop: threading.Event) -> int:
        return await relay_in_thread(partial(self.relay, burst=burst, stop=stop), stop)

    # -- reading and repairing

    def stats(self) -> OutboxStats:
        """Count the rows that have not been sent."""
        return self._on_rows(lambda rows: rows.stats())

    def list_rows(self, limit: int = 50, *, refused: bool = False) -> list[OutboxRow]:
        """Return the oldest rows that have not been sent; with `refused`, only refused ones."""
        return self._on_rows(lambda rows: rows.list(limit, refused))

    def retry_rows(self, numbers: Sequence[int] | None = None) -> int:
        """Have refused rows sent again, all or those of these numbers; return how many."""
        return self._on_rows(lambda rows: rows.retry(numbers))

    def delete_rows(self, numbers: Sequence[int]) -> int:
        """Remove rows of these numbers without sending them; return how many."""
        return self._on_rows(lambda rows: rows.delete(numbers))

    # -- implemented for each library

    def check_ready(self) -> None:
        """Raise UsageError if the outbox cannot relay."""
        raise NotImplementedError

    def _relay(self, burst: bool, stop: threading.Event) -> int:
        raise NotImplementedError

    def _on_rows(self, call: Callable[[UnsentRows], T]) -> T:
        raise NotImplementedError


def shown(row: Any) -> OutboxRow:
    """Convert a row of the table, which has the columns as attributes."""
    return OutboxRow(
        row.id,
        row.queue,
        row.verb,
        row.job_id,
        from_us(row.written_us),
        row.tries,
        row.retry_us is None,
        row.error,
    )
