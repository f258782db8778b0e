"""Creates the tables of the outbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    """The tables `bide_outbox` and `bide_done`."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="Row",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("prefix", models.CharField(max_length=128)),
                ("queue", models.CharField(max_length=128)),
                ("verb", models.CharField(max_length=16)),
                ("job_id", models.CharField(max_length=128)),
                ("dedup", models.CharField(max_length=64, null=True)),
                ("due", models.CharField(max_length=20)),
                ("priority", models.SmallIntegerField()),
                ("durability", models.CharField(max_length=8)),
                ("constraints", models.TextField()),
                ("parents", models.TextField()),
                ("body", models.BinaryField()),
                ("written_us", models.BigIntegerField()),
                ("tries", models.IntegerField(default=0)),  # pyright: ignore[reportArgumentType]
                ("retry_us", models.BigIntegerField(default=0, null=True)),  # pyright: ignore[reportArgumentType]
                ("error", models.TextField(null=True)),
            ],
            options={
                "db_table": "bide_outbox",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["job_id"], name="ix_bide_outbox_job"),
                    models.Index(
                        fields=["dedup"],
                        name="ix_bide_outbox_dedup",
                        condition=models.Q(dedup__isnull=False),
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Done",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("queue", models.CharField(max_length=128)),
                ("job_id", models.CharField(max_length=128)),
                ("step", models.CharField(max_length=64)),
                ("token", models.BigIntegerField()),
                ("result", models.BinaryField(null=True)),
                ("done_us", models.BigIntegerField()),
            ],
            options={
                "db_table": "bide_done",
                "default_permissions": (),
                "indexes": [models.Index(fields=["done_us"], name="ix_bide_done_at")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=["queue", "job_id", "step"], name="uq_bide_done_block"
                    )
                ],
            },
        ),
    ]
