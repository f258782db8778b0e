"""The tests of an outbox's relay, for each library that has the database.

The relay sends what was left: once, in order for each job, whoever else sends beside it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol, Self

import psycopg
import pytest
import redis

from bide import Queue, debounce
from bide.contrib.outbox import sending
from bide.contrib.outbox.rows import BATCH
from bide.contrib.outbox.sending import Round, Sender, Sent, Written
from bide.embedded import Server
from bide.errors import ServerFull, ServerUnavailable
from bide.testing import eager, isolated_registry
from tests.support.eventually import eventually
from tests.support.outboxes import Held
from tests.support.postgres import Postgres
from tests.support.users import as_role


def work(order: int) -> None: ...


class Shop(Protocol):
    """An order desk: a database of some library, an outbox and a queue."""

    url: str
    outbox: Any
    queue: Queue

    @property
    def vendor(self) -> str:
        """The kind of the database."""

    def at(self, url: str) -> Self:
        """The same desk with the queue of another server."""

    def writing(self) -> AbstractContextManager[Any]:
        """A transaction with the methods of the outbox that write, and `place` for an order."""

    def rows(self) -> list[Any]:
        """The rows of the outbox."""

    def set_retry_us(self, moment_us: int, *ids: str) -> None:
        """Change when rows are sent: those of these jobs, or all."""

    def age(self, by: timedelta) -> None:
        """As if the rows had been written earlier."""

    def ids(self) -> set[str]:
        """The ids of the jobs of the queue that have not ended."""

    def orders(self) -> list[int]:
        """The ids of the orders."""

    def send(self, sender: Sender) -> Round:
        """Send one round of rows."""

    def send_late(self, numbers: list[int]) -> None:
        """Do as the fast path, for rows that were written some time ago."""

    def relaying(self) -> AbstractContextManager[None]:
        """A relay in a thread."""

    def end_thread(self) -> None:
        """Close the connections that only this thread has to the database."""

    def disconnect(self) -> None:
        """Close the connections to a database that has stopped."""

    def close(self) -> None:
        """Close all connections."""


def write_flow(shop: Shop, change: Any, place: str, **options: Any) -> None:
    """A parent in a queue of this name, and its child in the queue of the shop."""
    parent = Queue(place, url=shop.url).task(work).options(job_id="parent", **options)
    change.enqueue(parent, 1)
    depends_on = "parent" if place == "orders" else f"{{{place}}}parent"
    change.enqueue(shop.queue.task(work).options(job_id="child", depends_on=depends_on), 1)


class RelayTests:
    """The tests; each library has the fixture `shop`, and adds what only it has."""

    def test_eager_mode_runs_a_job_after_the_commit(self, shop: Shop) -> None:
        """A job that writes would wait for the locks of the round that sends it."""

        def place(order: int) -> None:
            with shop.writing() as changes:
                changes.place(order)

        def refuse(order: int) -> None:
            raise ValueError(f"no order {order}")

        with isolated_registry(), eager():
            placing, refusing = (shop.queue.task(name=f.__name__)(f) for f in (place, refuse))
            with shop.writing() as changes:
                changes.enqueue(placing, 2)
            assert shop.orders() == [2]
            with pytest.raises(ValueError, match="no order 3"), shop.writing() as changes:
                changes.enqueue(refusing, 3)
            assert shop.rows() == []

    store: ClassVar[Any]
    """The store of its blocking relay."""

    def shop_on(self, server: Postgres, url: str) -> Shop:
        """A shop on an empty database."""
        raise NotImplementedError

    def test_it_sends_what_was_left_and_ends_in_a_burst(self, shop: Shop) -> None:
        task = shop.queue.task(work)
        shop.outbox.fast = False
        with shop.writing() as change:
            ids = [change.enqueue(task, i) for i in range(5)]
        assert shop.ids() == set()
        assert shop.outbox.stats()[:2] == (5, 0)
        assert shop.outbox.relay(burst=True) == 5
        assert shop.ids() == set(ids)
        assert shop.outbox.relay(burst=True) == 0
        assert shop.rows() == []
        assert shop.outbox.stats() == (0, 0, 0)

    def test_changes_of_one_job_are_sent_one_after_another(self, shop: Shop) -> None:
        task = shop.queue.task(work)
        shop.outbox.fast = False
        with shop.writing() as change:
            change.cancel(shop.queue, "a")  # of a job that there is not yet
            change.enqueue(task.options(job_id="a", delay="1h"), 1)
            change.enqueue(task.options(job_id="b", delay="1h"), 1)
            change.cancel(shop.queue, "b")
        sender = Sender(shop.url)
        assert shop.send(sender)[:2] == (2, 2)
        left = [(row.verb, row.job_id) for row in shop.rows()]
        assert left == [("enqueue", "a"), ("cancel", "b")]
        assert shop.send(sender)[:2] == (2, 2)
        sender.close()
        assert shop.queue.fetch("a").state == "delayed"
        assert shop.queue.fetch("b").state == "cancelled"

    def test_delay_and_expiry_of_a_row_that_waited(self, shop: Shop) -> None:
        """They count from the row; of a job with parents, from their end."""
        task = shop.queue.task(work)
        parent = task.enqueue(1)
        shop.outbox.fast = False
        with shop.writing() as change:
            for id, delay in (("over", None), ("late", "20m"), ("early", "2h")):
                change.enqueue(task.options(job_id=id, delay=delay, expires="1h"), 1)
            child = task.options(job_id="child", delay="2h", expires="1h", depends_on=parent)
            change.enqueue(child.options(run_if="ended"), 1)
        shop.age(timedelta(minutes=70))
        assert shop.outbox.relay(burst=True) == 4
        parent.cancel()
        hour, now = timedelta(hours=1), datetime.now(UTC)
        found = [shop.queue.fetch(id) for id in ("over", "late", "early", "child")]
        over, late, early, left = [job.expires - job.due for job in found if job.expires]
        assert over == timedelta(microseconds=1), "no worker may start it"
        assert timedelta(minutes=9) < late <= timedelta(minutes=10)
        assert early == left == hour
        assert found[2].due < now + hour
        assert found[3].due > now + 1.9 * hour

    def test_calls_of_one_dedup_key_are_sent_in_order(self, shop: Shop) -> None:
        task = shop.queue.task(work)
        shop.outbox.fast = False
        with shop.writing() as change:
            for i in range(3):
                change.enqueue(task.options(unique=debounce("1h")), i)
            change.enqueue(task.options(unique=debounce("1h", key="other")), 9)
        sender = Sender(shop.url)
        claimed = [shop.send(sender).claimed for _ in range(4)]
        sender.close()
        assert claimed == [2, 1, 1, 0]
        assert sorted(job.args for job in shop.queue.jobs("delayed")) == [(2,), (9,)]

    def test_the_fast_path_leaves_most_calls_of_one_key_to_the_relay(self, shop: Shop) -> None:
        """The commit waits for its rounds, and each sends one of these rows."""
        task = shop.queue.task(work)
        calls = range(sending.FAST_ROUNDS + 2)

        def call() -> None:
            with shop.writing() as change:
                for i in calls:
                    change.enqueue(task.options(unique=debounce("1h")), i)

        call()
        assert len(shop.rows()) == 2
        assert shop.outbox.relay(burst=True) == 2
        assert [job.args for job in shop.queue.jobs("delayed")] == [(calls[-1],)]
        with eager():  # there is no relay
            call()
        assert shop.rows() == []

    def test_no_relay_overtakes_another(self, shop: Shop) -> None:
        """While one relay sends an enqueue, no other sends the cancel that follows it."""
        if shop.vendor == "sqlite":
            pytest.skip("SQLite has one writer at a time")
        task = shop.queue.task(work)
        shop.outbox.fast = False
        with shop.writing() as change:
            change.enqueue(task.options(job_id="a", delay="1h"), 1)
        slow, quick = Held(shop.url), Sender(shop.url)

        def send_slowly() -> None:
            shop.send(slow)
            shop.end_thread()

        thread = threading.Thread(target=send_slowly)
        thread.start()
        assert slow.reached.wait(30)
        with shop.writing() as change:
            change.cancel(shop.queue, "a")
            change.enqueue(task.options(job_id="b"), 1)
        assert shop.send(quick)[:2] == (1, 1), "only the job b"
        assert shop.ids() == {"b"}
        slow.released.set()
        thread.join(30)
        assert shop.send(quick)[:2] == (1, 1)
        quick.close()
        slow.close()
        assert shop.queue.fetch("a").state == "cancelled"
        assert shop.rows() == []

    def test_a_fast_path_that_comes_late_sends_nothing(self, shop: Shop) -> None:
        """The relay has sent the row, and the job has ended and is gone: it does not return."""
        task = shop.queue.task(work)
        shop.outbox.fast = False
        with shop.writing() as change:
            change.enqueue(task.options(job_id="a"), 1)
        numbers = [row.id for row in shop.rows()]
        assert shop.outbox.relay(burst=True) == 1
        shop.queue.cancel("a")
        assert shop.queue.delete_many(["a"]) == ["ok"]
        shop.send_late(numbers)
        assert shop.queue.counts().waiting == 0

    def test_a_row_that_is_refused_stays_and_holds_back_what_follows_it(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        task = shop.queue.task(work)
        with shop.writing() as change:
            change.enqueue(task.options(job_id="a", depends_on="nobody"), 1)
            change.enqueue(task.options(job_id="b"), 1)
            change.enqueue(task.options(job_id="c"), 1)
            change.cancel(shop.queue, "a")
        assert shop.outbox.relay(burst=True) == 0
        assert shop.ids() == {"b", "c"}
        refused, waits = shop.rows()
        assert (refused.job_id, refused.tries, refused.retry_us) == ("a", 1, None)
        assert "JobNotFound: There is no job 'nobody'" in refused.error
        assert waits.verb == "cancel"
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "cannot be sent" in record.getMessage()
        stats = shop.outbox.stats()
        assert stats[:2] == (1, 1)
        assert 0 < stats.age < 60
        assert [row.job_id for row in shop.outbox.list_rows(refused=True)] == ["a"]
        listed = [(row.verb, row.refused) for row in shop.outbox.list_rows()]
        assert listed == [("enqueue", True), ("cancel", False)]
        assert shop.outbox.retry_rows([waits.id]) == 0
        assert shop.outbox.retry_rows() == 1
        assert shop.outbox.relay(burst=True) == 0
        assert shop.rows()[0].tries == 2
        assert shop.outbox.delete_rows([refused.id]) == 1
        assert shop.outbox.relay(burst=True) == 1
        assert shop.rows() == []

    @pytest.mark.parametrize("place", ["orders", "stock"])
    def test_a_child_waits_for_the_row_of_its_parent(self, shop: Shop, place: str) -> None:
        shop.outbox.fast = False
        with shop.writing() as change:
            write_flow(shop, change, place)
        shop.set_retry_us(2**52, "parent")  # as if another relay had the parent
        assert shop.outbox.relay(burst=True) == 0
        child = shop.rows()[1]
        assert child.retry_us
        assert child.error
        shop.set_retry_us(0)
        assert shop.outbox.relay(burst=True) == 2
        assert shop.queue.fetch("child").state == "blocked"

    def test_a_child_waits_for_a_parent_that_could_not_be_sent_beside_it(self, shop: Shop) -> None:
        shop.outbox.fast = False
        with shop.writing() as change:
            write_flow(shop, change, "stock", durability="replica")
        shop.set_retry_us(0, "parent")  # PostgreSQL's order of rows is that of their last change
        assert shop.outbox.relay(burst=True) == 0
        found = [(row.job_id, row.error[:20]) for row in shop.rows() if row.retry_us]
        assert found == [("parent", "DurabilityUnavailabl"), ("child", "JobNotFound: There i")]

    def test_a_child_whose_parent_another_relay_sends_meanwhile(self, shop: Shop) -> None:
        """The server did not have the parent yet, and the table has it no more."""
        if shop.vendor == "sqlite":
            pytest.skip("SQLite has one writer at a time")
        shop.outbox.fast = False
        with shop.writing() as change:
            write_flow(shop, change, "stock")
        shop.set_retry_us(2**52, "parent")
        other = Sender(shop.url)

        def send_parent() -> None:
            shop.set_retry_us(0, "parent")
            assert shop.send(other)[:2] == (1, 1)
            shop.end_thread()

        class Overtaken(Sender):
            def send(self, rows: Sequence[Written]) -> Sent:
                sent = super().send(rows)
                if sent.errors:
                    thread = threading.Thread(target=send_parent)
                    thread.start()
                    thread.join(30)
                return sent

        overtaken = Overtaken(shop.url)
        assert shop.send(overtaken)[:2] == (1, 1)
        overtaken.close()
        other.close()
        assert shop.queue.fetch("child").state == "blocked"

    @pytest.mark.parametrize("place", ["orders", "stock"])
    def test_a_flow_in_one_transaction(self, shop: Shop, place: str) -> None:
        """Rows are sent queue by queue, so a child may be sent before its parent."""
        with shop.writing() as change:
            change.enqueue(shop.queue.task(work), 1)
            write_flow(shop, change, place)
        assert shop.rows() == []
        assert shop.queue.fetch("child").state == "blocked"

    def test_a_queue_without_permission_stops_no_other(
        self, shop: Shop, direct: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        own = shop.at(as_role(shop.url, direct, "producer", "orders"))
        other = Queue("stock", url=own.url)
        own.outbox.fast = False
        with own.writing() as change:
            for _ in range(2):
                change.enqueue(other.task(work), 1)
            change.enqueue(own.queue.task(work).options(job_id="a"), 1)
        for sent in (1, 0):
            assert own.outbox.relay(burst=True) == sent
            errors = {(row.queue, row.error[:12]) for row in own.rows()}
            assert errors == {("stock", "AccessDenied")}
            assert all(row.retry_us for row in own.rows()), "they are tried again later"
            own.set_retry_us(0)
        assert shop.ids() == {"a"}
        assert [text[:50] for text in caplog.messages] == [
            "the rows of queue stock cannot be sent now: The se"
        ] * 2, "once by each relay"
        as_role(shop.url, direct, "producer", "orders", "stock")
        assert own.outbox.relay(burst=True) == 2
        own.close()

    def test_a_server_that_is_full_still_takes_changes(
        self, shop: Shop, tmp_server: Callable[..., Server]
    ) -> None:
        """Jobs that are cancelled free its memory, and their rows are behind others."""
        server = tmp_server()
        own = shop.at(server.url)
        task = own.queue.task(work)
        a, b = (task.options(delay="1h").enqueue(i) for i in range(2))
        other = Queue("stock", url=own.url)
        c = other.task(work).options(delay="1h").enqueue(1)
        with redis.Redis.from_url(server.url) as direct:
            direct.config_set("maxmemory", "1mb")
        with own.writing() as change:
            change.enqueue(task.options(job_id="new"), 1)
            change.cancel(own.queue, a.id)
            change.cancel(other, c.id)
        assert [row.job_id for row in own.rows()] == ["new"], "the fast path has sent the others"
        own.outbox.fast = False
        with own.writing() as change:
            for i in range(BATCH):
                change.enqueue(task, i)
            change.cancel(own.queue, b.id)
        with pytest.raises(ServerFull):
            own.outbox.relay(burst=True)
        assert [job.refresh().state for job in (a, b, c)] == ["cancelled"] * 3
        assert {row.verb for row in own.rows()} == {"enqueue"}
        own.close()

    def test_it_waits_for_the_server(
        self, shop: Shop, tmp_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "bide")
        server = tmp_server()
        own = shop.at(server.url)
        task = own.queue.task(work)
        server.kill()
        with own.writing() as change:
            change.place(1)
            change.enqueue(task.options(job_id="a"), 1)
        with pytest.raises(ServerUnavailable):
            own.outbox.relay(burst=True)
        with own.relaying():
            eventually(
                lambda: any("the outbox cannot send now" in text for text in caplog.messages)
            )
            server.restart()
            eventually(lambda: not own.rows())
        assert own.ids() == {"a"}
        assert "the outbox sends again" in caplog.messages
        own.close()

    def test_a_row_wakes_it(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        """PostgreSQL's NOTIFY does; elsewhere, the relay polls."""
        if shop.vendor == "postgresql":
            monkeypatch.setattr(sending, "POLL", 600.0)
        looked, wait = threading.Semaphore(0), self.store.wait

        def noted(store: Any, seconds: float) -> None:
            looked.release()
            wait(store, seconds)

        monkeypatch.setattr(self.store, "wait", noted)
        task = shop.queue.task(work)
        shop.outbox.fast = False
        with shop.relaying():
            assert looked.acquire(timeout=30)
            for i in range(3):
                with shop.writing() as change:
                    change.enqueue(task.options(job_id=f"job-{i}"), 1)
                eventually(lambda: not shop.rows())
        assert shop.ids() == {"job-0", "job-1", "job-2"}

    def test_postgresql_does_not_compile_its_claim(
        self, shop: Shop, request: pytest.FixtureRequest
    ) -> None:
        if shop.vendor != "postgresql":
            pytest.skip("only PostgreSQL compiles statements")
        server: Postgres = request.getfixturevalue("postgres")
        task = shop.queue.task(work)
        shop.outbox.fast = False
        with psycopg.connect(
            host=str(server.directory), user="bide", dbname="postgres", autocommit=True
        ) as direct:
            direct.execute("CREATE TABLE seen (jit text)")
            direct.execute(
                "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "INSERT INTO seen VALUES (current_setting('jit')); RETURN OLD; END $$"
            )
            direct.execute(
                "CREATE TRIGGER noting BEFORE DELETE ON bide_outbox "
                "FOR EACH ROW EXECUTE FUNCTION note()"
            )
            with shop.writing() as change:
                change.enqueue(task, 1)
            assert shop.outbox.relay(burst=True) == 1
            assert direct.execute("SELECT jit FROM seen").fetchall() == [("off",)]

    @pytest.mark.slow
    def test_two_relays_and_four_producers(self, shop: Shop) -> None:
        task = shop.queue.task(work)
        failed: list[Exception] = []

        def produce(begin: int) -> None:
            try:
                for i in range(begin, begin + 50):
                    with shop.writing() as change:
                        change.place(i)
                        change.enqueue(task.options(job_id=f"a{i}", delay="1h"), i)
                    with shop.writing() as change:
                        change.cancel(shop.queue, f"a{i}")
                        change.enqueue(task.options(job_id=f"b{i}", delay="1h"), i)
                    shop.outbox.fast = i % 3 > 0
            except Exception as error:
                failed.append(error)
            finally:
                shop.end_thread()

        with shop.relaying(), shop.relaying():
            threads = [threading.Thread(target=produce, args=(i * 1000,)) for i in range(1, 5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            eventually(lambda: not shop.rows(), within=60)
        assert not failed
        orders = shop.orders()
        assert len(orders) == 200
        for i in orders:
            assert shop.queue.fetch(f"a{i}").state == "cancelled"
            assert shop.queue.fetch(f"b{i}").state == "delayed"

    @pytest.mark.slow
    @pytest.mark.parametrize("server_too", [False, True])
    def test_it_waits_for_the_database(
        self,
        tmp_server: Callable[..., Server],
        caplog: pytest.LogCaptureFixture,
        postgres: Postgres,
        server_too: bool,
    ) -> None:
        caplog.set_level(logging.INFO, "bide")
        with Postgres() as own:
            server = tmp_server()
            shop = self.shop_on(own, server.url)
            task = shop.queue.task(work)
            shop.outbox.fast = False
            with shop.writing() as change:
                change.enqueue(task.options(job_id="before"), 1)
            with shop.relaying():
                eventually(lambda: shop.ids() == {"before"})
                if server_too:
                    server.kill()
                own.stop()
                eventually(
                    lambda: any("the outbox cannot send now" in text for text in caplog.messages)
                )
                own.start()
                shop.disconnect()
                with shop.writing() as change:
                    change.enqueue(task.options(job_id="a"), 1)
                if server_too:
                    eventually(
                        lambda: any("Cannot reach the server" in text for text in caplog.messages)
                    )
                    server.restart()
                eventually(lambda: "a" in shop.ids())
                eventually(lambda: not shop.rows())
            shop.disconnect()
            shop.close()
