"""A Django of the tests' own, with a database in a file: threads are to see one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.conf import settings

from bide import Retry
from tests.support.postgres import Postgres

LATER = Retry(backoff=[3600])
SOON = Retry(1, backoff=[600])
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
                "OPTIONS": {"retry": SOON},
            },
        },
        INSTALLED_APPS=["bide.contrib.django", "bide.contrib.django.outbox"],
        USE_TZ=True,
        TIME_ZONE="UTC",
    )
    django.setup()

from tests.contrib.django import shop as shops  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def database() -> Iterator[None]:
    from django.db import connection, connections

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
    yield
    connections.close_all()
    DATABASE.unlink(missing_ok=True)
    DATABASE.parent.rmdir()


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/shop.db"
    server: Postgres = request.getfixturevalue("postgres")
    server.empty()
    return f"postgresql:{server.directory}"


@pytest.fixture
def shop(address: str, one_url: str) -> Iterator[shops.Shop]:
    """The database's alias is not the default one."""
    shops.use("shop", address)
    shops.create_tables("shop")
    shop = shops.Shop("shop", one_url)
    yield shop
    shop.close()


@pytest.fixture(autouse=True)
def here(
    request: pytest.FixtureRequest, one_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """All queues are on the tests' server; those of a shop say so themselves."""
    from bide.client import config

    if {"shop", "tmp_server"} & {*request.fixturenames}:
        monkeypatch.setenv("BIDE_URL", one_url)
        yield one_url
        return
    with config.override(url=one_url):
        yield one_url
    from bide.queue.binding import leave_overridden

    leave_overridden()
