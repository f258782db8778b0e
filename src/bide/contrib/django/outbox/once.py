"""`once` in a transaction of Django: see `bide.contrib.outbox.once`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self

from django.db import connections, transaction

from bide.contrib.django.outbox.tables import checked_connection, model
from bide.contrib.outbox.once import OnceBase
from bide.contrib.outbox.rounds import NOW_US
from bide.errors import UsageError


class Once(OnceBase):
    """A transaction whose effect on the database happens once for each job: the result of `once`.

    It is a block of `transaction.atomic()`. If the block raises, it is rolled back, and the job has
    not happened.
    """

    def __init__(self, using: str, step: str) -> None:
        super().__init__(step)
        self._using: Final = using
        self._atomic: Any = None

    def __enter__(self) -> Self:
        """Look whether the job has happened; wait for another run that is about to commit.

        Raises:
            Fenced: a later run of this job has happened.
        """
        if self._atomic is not None:
            raise UsageError("A block of once cannot be entered twice; call outbox.once() again.")
        checked_connection(self._using)
        self._atomic = transaction.atomic(using=self._using)
        self._atomic.__enter__()
        try:
            self._begin()
        except BaseException as error:
            self._atomic.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Store the result, and commit."""
        if error is None:
            try:
                self._end()
            except BaseException as failed:
                self._atomic.__exit__(type(failed), failed, failed.__traceback__)
                raise
        self._atomic.__exit__(kind, error, traceback)

    def _begin(self) -> None:
        connection, done = connections[self._using], model("Done")
        table = connection.ops.quote_name(done._meta.db_table)
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {table} (queue, job_id, step, token, done_us) "
                f"VALUES (%s, %s, %s, %s, {NOW_US[connection.vendor]}) "
                "ON CONFLICT DO NOTHING RETURNING token",
                [*self._of.values(), self._token],
            )
            self.first = cursor.fetchone() is not None
        if not self.first:
            self._repeat(*self._mine().values_list("token", "result").get())

    def _end(self) -> None:
        if self.first and self.result is not None:
            self._mine().update(result=self._packed())

    def _mine(self) -> Any:
        return model("Done")._base_manager.using(self._using).filter(**self._of)
