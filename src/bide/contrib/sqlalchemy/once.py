"""`once`: a job's effect on the database happens once, however often the job runs.

The row of the job in `bide_done` is written in the job's own transaction. So it is there if, and
only if, the effect is. Two runs at the same moment: the second waits at the primary key until the
first has committed or rolled back.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from bide.contrib.sqlalchemy.tables import LONGEST_STEP, check_dialect
from bide.errors import BideError, PayloadError, UsageError
from bide.model.context import current_job
from bide.model.payload.serializers import pack, reason, unpack

Transaction = Session | sa.Connection


class Fenced(BideError):
    """A later run of the job has committed its effect already, so this run must stop.

    The worker of this run was paused for longer than its lease, and another worker has the job.
    """


class Once:
    """A block whose effect on the database happens once for each job: the result of `once`.

    If the block raises, the job has not happened: roll back, as `session.begin()` does.
    """

    first: bool
    """Whether this is the first run: do the work, and set `result`."""
    result: Any
    """The result: set it in the first run, and read it in each other run, as plain values."""

    def __init__(self, done: sa.Table, session: Any, step: str) -> None:
        if not isinstance(step, str) or len(step) > LONGEST_STEP:
            raise UsageError(
                f"step must be text of {LONGEST_STEP} characters at most, not {step!r}."
            )
        if hasattr(session, "registry"):  # a scoped session
            session = session()
        self._done: Final = done
        self._session: Final = session
        job = current_job()
        self._of: Final = {"queue": job.queue, "job_id": job.id, "step": step}
        self._token: Final = job.token
        self.result = None

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
        if stored.token > self._token:
            raise Fenced(
                f"A later run of the job {self._of['job_id']} has committed, so this run must not; "
                "let the error end it. Its worker was paused for longer than its lease."
            )
        self.result = None if stored.result is None else unpack(stored.result, "json")

    def _end(self, succeeded: bool, session: Transaction) -> None:
        if not self.first:
            return
        if not succeeded:
            self._forget(session)
        elif self.result is not None:
            try:
                packed = pack(self.result, "json")
            except Exception as error:
                self._forget(session)
                raise PayloadError(f"The result of once: {reason(error, 'json')}.") from None
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
