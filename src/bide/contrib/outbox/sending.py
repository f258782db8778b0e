"""Sends rows to the server, decides what happens with each, and relays the remaining rows.

A row ends in one of three ways. SENT: the server has answered. LATER: it may succeed later, so the
row stays. REFUSED: a repeat cannot succeed, so the row stays with its error until someone retries
or deletes it.

The fast path and the relay work in rounds. A round claims rows, sends them, and commits the
outcomes. The rows are deleted first, which locks them. So no other sender has them, and if this
process dies, its transaction is rolled back and the rows are restored.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol

from bide.client import aio, blocking
from bide.contrib.outbox.rows import BATCH, AnyQueue, ChangeRow, Verb, shifted
from bide.errors import (
    AccessDenied,
    BideError,
    ClientTooOld,
    DurabilityTimeout,
    DurabilityUnavailable,
    JobNotFound,
    ServerFull,
    ServerReadOnly,
    ServerUnavailable,
)
from bide.logs import Log
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Receipt
from bide.queue import AsyncQueue, Queue
from bide.queue.items import RETENTION
from bide.worker.relay import database_problem

log = Log("bide.outbox")

DOWN: Final = (ServerUnavailable, ServerFull, ServerReadOnly)
"""Errors that concern all rows: nothing can be sent until the server, or its settings, change."""

PASSING: Final = (AccessDenied, ClientTooOld, DurabilityTimeout, DurabilityUnavailable)
"""Errors of one row that may not occur later; `AccessDenied` is one of all rows of its queue."""

ADDING: Final[tuple[Verb, ...]] = ("enqueue", "push")
"""The verbs that add jobs: a server that is full refuses them."""

REPLY_TIMEOUT: Final = 1.0
"""Seconds to wait for a reply: the rows are locked meanwhile."""

CHANNEL: Final = "bide_outbox"
"""The channel of PostgreSQL that wakes relays."""

WITHOUT_JIT: Final = "SET LOCAL jit = off"
"""On PostgreSQL, the statement before a relay's claim. After a backlog, the planner expects many
rows that there are not, until a vacuum, and would compile each claim for longer than it runs."""

NOW_US: Final = {
    "postgresql": "CAST(extract(epoch from clock_timestamp()) * 1000000 AS bigint)",
    "mariadb": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}
"""The present moment by the clock of the database, in microseconds since 1970."""

KEPT: Final = ("id", "written_us", "tries", *ChangeRow._fields)
"""The columns of a row that is put back."""

SWEPT: Final = 1_000
"""Maximum rows of `once` that one statement removes."""

_FIRST_PAUSE_US, _LONGEST_PAUSE_US = 1_000_000, 60_000_000
"""The pause before an unsent row is tried again: the first one, and the maximum after doubling."""

_LONGEST_ERROR: Final = 1000

_REST: Final = 5.0
"""Seconds without the fast path after the server could not be reached: the relay tries."""

FAST_ROUNDS: Final = 10
"""Rounds of the fast path for up to `BATCH` rows. Rows of one job or dedup key are sent one per
round, and the caller's commit waits for the rounds. The relay sends the rest."""

POLL: Final = 1.0
"""Seconds between reads of an empty table."""

LONGEST_PAUSE: Final = 5.0
"""Maximum seconds between attempts while the server or the database is down."""

SWEEP_EVERY: Final = 60.0
"""Seconds between removals of old rows of `once`."""

_FIRST_REST: Final = 0.1

_HEED: Final = 0.25
"""Seconds until a relay that listens notices that it is stopped."""


class Written(NamedTuple):
    """A row that was read from the table, and is locked."""

    number: int
    elapsed_us: int
    """The time since the row was written, by the clock of the database."""
    row: ChangeRow


class Sent(NamedTuple):
    """The outcomes of rows that were sent together."""

    errors: dict[int, BideError]
    """The errors, by the number of the row; a row without an error was sent."""
    down: BideError | None
    """The error because of which no more rows can be sent now."""
    eager: tuple[Callable[[], Any], ...] = ()
    """In eager mode, the runs of the jobs; they wait for the commit of the round."""


class _Queue(Queue):
    """A queue whose replies are not waited for as long."""

    def _make_client(self, url: str, clock: str) -> blocking.Client:
        made = super()._make_client(url, clock)
        if type(made) is not blocking.Client:
            return made  # eager mode
        return blocking.Client(url, retry_for=0, reply_timeout=REPLY_TIMEOUT, clock=clock)


class _AsyncQueue(AsyncQueue):
    """Such a queue for an event loop."""

    def _make_client(self, url: str, clock: str) -> aio.AsyncClient:
        made = super()._make_client(url, clock)
        if type(made) is not aio.AsyncClient:
            return made
        return aio.AsyncClient(url, retry_for=0, reply_timeout=REPLY_TIMEOUT, clock=clock)


class Sender:
    """Sends rows, with blocking queues or, given a `wait` for their coroutines, awaited ones."""

    def __init__(self, url: str | None, wait: Callable[[Any], Any] | None = None) -> None:
        self._url = url
        self._is_async = wait is not None
        self._wait: Callable[[Any], Any] = wait or (lambda result: result)
        self._queues: dict[tuple[str, str], AnyQueue] = {}
        self._denied: set[tuple[str, str]] = set()
        self._eager: list[Callable[[], Any]] = []

    def send(self, rows: Sequence[Written]) -> Sent:
        """Send rows of different jobs, and return the outcomes."""
        errors: dict[int, BideError] = {}
        down: BideError | None = None
        by_queue: dict[tuple[str, str], list[Written]] = {}
        for written in sorted(rows):
            by_queue.setdefault((written.row.prefix, written.row.queue), []).append(written)
        for place, some in by_queue.items():
            if down is None or isinstance(down, ServerFull):  # which still takes changes
                stopped = self._send_to(self.queue(*place), some, errors)
                if not isinstance(stopped, AccessDenied):
                    self._denied.discard(place)
                    down = stopped or down
                    continue
                if place not in self._denied:
                    log.warning("the rows of queue %s cannot be sent now: %s", place[1], stopped)
                self._denied.add(place)
            else:
                errors |= dict.fromkeys((written.number for written in some), down)
        eager, self._eager = self._eager, []
        return Sent(errors, down, tuple(eager))

    def queue(self, prefix: str, name: str) -> AnyQueue:
        """Return the queue of a row."""
        found = self._queues.get((prefix, name))
        if found is None:
            kind = _AsyncQueue if self._is_async else _Queue
            found = kind(name, url=self._url, prefix=prefix, retry_for=0)
            self._queues[prefix, name] = found
        return found

    def close(self) -> None:
        """Close the connections."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            self._wait(queue.close())

    def _send_to(
        self, queue: AnyQueue, rows: Sequence[Written], errors: dict[int, BideError]
    ) -> BideError | None:
        adding = [written for written in rows if written.row.verb in ADDING]
        changing = [written for written in rows if written.row.verb not in ADDING]
        down: BideError | None = None
        if any(written.row.verb == "push" for written in adding):
            mark = job_commands.mark_data(queue.keys, RETENTION, True)
            down = _down(self._run(queue, [mark]))
        if down is None:
            down = self._add(queue, adding, errors)
        else:
            errors |= dict.fromkeys((written.number for written in adding), down)
        if down is not None and not isinstance(down, ServerFull):
            _note(changing, [down] * len(changing), errors)
            return down
        commands = [_change(queue, written) for written in changing]
        return _note(changing, self._run(queue, commands), errors) or down

    def _add(
        self, queue: AnyQueue, rows: Sequence[Written], errors: dict[int, BideError]
    ) -> BideError | None:
        """Add jobs in as few round trips as possible; after a refusal, one by one."""
        if not rows:
            return None
        jobs = [written.row.prepared(written.elapsed_us) for written in rows]
        if queue._binding.fake_server is not None:
            # Eager mode runs them. The round holds locks that a job of the same database needs.
            self._eager.append(lambda: self._wait(queue._send(jobs)))
            return None
        replies = self._wait(queue._attempt(jobs))
        replies += [None] * (len(rows) - len(replies))  # after a refusal, no other row was sent
        down = _down(replies)
        unsent = [
            written
            for written, reply in zip(rows, replies, strict=True)
            if not isinstance(reply, Receipt)
        ]
        if len(rows) == 1 and down is None:
            return _note(rows, replies, errors)
        for i, written in enumerate(unsent):
            if down is not None:
                return _note(unsent[i:], [down] * len(unsent[i:]), errors)
            down = self._add(queue, [written], errors)
        return down

    def _run(self, queue: AnyQueue, commands: Sequence[Command[Any]]) -> list[Any]:
        if not commands:
            return []
        try:
            replies: list[Any] = self._wait(queue._client.attempt_many(commands))
        except BideError as error:
            return [error] * len(commands)
        return replies


def is_final(error: BideError) -> bool:
    """Whether a repeat of the row cannot succeed."""
    return not isinstance(error, DOWN + PASSING)


def _down(replies: Iterable[Any]) -> BideError | None:
    return next((reply for reply in replies if isinstance(reply, (*DOWN, AccessDenied))), None)


def _note(
    rows: Sequence[Written], replies: Sequence[Any], errors: dict[int, BideError]
) -> BideError | None:
    for written, reply in zip(rows, replies, strict=True):
        if isinstance(reply, BideError):
            errors[written.number] = reply
    return _down(replies)


def _change(queue: AnyQueue, written: Written) -> Command[Any]:
    row = written.row
    keys, ids = queue.keys, [row.job_id]
    if row.verb == "reschedule":
        return job_commands.reschedule(keys, ids, shifted(row.due, written.elapsed_us))
    if row.verb == "promote":
        return job_commands.promote(keys, ids)
    return job_commands.cancel(keys, ids, row.verb == "cancel")


# -- rounds


class Round(NamedTuple):
    """The result of one round."""

    claimed: int = 0
    """Number of rows that were tried."""
    sent: int = 0
    """Number of rows that were sent and removed."""
    down: BideError | None = None
    """The error because of which no row can be sent now."""
    eager: tuple[Callable[[], Any], ...] = ()
    """In eager mode, the runs of the jobs, for after the commit."""


def claim(
    table: str, database: str, most: str, numbers: str | None = None, *, changes: bool = False
) -> str:
    """Return the SQL that removes rows to send, and returns them; a rollback restores them.

    The transaction has the locks of these rows until it ends, so no other sender has them. A row
    that others send now is skipped. A row that follows another of its job or key is not taken.

    Args:
        table: the name of the outbox, quoted.
        database: `postgresql` or `sqlite`.
        most: the placeholder for the maximum number of rows.
        numbers: the placeholder for the list of rows, in its brackets; by default any are taken.
        changes: whether rows that add jobs are left out.
    """
    chosen = choose(table, database, most, numbers, changes=changes)
    delete = f"DELETE FROM {table} WHERE id IN"
    returning = f"RETURNING {_columns(database)}"
    if database == "postgresql":
        # In a WITH of its own, as a subselect with LIMIT may be evaluated more than once.
        locked = f"{chosen} FOR UPDATE SKIP LOCKED"
        return f"WITH chosen AS ({locked}) {delete} (SELECT id FROM chosen) {returning}"
    return f"{delete} ({chosen}) {returning}"


def choose(
    table: str, database: str, most: str, numbers: str | None = None, *, changes: bool = False
) -> str:
    """Return the SQL that finds the numbers of rows to send; arguments as for `claim`."""
    return (
        f"SELECT row_.id FROM {table} AS row_ WHERE row_.retry_us <= {NOW_US[database]} "
        f"AND {_follows_none(table)} "
        f"{f'AND row_.verb NOT IN {ADDING} ' if changes else ''}"
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


class ClaimedRow(NamedTuple):
    """A row that was claimed: its place in the table, and the change."""

    id: int
    written_us: int
    tries: int
    row: ChangeRow
    elapsed_us: int

    @classmethod
    def read(cls, columns: Sequence[Any]) -> ClaimedRow:
        """Convert what `claim` returned."""
        id, written_us, tries, *values, elapsed_us = columns
        row = ChangeRow(*values)
        return cls(id, written_us, tries, row._replace(body=bytes(row.body)), elapsed_us)

    def written(self) -> Written:
        """Return the row to send."""
        return Written(self.id, self.elapsed_us, self.row)

    def parent_ids(self) -> list[str]:
        """Return the ids of its parents, without the queues of those in other queues."""
        return [parent.rpartition("}")[2] for parent in self.row.parents.split()]

    def values(self) -> dict[str, Any]:
        """Return its columns, except those about its attempts."""
        return {"id": self.id, "written_us": self.written_us, **self.row._asdict()}


class Fared(NamedTuple):
    """The columns about the attempts of a row that is put back."""

    tries: int
    error: str
    pause_us: int | None
    """The time until it is tried again; None if a repeat cannot succeed."""


def send_claimed(
    sender: Sender,
    found: Sequence[ClaimedRow],
    put_back: Callable[[ClaimedRow, Fared], None],
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
    outcome = sender.send([one.written() for one in found])
    errors, down = outcome.errors, outcome.down
    if down is not None and len(errors) == len(found):
        return Round(len(found), 0, down, outcome.eager), False
    sent = len(found)
    for one in sorted(found):  # a parent is put back before its children look for it
        error = errors.get(one.id)
        waits = isinstance(error, JobNotFound) and is_pending(one.parent_ids())
        if isinstance(error, JobNotFound) and not waits:
            # Its parent may have been sent meanwhile, by this round or another sender.
            again = sender.send([one.written()]) if down is None else Sent({one.id: down}, down)
            error, down = again.errors.get(one.id), again.down
        if error is not None:
            sent -= 1
            put_back(one, _fared(one, error, is_final(error) and not waits))
    return Round(len(found), sent, down, outcome.eager), True


def _fared(one: ClaimedRow, error: BideError, final: bool) -> Fared:
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
        """Send rows by rounds; no error is raised, as the commit has succeeded.

        In eager mode the jobs run here, and raise their errors.
        """
        for done in self._rounds(round_of, numbers):
            for run in done.eager:
                run()

    def _rounds(
        self, round_of: Callable[[Sequence[int]], Round], numbers: Sequence[int]
    ) -> Iterator[Round]:
        if time.monotonic() < self._rests_until:
            return
        try:
            for i in range(0, len(numbers), BATCH):
                some = numbers[i : i + BATCH]
                yield (done := round_of(some))
                rounds = 1
                while done.claimed and not done.down and len(some) > done.claimed:
                    if rounds == FAST_ROUNDS and not done.eager:
                        break
                    yield (done := round_of(some))
                    rounds += 1
                if done.down:
                    self._rests_until = time.monotonic() + _REST
                    log.warning("the relay will send what this process could not: %s", done.down)
                    return
        except Exception as error:
            log.warning("the relay will send what this process could not: %s", told(error))


# -- the relay


class RelayStore(Protocol):
    """The database's side of a relay."""

    def round(self, changes: bool = False) -> Round:
        """Send up to `rows.BATCH` rows; with `changes`, none that add jobs."""
        raise NotImplementedError

    def sweep(self) -> int:
        """Remove old rows of `once`; return their number."""
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Return when a row was written, or the relay is stopped, or the time is over."""
        raise NotImplementedError


def relay(store: RelayStore, stopped: Callable[[], bool], burst: bool = False) -> int:
    """Send rows until the relay is stopped; with `burst`, until none can be sent.

    Returns:
        The number of rows that were sent.
    """
    sent, pause, swept_at = 0, _FIRST_REST, time.monotonic()
    trouble = ""
    while not stopped():
        problem: Exception | None
        try:
            done = store.round()
            if not done.claimed and time.monotonic() - swept_at > SWEEP_EVERY:
                swept_at = time.monotonic()
                store.sweep()
            problem = done.down
            if isinstance(problem, ServerFull):
                done = done._replace(sent=done.sent + store.round(changes=True).sent)
        except Exception as error:  # the database is down, or does not have the tables
            done, problem = Round(), error
        sent += done.sent
        for run in done.eager:
            run()
        if problem is not None:
            if burst:
                raise problem
            if (text := database_problem(problem) or told(problem)) != trouble:
                log.warning("the outbox cannot send now: %s", text)
                trouble = text
            store.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            continue
        if trouble:
            log.info("the outbox sends again")
        trouble, pause = "", _FIRST_REST
        if not done.claimed:
            if burst:
                break
            store.wait(POLL)
    return sent


def told(error: Exception) -> str:
    """Return what an error says, without the statement that SQLAlchemy adds."""
    return str(getattr(error, "orig", error)).strip()


def wait_for_notify(driver: Any, seconds: float, pause: Callable[[float], bool]) -> None:
    """Return when PostgreSQL has notified, the relay is stopped, or the time has passed.

    Args:
        driver: a connection of psycopg or psycopg2 that listens.
        seconds: the time.
        pause: waits so long, and returns whether the relay is stopped.
    """
    until = time.monotonic() + seconds
    ready: list[int] = []
    while not (ready or pause(0)) and (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([driver.fileno()], [], [], min(left, _HEED))
    if not ready:
        return
    if hasattr(driver, "poll"):  # psycopg2
        driver.poll()
        driver.notifies.clear()
    else:
        for _ in driver.notifies(timeout=0):
            pass


async def relay_in_thread(call: Callable[[], int], stop: threading.Event) -> int:
    """Run a relay that blocks beside the running event loop; a cancellation stops it.

    A second cancellation leaves its thread behind: the database may hang.
    """
    pool = ThreadPoolExecutor(1, "bide-outbox")
    thread = asyncio.get_running_loop().run_in_executor(pool, call)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([thread])
        raise
    finally:
        pool.shutdown(wait=thread.done())
        thread.cancel()  # a thread that was left behind reports to no closed event loop
