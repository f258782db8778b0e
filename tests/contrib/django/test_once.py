"""`once` in a transaction of Django: an effect happens once, however often its job runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connections
from django.db.models import F

from bide import Queue, UsageError, Worker, current_job
from bide.contrib.django.outbox import Fenced
from bide.contrib.django.outbox.models import Done
from bide.contrib.django.outbox.writing import DjangoStore
from bide.errors import PayloadError
from tests.contrib.django.shop import Shop, use
from tests.support.eventually import eventually
from tests.support.outboxes import run_of


def work(order: int) -> None: ...


def charge(shop: Shop, order: int, amount: Any = "9.50") -> tuple[bool, Any]:
    """Run a job that inserts an order."""
    with shop.outbox.once() as once:
        if once.first:
            shop.place(order)
            once.result = {"charged": amount}
    return once.first, once.result


def test_a_repeat_gets_the_stored_result(shop: Shop) -> None:
    with run_of("a", 10):
        assert charge(shop, 1) == (True, {"charged": "9.50"})
    for _ in range(2):  # the commit of the second run succeeded, and its answer was lost
        with run_of("a", 11):
            assert charge(shop, 2) == (False, {"charged": "9.50"})
    with run_of("b", 12):
        assert charge(shop, 3, None)[0]
    assert shop.orders() == [1, 3]


def test_steps_of_one_job(shop: Shop) -> None:
    for token in (10, 11):
        with run_of("a", token), shop.begin():
            for step in ("charge", "mail"):
                with shop.outbox.once(step) as once:
                    assert once.first is (token == 10)
                assert once.result is None


def test_a_job_of_another_prefix_is_another_job(shop: Shop) -> None:
    for order, prefix in enumerate(("bide", "acme")):
        with run_of("a", 10, prefix):
            assert charge(shop, order)[0]
    assert [row.queue for row in shop.done()] == ["orders", "acme:{orders}"]


def test_an_older_run_is_fenced(shop: Shop) -> None:
    with run_of("a", 11):
        assert charge(shop, 1)[0]
    with run_of("a", 10), pytest.raises(Fenced, match="must not"):
        charge(shop, 2)
    assert shop.orders() == [1]
    assert not connections[shop.using].in_atomic_block


def test_a_rollback_leaves_nothing(shop: Shop) -> None:
    def fail() -> None:
        with shop.outbox.once() as once:
            assert once.first
            shop.place(1)
            raise ZeroDivisionError

    with run_of("a", 10), pytest.raises(ZeroDivisionError):
        fail()
    assert shop.done() == shop.orders() == []
    with run_of("a", 11):
        assert charge(shop, 1)[0]


def test_an_error_that_is_caught_inside_the_transaction_leaves_no_row(shop: Shop) -> None:
    with run_of("a", 10), shop.begin():
        with pytest.raises(IntegrityError):
            charge_twice(shop)
        shop.place(7)
    assert shop.done() == []
    assert shop.orders() == [7]


def charge_twice(shop: Shop) -> None:
    with shop.outbox.once():
        shop.place(1)
        shop.place(1)


def test_the_outbox_inside_of_once(shop: Shop) -> None:
    task = shop.queue.task(name="later")(work)
    for token in (10, 11):
        with run_of("a", token), shop.outbox.once() as once:
            if once.first:
                shop.outbox.enqueue(task.options(job_id="b", delay="1h"), 1)
    assert shop.ids() == {"b"}


def test_a_result_that_json_cannot_encode(shop: Shop) -> None:
    with run_of("a", 10), pytest.raises(PayloadError, match="result of once"):
        charge(shop, 1, object())
    assert shop.done() == shop.orders() == []
    assert not connections[shop.using].in_atomic_block


def test_mistakes(shop: Shop) -> None:
    with pytest.raises(UsageError, match=r"once\(\) was called outside of a job"):
        shop.outbox.once()
    with run_of("a", 1):
        with pytest.raises(UsageError, match="step must be"):
            shop.outbox.once("x" * 65)
        with shop.outbox.once() as once:
            pass
        with pytest.raises(UsageError, match="entered twice"), once:
            pass


@pytest.mark.parametrize("level", ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_two_runs_at_the_same_moment(shop: Shop, address: str, level: str, ends: str) -> None:
    """The second waits for the first; then it is the first, has the result, or must be repeated."""
    is_sqlite = shop.vendor == "sqlite"
    if is_sqlite and level != "SERIALIZABLE":
        pytest.skip("SQLite has no such level")
    if not is_sqlite:
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        use(shop.using, address, isolation_level=IsolationLevel[level])
    blocked, found = threading.Event(), []

    def second() -> None:
        try:
            with run_of("a", 11), shop.begin():
                if not is_sqlite:
                    shop.orders()  # the snapshot is from before the first run's commit
                blocked.set()
                with shop.outbox.once() as once:
                    if once.first:
                        shop.place(2)
                        once.result = 2
            found.append(once.result)
        except OperationalError as error:
            found.append(type(error).__name__)
        finally:
            connections.close_all()

    def first() -> threading.Thread:
        with run_of("a", 10), shop.outbox.once() as once:
            shop.place(1)
            once.result = 1
            thread = threading.Thread(target=second)
            thread.start()
            assert blocked.wait(30)
            if not is_sqlite:
                wait_for_lock(shop)
            threads.append(thread)
            if ends == "rolls back":
                raise ZeroDivisionError
        return thread

    threads: list[threading.Thread] = []
    if ends == "commits":
        first()
    else:
        with pytest.raises(ZeroDivisionError):
            first()
    threads[0].join(60)
    if ends == "commits":
        assert shop.orders() == [1]
        done = is_sqlite or level == "READ_COMMITTED"
        assert found == ([1] if done else ["OperationalError"])
    else:
        assert shop.orders() == [2]
        assert found == [2]


def wait_for_lock(shop: Shop) -> None:
    """Return when a session waits for another one's lock."""
    connection = connections[shop.using]

    def is_waiting() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            return bool(cursor.fetchone()[0])

    eventually(is_waiting)


def test_an_error_of_the_database_leaves_no_row(shop: Shop) -> None:
    def fail() -> None:
        with shop.outbox.once(), connections[shop.using].cursor() as cursor:
            cursor.execute("SELECT * FROM nothing")

    with run_of("a", 10), pytest.raises(DatabaseError):
        fail()
    assert shop.done() == []


def test_old_rows_are_swept_unless_their_job_may_come_again(shop: Shop) -> None:
    for id in ("old", "pending", "new"):
        with run_of(id, 1, "acme"), shop.outbox.once():
            pass
    old = Done.objects.using(shop.using).filter(job_id__in=["old", "pending"])
    old.update(done_us=F("done_us") - shop.outbox.keep_us - 1_000_000)
    shop.outbox.fast = False
    with shop.begin():
        queue = Queue("orders", url=shop.url, prefix="acme")
        shop.outbox.enqueue(queue.task(work).options(job_id="pending"), 1)
    sender: Any = None  # nothing is sent
    store = DjangoStore(shop.using, sender, shop.outbox.keep_us, threading.Event())
    assert store.sweep() == 1
    assert {row.job_id for row in shop.done()} == {"pending", "new"}
    assert store.sweep() == 0


def test_a_job_that_fails_after_its_commit_is_charged_once(shop: Shop) -> None:
    attempts = []

    @shop.queue.task(name="charge_once", retry=1)
    def charge_order(order: int) -> Any:
        try:
            found = charge(shop, order)
        finally:
            connections.close_all()
        attempts.append((current_job().token, found))
        if len(attempts) == 1:
            raise ConnectionError("the answer was lost")
        return found[1]

    with shop.begin():
        id = shop.outbox.enqueue(charge_order, 5)
    while shop.queue.fetch(id).state != "completed":
        Worker(queues=[shop.queue]).run(burst=True)
        shop.queue.promote_many([id])
    assert shop.queue.fetch(id).result == {"charged": "9.50"}
    assert [first for _, (first, _) in attempts] == [True, False]
    assert attempts[0][0] < attempts[1][0]
    assert shop.orders() == [5]
