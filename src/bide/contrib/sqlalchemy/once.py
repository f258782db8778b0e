"""`once` on a session or connection of SQLAlchemy: see `bide.contrib.outbox.once`."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from bide.contrib.outbox.once import OnceBase
from bide.contrib.sqlalchemy.tables import check_dialect
from bide.errors import PayloadError, UsageError

Transaction = Session | sa.Connection


class Once(OnceBase):
    """A block whose effect on the database happens once for each job: the result of `once`.

    If the block raises, the job has not happened: roll back, as `session.begin()` does.
    """

    def __init__(self, done: sa.Table, session: Any, step: str) -> None:
        super().__init__(step)
        if hasattr(session, "registry"):  # a scoped session
            session = session()
        self._done: Final = done
        self._session: Final = session

    def __enter__(self) -> Self:
        """Look whether the job has happened; wait for another run that is about to commit.

        Raises:
            Fenced: a later run of this job has happened.
        """
        if not isinstance(self._session, Session | sa.Connection):
            raise UsageError("With an async session, write `async with outbox.once(session)`.")
        self._begin(self._session)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Store the result, in the same transaction."""
        self._end(error is None, self._session)

    async def __aenter__(self) -> Self:
        """Do as `__enter__`, with an async session."""
        if isinstance(self._session, Session | sa.Connection):
            raise UsageError("With a session that blocks, write `with outbox.once(session)`.")
        await self._session.run_sync(self._begin)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Store the result, in the same transaction."""
        await self._session.run_sync(partial(self._end, error is None))

    def _begin(self, session: Transaction) -> None:
        done, values = self._done, {**self._of, "token": self._token}
        bind = session.get_bind(clause=done) if isinstance(session, Session) else session
        check_dialect(bind.dialect)
        stored_row = sa.select(done.c.token, done.c.result).where(self._is_mine)
        if bind.dialect.name == "mariadb":
            try:
                session.execute(sa.insert(done).values(values))
                self.first = True
            except IntegrityError:  # InnoDB undoes only the statement
                self.first = False
            stored_row = stored_row.with_for_update(read=True)  # not as of the transaction's start
        else:
            make = postgresql.insert if bind.dialect.name == "postgresql" else sqlite.insert
            insert = make(done).values(values).on_conflict_do_nothing().returning(done.c.token)
            self.first = session.execute(insert).first() is not None
        if self.first:
            return
        stored = session.execute(stored_row).one()
        self._repeat(stored.token, stored.result)

    def _end(self, succeeded: bool, session: Transaction) -> None:
        if not self.first:
            return
        if not succeeded:
            self._forget(session)
        elif self.result is not None:
            try:
                packed = self._packed()
            except PayloadError:
                self._forget(session)
                raise
            session.execute(sa.update(self._done).where(self._is_mine).values(result=packed))

    @property
    def _is_mine(self) -> sa.ColumnElement[bool]:
        return sa.and_(*(self._done.c[name] == value for name, value in self._of.items()))

    def _forget(self, session: Transaction) -> None:
        """Remove the row, in case the caller catches the error and commits what there is."""
        if isinstance(session, Session) and not session.is_active:
            return  # a flush has failed, and only a rollback is possible
        try:
            session.execute(sa.delete(self._done).where(self._is_mine))
        except DBAPIError:  # the transaction has failed, and cannot commit
            return
