"""A Django of the tests' own, with a database in a file: threads are to see one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.conf import settings

from bide import Retry

LATER = Retry(backoff=[3600])
DATABASE = Path(tempfile.mkdtemp(prefix="django-")) / "db.sqlite3"

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(DATABASE)}},
        TASKS={
            "default": {"BACKEND": "bide.contrib.django.Backend", "QUEUES": ["default", "mail"]},
            "now": {
                "BACKEND": "bide.contrib.django.Backend",
                "QUEUES": [],
                "OPTIONS": {"on_commit": False, "retry": LATER, "prefix": "other"},
            },
            "once": {
                "BACKEND": "tests.contrib.django.backends.Own",
                "QUEUES": [],
                "OPTIONS": {"retry": 1},
            },
        },
        USE_TZ=True,
        TIME_ZONE="UTC",
    )
    django.setup()


@pytest.fixture(scope="session", autouse=True)
def database() -> Iterator[None]:
    from django.db import connection, connections

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
    yield
    connections.close_all()
    DATABASE.unlink(missing_ok=True)
    DATABASE.parent.rmdir()


@pytest.fixture(autouse=True)
def here(one_url: str) -> Iterator[str]:
    """All queues are on the tests' server."""
    from bide.client import config

    with config.override(url=one_url):
        yield one_url
    from bide.queue.core import leave_overridden

    leave_overridden()
