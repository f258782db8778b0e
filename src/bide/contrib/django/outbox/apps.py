"""The application for INSTALLED_APPS: the tables of the outbox, and `manage.py bide_relay`."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):  # type: ignore[misc]
    """The outbox, as an application of Django."""

    name = "bide.contrib.django.outbox"
    label = "bide_outbox"
    verbose_name = "bide's outbox"
    default_auto_field = "django.db.models.BigAutoField"  # pyright: ignore[reportAssignmentType]
