"""The relay's side of the database: rounds, sweeps, and the wait for PostgreSQL's NOTIFY."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.util import await_only

from bide.contrib.outbox.relay import Round, Store, relay, wait_for_notify
from bide.contrib.outbox.rounds import CHANNEL
from bide.contrib.outbox.sending import Sender
from bide.contrib.sqlalchemy.rounds import connect, round_of
from bide.contrib.sqlalchemy.tables import check_dialect, sweep

if TYPE_CHECKING:
    from bide.contrib.sqlalchemy.outbox import Outbox


class _Store(Store):
    """The common part of the blocking and the awaited store."""

    def __init__(self, outbox: Outbox, engine: sa.Engine, sender: Sender) -> None:
        check_dialect(engine.dialect)
        self._outbox: Final = outbox
        self._engine: Final = engine
        self._sender: Final = sender
        self._listening: sa.Connection | None = None

    def run(self, stopped: Callable[[], bool], burst: bool) -> int:
        """Run the relay."""
        try:
            return relay(self, stopped, burst)
        finally:
            self._sender.close()
            if self._listening is not None:
                self._listening.invalidate()  # so that the pool gives out none that listens
                self._listening.close()

    def round(self) -> Round:
        """Send up to `rows.BATCH` rows."""
        if self._engine.dialect.name == "postgresql" and self._listening is None:
            # Before it looks, so that no row is missed that is written after the look.
            self._listening = self._listen()
        return round_of(self._outbox.tables, self._engine, self._sender)

    def sweep(self) -> int:
        """Remove rows of `once` that are older than `keep`."""
        swept = 0
        while True:
            with connect(self._engine) as connection:
                found = connection.execute(sweep(self._outbox.tables, self._outbox.keep_us))
                connection.commit()
            if not found.rowcount:
                return swept
            swept += found.rowcount

    def _listen(self) -> sa.Connection:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        connection.exec_driver_sql(f"LISTEN {CHANNEL}")
        return connection

    def _drop_listener(self) -> None:
        """Listen over a new connection: this one has broken."""
        if self._listening is not None:
            self._listening.invalidate()
            self._listening.close()
            self._listening = None

    @property
    def _driver(self) -> Any:
        assert self._listening is not None
        return self._listening.connection.driver_connection


class BlockingStore(_Store):
    """The store of a relay in a thread."""

    def __init__(
        self, outbox: Outbox, engine: sa.Engine, sender: Sender, pause: Callable[[float], bool]
    ) -> None:
        """Set up; `pause` waits so long, and returns whether the relay is stopped."""
        super().__init__(outbox, engine, sender)
        self._pause: Final = pause

    def wait(self, seconds: float) -> None:
        """Return when a row was written, or the relay is stopped, or the time is over."""
        if self._listening is None:
            self._pause(seconds)
            return
        until = time.monotonic() + seconds
        try:
            wait_for_notify(self._driver, seconds, self._pause)
        except Exception:  # the database is down
            self._drop_listener()
            self._pause(max(0.0, until - time.monotonic()))


class AwaitedStore(_Store):
    """The store of a relay in an event loop; its methods run in a greenlet."""

    def __init__(self, outbox: Outbox, engine: sa.Engine, sender: Sender) -> None:
        super().__init__(outbox, engine, sender)
        self._written: Final = asyncio.Event()

    def wait(self, seconds: float) -> None:
        """Return when a row was written, or the relay is stopped, or the time is over."""
        if self._listening is not None and self._driver.is_closed():
            self._drop_listener()
        await_only(self._wait(seconds))

    def _listen(self) -> sa.Connection:
        connection = self._engine.connect()
        driver: Any = connection.connection.driver_connection
        if not hasattr(driver, "add_listener"):  # not asyncpg: it polls
            return connection
        await_only(driver.add_listener(CHANNEL, lambda *_: self._written.set()))
        return connection

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._written.wait()
        except TimeoutError:
            return
        self._written.clear()
