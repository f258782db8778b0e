"""The relay of a Django project's outbox."""

from __future__ import annotations

import asyncio

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from bide.contrib.django.outbox import Outbox, outbox
from bide.contrib.django.outbox.writing import DjangoStore
from tests.contrib.django.shop import Shop, create_tables, use
from tests.support.eventually import eventually
from tests.support.postgres import Postgres
from tests.support.relays import RelayTests, work


class TestRelay(RelayTests):
    store = DjangoStore

    def shop_on(self, server: Postgres, url: str) -> Shop:
        use("shop", f"postgresql:{server.directory}")
        create_tables("shop")
        return Shop("shop", url)


TASKS = {"BACKEND": "bide.contrib.django.Backend", "OPTIONS": {"OUTBOX": "shop"}}


def test_the_relay_of_the_project_serves_the_databases_of_tasks(shop: Shop) -> None:
    call_command("migrate", "bide_outbox", database="default", verbosity=0)
    shop.outbox.fast = False
    with shop.begin():
        shop.outbox.enqueue(shop.queue.task(work).options(job_id="b"), 1)
    with override_settings(TASKS={"default": TASKS}):
        assert outbox.relay(burst=True) == 1
        assert shop.ids() == {"b"}
        sends_beside_an_event_loop(shop, outbox)


def test_a_relay_beside_an_event_loop(shop: Shop) -> None:
    sends_beside_an_event_loop(shop, shop.outbox)


def sends_beside_an_event_loop(shop: Shop, its: Outbox) -> None:
    task = shop.queue.task(work)
    shop.outbox.fast = False

    def place() -> None:
        try:
            with shop.begin():
                shop.outbox.enqueue(task.options(job_id="a"), 1)
            eventually(lambda: not shop.rows())
        finally:
            connections.close_all()

    async def run() -> None:
        relay = asyncio.create_task(its.arelay())
        await asyncio.to_thread(place)
        relay.cancel()
        with pytest.raises(asyncio.CancelledError):
            await relay

    asyncio.run(run())
    assert "a" in shop.ids()
