"""A round: claim rows, send them, and commit what became of them; and the fast path.

The fast path and the relay do the same. The rows are removed first, which locks them. So no other
sender has them, and if this process dies, its transaction is rolled back and the rows are there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from bide.contrib.outbox.relay import Round, told
from bide.contrib.outbox.rows import BATCH, Row
from bide.contrib.outbox.sending import Sender, Written, is_final, waits_for_parent
from bide.errors import BideError
from bide.logs import Log

log = Log("bide.outbox")

CHANNEL: Final = "bide_outbox"
"""The channel of PostgreSQL that wakes relays."""

NOW_US: Final = {
    "postgresql": "CAST(extract(epoch from clock_timestamp()) * 1000000 AS bigint)",
    "mariadb": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}
"""The present moment by the clock of the database, in microseconds since 1970."""

KEPT: Final = ("id", "written_us", "tries", *Row._fields)
"""The columns of a row that is put back."""

SWEPT: Final = 1_000
"""Rows of `once` that one statement removes at most."""

_FIRST_PAUSE_US, _LONGEST_PAUSE_US = 1_000_000, 60_000_000
"""Before a row is tried again that could not be sent: the first, and the longest after doubling."""

_LONGEST_ERROR: Final = 1000

_REST: Final = 5.0
"""Seconds without the fast path after the server could not be reached: the relay tries."""


def claim(table: str, database: str, most: str, numbers: str | None = None) -> str:
    """Return the SQL that removes rows to send, and returns them; a rollback restores them.

    The transaction has the locks of these rows until it ends, so no other sender has them. A row
    that others send now is skipped. A row that follows another of its job or key is not taken.

    Args:
        table: the name of the outbox, quoted.
        database: `postgresql` or `sqlite`.
        most: the placeholder for the maximum number of rows.
        numbers: the placeholder for the list of rows, in its brackets; by default any are taken.
    """
    chosen = choose(table, database, most, numbers)
    delete = f"DELETE FROM {table} WHERE id IN"
    returning = f"RETURNING {_columns(database)}"
    if database == "postgresql":
        # In a WITH of its own, as a subselect with LIMIT may be evaluated more than once.
        locked = f"{chosen} FOR UPDATE SKIP LOCKED"
        return f"WITH chosen AS ({locked}) {delete} (SELECT id FROM chosen) {returning}"
    return f"{delete} ({chosen}) {returning}"


def choose(table: str, database: str, most: str, numbers: str | None = None) -> str:
    """Return the SQL that finds the numbers of rows to send; arguments as for `claim`."""
    return (
        f"SELECT row_.id FROM {table} AS row_ WHERE row_.retry_us <= {NOW_US[database]} "
        f"AND {_follows_none(table)} "
        f"{f'AND row_.id IN {numbers} ' if numbers else ''}ORDER BY row_.id LIMIT {most}"
    )


def first_of(table: str, database: str, numbers: str) -> str:
    """Return the SQL that reads those of these rows which follow no other, as `claim` does."""
    return (
        f"SELECT {_columns(database)} FROM {table} AS row_ "
        f"WHERE row_.id IN {numbers} AND {_follows_none(table)} ORDER BY row_.id"
    )


def _follows_none(table: str) -> str:
    earlier = (
        f"SELECT 1 FROM {table} AS earlier WHERE earlier.id < row_.id "
        "AND earlier.queue = row_.queue AND earlier.prefix = row_.prefix AND earlier"
    )
    return (
        f"NOT EXISTS ({earlier}.job_id = row_.job_id) "
        f"AND (row_.dedup IS NULL OR NOT EXISTS ({earlier}.dedup = row_.dedup))"
    )


def _columns(database: str) -> str:
    return f"{', '.join(KEPT)}, {NOW_US[database]} - written_us AS elapsed_us"


class Claimed(NamedTuple):
    """A row that was claimed: its place in the table, and the change."""

    id: int
    written_us: int
    tries: int
    row: Row
    elapsed_us: int

    @classmethod
    def read(cls, columns: Sequence[Any]) -> Claimed:
        """Convert what `claim` returned."""
        id, written_us, tries, *values, elapsed_us = columns
        row = Row(*values)
        return cls(id, written_us, tries, row._replace(body=bytes(row.body)), elapsed_us)

    def values(self) -> dict[str, Any]:
        """Return its columns, except those that say how it fared."""
        return {"id": self.id, "written_us": self.written_us, **self.row._asdict()}


class Fared(NamedTuple):
    """The columns of a row that is put back which say how it fared."""

    tries: int
    error: str
    pause_us: int | None
    """The time until it is tried again; None if a repeat cannot succeed."""


def send_claimed(
    sender: Sender,
    found: Sequence[Claimed],
    put_back: Callable[[Claimed, Fared], None],
    is_pending: Callable[[list[str]], bool],
) -> tuple[Round, bool]:
    """Send rows that were claimed, and put back those that were not sent.

    Args:
        sender: sends them.
        found: the rows.
        put_back: writes a row again, under its number.
        is_pending: whether the outbox has a row of one of these jobs.

    Returns:
        The round; and whether to commit it, as a rollback puts all rows back.
    """
    outcome = sender.send([Written(one.id, one.elapsed_us, one.row) for one in found])
    done = Round(len(found), len(found) - len(outcome.errors), outcome.down)
    if not done.sent and done.down is not None:
        return done, False
    for one in found:
        if (error := outcome.errors.get(one.id)) is not None:
            put_back(one, _fared(one, error, is_pending))
    return done, True


def _fared(one: Claimed, error: BideError, is_pending: Callable[[list[str]], bool]) -> Fared:
    final = is_final(error)
    if final and waits_for_parent(error):
        final = not is_pending(one.row.parents.split())
    if final:
        log.error(
            "the outbox keeps row %d, %s of the job %s in %s, which cannot be sent: %s",
            *(one.id, one.row.verb, one.row.job_id, one.row.queue, error),
        )
    pause_us = min(_FIRST_PAUSE_US << min(one.tries, 10), _LONGEST_PAUSE_US)
    text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    return Fared(one.tries + 1, text, None if final else pause_us)


class FastPath:
    """Sends the rows of transactions that have committed, in the process that wrote them."""

    def __init__(self) -> None:
        self._rests_until = 0.0

    def send(self, round_of: Callable[[Sequence[int]], Round], numbers: Sequence[int]) -> None:
        """Send rows by rounds; no error is raised, as the commit has succeeded."""
        if time.monotonic() < self._rests_until:
            return
        try:
            for i in range(0, len(numbers), BATCH):
                some = numbers[i : i + BATCH]
                done = round_of(some)
                while done.claimed and not done.down and len(some) > done.claimed:
                    done = round_of(some)
                if done.down:
                    self._rests_until = time.monotonic() + _REST
                    log.warning("the relay will send what this process could not: %s", done.down)
                    return
        except Exception as error:
            log.warning("the relay will send what this process could not: %s", told(error))
