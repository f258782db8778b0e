"""The relay of a Django project's outbox."""

from __future__ import annotations

import asyncio

import pytest
from django.db import connections

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


def test_a_relay_beside_an_event_loop(shop: Shop) -> None:
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
        relay = asyncio.create_task(shop.outbox.arelay())
        await asyncio.to_thread(place)
        relay.cancel()
        with pytest.raises(asyncio.CancelledError):
            await relay

    asyncio.run(run())
    assert shop.ids() == {"a"}
