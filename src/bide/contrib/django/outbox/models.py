"""The tables of an outbox, as models of Django."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from bide.contrib.outbox.rows import LONGEST_STEP
from bide.contrib.outbox.sending import NOW_US


class NowUs(models.Func):  # type: ignore[misc]
    """The present moment by the clock of the database, in microseconds since 1970."""

    output_field = models.BigIntegerField()  # pyright: ignore[reportAssignmentType]

    def as_sql(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, list[Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the SQL, which has no parameters."""
        return NOW_US[connection.vendor], []


class Row(models.Model):  # type: ignore[misc]
    """A change of a job that was written and not sent yet."""

    id = models.BigAutoField(primary_key=True)
    prefix = models.CharField(max_length=128)
    queue = models.CharField(max_length=128)
    verb = models.CharField(max_length=16)
    job_id = models.CharField(max_length=128)
    dedup = models.CharField(max_length=64, null=True)
    due = models.CharField(max_length=20)
    priority = models.SmallIntegerField()
    durability = models.CharField(max_length=8)
    constraints = models.TextField()
    parents = models.TextField()
    body = models.BinaryField()
    written_us = models.BigIntegerField()
    tries = models.IntegerField(default=0)  # pyright: ignore[reportArgumentType]
    retry_us = models.BigIntegerField(null=True, default=0)  # pyright: ignore[reportArgumentType]
    error = models.TextField(null=True)

    class Meta:
        """The table has the columns of `bide.contrib.sqlalchemy`."""

        db_table = "bide_outbox"
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["job_id"], name="ix_bide_outbox_job"),
            models.Index(
                fields=["dedup"],
                name="ix_bide_outbox_dedup",
                condition=models.Q(dedup__isnull=False),
            ),
        ]


class Done(models.Model):  # type: ignore[misc]
    """A block of `once` that has happened: its job, the token of its run, and its result."""

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(max_length=128)
    job_id = models.CharField(max_length=128)
    step = models.CharField(max_length=LONGEST_STEP)
    token = models.BigIntegerField()
    result = models.BinaryField(null=True)
    done_us = models.BigIntegerField()

    class Meta:
        """Before Django 5.2 a model has no primary key of several columns."""

        db_table = "bide_done"
        default_permissions = ()
        indexes: ClassVar = [models.Index(fields=["done_us"], name="ix_bide_done_at")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["queue", "job_id", "step"], name="uq_bide_done_block")
        ]
