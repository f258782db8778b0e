"""What is written in a transaction of Django is sent after its commit, and only then."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import TestCase, override_settings

from bide import AsyncQueue, DelayQueue, Queue, Unique, UsageError
from bide.contrib.django.outbox import Outbox, outbox
from bide.contrib.django.running import hint
from bide.errors import PayloadError
from bide.testing import isolated_registry
from tests.contrib.django import jobs
from tests.contrib.django.shop import Shop, use
from tests.support.outboxes import ROOT

signals: Any = importlib.import_module(f"{jobs.package}.signals")


def cancel_unpaid(order: int) -> None: ...


def test_a_commit_sends_the_job_and_removes_the_row(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with shop.begin():
        shop.place(1)
        id = shop.outbox.enqueue(task.options(delay="30m", job_id="unpaid-1"), 1)
        assert not shop.ids()
        assert len(shop.rows()) == 1
    assert id == "unpaid-1"
    job = shop.queue.fetch(id)
    assert job.state == "delayed"
    assert (job.args, job.kwargs) == ((1,), {})
    assert shop.rows() == []


def test_a_rollback_leaves_nothing(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with suppress(ZeroDivisionError), shop.begin():
        shop.place(1)
        shop.outbox.enqueue(task, 1)
        raise ZeroDivisionError
    with shop.begin():
        shop.outbox.enqueue(task, 1)
        transaction.set_rollback(True, using=shop.using)
    with shop.begin():
        shop.place(2)
    assert shop.orders() == [2]
    assert shop.ids() == set()
    assert shop.rows() == []


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with shop.begin():
        shop.outbox.enqueue(task.options(job_id="kept"), 1)
        with suppress(ZeroDivisionError), shop.begin():
            shop.outbox.enqueue(task.options(job_id="lost"), 2)
            raise ZeroDivisionError
        with shop.begin():
            shop.outbox.enqueue(task.options(job_id="inner"), 3)
        shop.outbox.enqueue(task.options(job_id="after"), 4)
        assert shop.ids() == set(), "a released savepoint has not committed"
    assert shop.ids() == {"kept", "inner", "after"}
    assert shop.rows() == []


def test_changes_of_one_job_in_several_savepoints_are_sent_in_order(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with shop.begin():
        shop.outbox.enqueue(task.options(job_id="other"), 1)
        with shop.begin():
            shop.outbox.enqueue(task.options(job_id="a", delay="1h"), 1)
        shop.outbox.cancel(shop.queue, "a")
    assert shop.queue.fetch("a").state == "cancelled"
    assert shop.rows() == []


def test_rows_of_one_transaction_are_sent_together(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    with shop.begin():
        for i in range(3):
            shop.outbox.enqueue(task.options(job_id=f"job-{i}"), i)
        assert len(connections[shop.using].run_on_commit) == 1
    assert shop.ids() == {"job-0", "job-1", "job-2"}


def test_all_changes_of_jobs(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    prepared = [task.options(job_id=f"job-{i}", delay="1h").prepare(i) for i in range(4)]
    with shop.begin():
        ids = shop.outbox.enqueue_many(shop.queue, prepared)
        assert shop.outbox.enqueue_many(shop.queue, []) == []
    assert ids == [f"job-{i}" for i in range(4)]
    with shop.begin():
        shop.outbox.cancel(shop.queue, "job-0")
        shop.outbox.reschedule(shop.queue, "job-1", delay="2h")
        shop.outbox.promote(shop.queue, "job-2")
        shop.outbox.cancel(shop.queue, "job-3", running=False)
        shop.outbox.cancel(shop.queue, "unknown")
    found = shop.queue.fetch_many(ids)
    assert [job and job.state for job in found] == ["cancelled", "delayed", "waiting", "cancelled"]
    assert found[1] is not None
    assert found[1].due - datetime.now(UTC) > timedelta(hours=1.9)
    assert shop.rows() == []


def test_a_batch_and_an_item_of_data(shop: Shop) -> None:
    data = DelayQueue("data", url=shop.url)
    with shop.begin():
        for n in range(3):
            shop.outbox.batch(shop.queue, "news", n, into="mail:digest", quiet="30s")
        shop.outbox.push(data, {"order": 7}, delay="1h", id="seven")
    (job,) = shop.queue.jobs("delayed")
    assert job.args == ([0, 1, 2],)
    (item,) = data.peek()
    assert (item.id, item.data) == ("seven", {"order": 7})
    assert shop.rows() == []


def test_a_task_of_an_awaited_queue(shop: Shop) -> None:
    task = AsyncQueue("orders", url=shop.url).task(name="awaited-django")(cancel_unpaid)
    with shop.begin():
        shop.outbox.enqueue(task.options(job_id="a"), 1)
    assert shop.ids() == {"a"}


def test_a_mistake_raises_where_the_row_is_written(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    made: Any = shop.outbox
    with shop.begin():
        with pytest.raises(UsageError, match="takes"):
            made.enqueue(task, 1, 2, 3)
        with pytest.raises(PayloadError):
            made.enqueue(task, object())
        with pytest.raises(UsageError, match=r"decorate the function with @queue\.task"):
            made.enqueue(cancel_unpaid, 1)
        with pytest.raises(UsageError, match="on_conflict"):
            made.enqueue(task.options(unique=Unique(on_conflict="reject")), 1)
        with pytest.raises(UsageError, match="needs a DelayQueue"):
            made.push(shop.queue, 1)
        for call in (made.cancel, made.promote):
            with pytest.raises(UsageError, match="needs a Queue"):
                call("orders", "a")
        with pytest.raises(UsageError, match="needs a Queue"):
            made.batch("orders", "key", 1, into="mail:digest")
        with pytest.raises(UsageError, match="An id is text"):
            made.cancel(shop.queue, 7)
        with pytest.raises(UsageError, match="either delay= or at="):
            made.reschedule(shop.queue, "a", "1h", datetime.now(UTC))
        with pytest.raises(UsageError, match="Give delay= or at="):
            made.reschedule(shop.queue, "a")
        with pytest.raises(UsageError, match="on another server"):
            made.cancel(Queue("orders", url="redis://127.0.0.2:1"), "a")
        with pytest.raises(UsageError, match='set "outbox": True'):
            made.enqueue(jobs.add, 1)
        with pytest.raises(UsageError, match="inside of a transaction"):
            made.relay(burst=True)
    with pytest.raises(UsageError, match=r"`with transaction\.atomic\(using='shop'\):`"):
        made.enqueue(task, 1)
    with pytest.raises(UsageError, match="DATABASES of the settings has no 'shopp'"):
        Outbox("shopp").enqueue(task, 1)
    with pytest.raises(UsageError, match="alias of a database"):
        Outbox(task)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="keep"):
        Outbox(keep="soon")
    assert shop.rows() == []


def test_another_database_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections[shop.using], "vendor", "mysql")
    with pytest.raises(UsageError, match="PostgreSQL and SQLite in Django, not MySQL or MariaDB"):
        shop.outbox.enqueue(shop.queue.task(cancel_unpaid), 1)


def test_a_delay_counts_from_the_row(shop: Shop) -> None:
    """By the clock of the database: the row is made two minutes old, as a relay finds it."""
    from django.db.models import F

    task = shop.queue.task(cancel_unpaid)
    shop.outbox.fast = False
    with shop.begin():
        late = shop.outbox.enqueue(task.options(delay="10m"), 1)
        past = shop.outbox.enqueue(task.options(delay="1m"), 1)
        shop.outbox.enqueue(task.options(job_id="moved"), 1)
        at = shop.outbox.enqueue(task.options(at=datetime(2100, 1, 1, tzinfo=UTC)), 1)
    with shop.begin():
        shop.outbox.reschedule(shop.queue, "moved", delay="10m")
    shop.change_rows(written_us=F("written_us") - 120_000_000)
    assert shop.outbox.relay(burst=True) == 5
    begun = shop.queue.counts().now_us / 1e6
    for id in (late, "moved"):
        assert 470 < shop.queue.fetch(id).due.timestamp() - begun < 480.1
    assert shop.queue.fetch(past).state == "waiting"
    assert shop.queue.fetch(at).due == datetime(2100, 1, 1, tzinfo=UTC)


def test_without_a_server_the_commit_succeeds_and_the_rows_stay(shop: Shop) -> None:
    dead = Shop(shop.using, "redis://127.0.0.1:1")
    task = dead.queue.task(cancel_unpaid)
    with dead.begin():
        dead.place(1)
        dead.outbox.enqueue(task.options(job_id="a"), 1)
    with dead.begin():
        dead.outbox.cancel(dead.queue, "a")
    assert shop.orders() == [1]
    assert [(row.verb, row.tries, row.error) for row in shop.rows()] == [
        ("enqueue", 0, None),
        ("cancel", 0, None),
    ]


def test_a_transaction_without_atomic_leaves_its_rows_to_the_relay(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)
    transaction.set_autocommit(False, using=shop.using)
    try:
        shop.outbox.enqueue(task.options(job_id="a"), 1)
        with pytest.raises(UsageError, match="inside of a transaction"):
            shop.outbox.relay(burst=True)
        transaction.commit(using=shop.using)
        shop.outbox.enqueue(task.options(job_id="b"), 1)
        transaction.rollback(using=shop.using)
    finally:
        transaction.set_autocommit(True, using=shop.using)
    assert [row.job_id for row in shop.rows()] == ["a"]
    assert shop.outbox.relay(burst=True) == 1
    assert shop.ids() == {"a"}


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_a_database_with_another_isolation_level(shop: Shop, address: str, level: str) -> None:
    if shop.vendor == "sqlite":
        pytest.skip("SQLite has no such level")
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    use(shop.using, address, isolation_level=IsolationLevel[level])
    seen = []

    def note(execute: Any, sql: str, *args: Any) -> Any:
        seen.append(sql)
        return execute(sql, *args)

    with connections[shop.using].execute_wrapper(note), shop.begin():
        shop.outbox.enqueue(shop.queue.task(cancel_unpaid).options(job_id="a"), 1)
    assert shop.ids() == {"a"}
    assert shop.rows() == []
    assert any("READ COMMITTED" in sql for sql in seen)


def test_a_test_case_sends_when_it_captures_the_commit(shop: Shop) -> None:
    task = shop.queue.task(cancel_unpaid)

    class Case(TestCase):  # type: ignore[misc]
        databases = frozenset({shop.using})

        def test_it(self) -> None:
            with self.captureOnCommitCallbacks(using=shop.using):
                with shop.begin():
                    shop.outbox.enqueue(task.options(job_id="left"), 1)
                waits = hint()
            assert "1 enqueue waits for the commit" in waits
            captured = self.captureOnCommitCallbacks(using=shop.using, execute=True)
            with captured, shop.begin():
                shop.outbox.enqueue(task.options(job_id="sent"), 1)
            assert shop.ids() == {"sent"}
            assert [row.job_id for row in shop.rows()] == ["left"]
            assert shop.outbox.relay(burst=True) == 1

    Case("test_it").debug()
    assert shop.ids() == {"sent", "left"}
    assert shop.rows() == []


def test_two_threads_do_not_wait_for_each_other(shop: Shop) -> None:
    """The fast path of one transaction ends while another one is open."""
    if shop.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    task = shop.queue.task(cancel_unpaid)

    def quick() -> None:
        try:
            with shop.begin():
                shop.outbox.enqueue(task.options(job_id="quick"), 1)
        finally:
            connections.close_all()

    with shop.begin():
        shop.outbox.enqueue(task.options(job_id="slow"), 1)
        thread = threading.Thread(target=quick)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        assert shop.ids() == {"quick"}
    assert shop.ids() == {"quick", "slow"}


def test_the_migrations_are_those_of_the_models(shop: Shop) -> None:
    from django.core.management import call_command

    call_command("makemigrations", "bide_outbox", check=True, dry_run=True, verbosity=0)


# -- django.tasks


@contextmanager
def backend_of(shop: Shop, **options: Any) -> Iterator[None]:
    """Settings whose tasks are written into the shop's outbox; their queues are forgotten after."""
    its = {"OUTBOX": shop.using, **options}
    made = {"BACKEND": "bide.contrib.django.Backend", "QUEUES": ["default", "mail"], "OPTIONS": its}
    with isolated_registry(), override_settings(TASKS={"default": made, "now": made}):
        yield


def test_tasks_of_django_are_rows_of_the_transaction(shop: Shop) -> None:
    queue = Queue("default")
    with backend_of(shop):
        with suppress(ZeroDivisionError), shop.begin():
            jobs.add.enqueue(1)
            raise ZeroDivisionError
        assert shop.rows() == []
        with shop.begin():
            shop.place(1)
            result = jobs.add.enqueue(2, b=3)
            at = datetime.now(UTC) + timedelta(hours=1)
            jobs.add.using(run_after=at).enqueue(7)
            assert [row.verb for row in shop.rows()] == ["enqueue", "enqueue"]
            assert queue.counts().waiting == 0
        assert (queue.counts().waiting, queue.counts().delayed) == (1, 1)
        assert jobs.add.get_result(result.id).args == [2]
        alone = jobs.add.enqueue(4)
        assert jobs.add.get_result(alone.id).status == "READY"
    assert shop.rows() == []
    queue.close()


def test_a_task_of_django_waits_for_the_server_as_a_row(shop: Shop) -> None:
    with backend_of(shop, url="redis://127.0.0.1:1"):
        jobs.add.enqueue(1)
        assert [row.queue for row in shop.rows()] == ["default"]


def test_signals_are_sent_at_the_commit(shop: Shop) -> None:
    seen: list[str] = []

    def note(sender: Any, task_result: Any, **more: Any) -> None:
        seen.append(task_result.id)

    signals.task_enqueued.connect(note)
    try:
        with backend_of(shop), shop.begin():
            result = jobs.add.enqueue(1)
            assert seen == []
        assert seen == [result.id]
    finally:
        signals.task_enqueued.disconnect(note)


def test_mistakes_in_the_settings(shop: Shop) -> None:
    from django.core.exceptions import ImproperlyConfigured

    from bide.contrib.django import Backend

    def made(**options: Any) -> Any:
        return Backend("default", {"OPTIONS": options})

    with pytest.raises(ImproperlyConfigured, match="remove on_commit"):
        made(outbox=True, on_commit=False)
    with pytest.raises(ImproperlyConfigured, match="has the outbox 1"):
        made(OUTBOX=1)
    assert made(outbox=True)._outbox.using == "default"
    assert made(outbox=False, on_commit=False)._outbox is None
    (error,) = made(outbox="shopp").check()
    assert "has no 'shopp'" in error.msg
    (error,) = made(outbox=True, url="redis://127.0.0.2:1").check()
    assert "on another server" in error.msg
    assert [*made(outbox=True).check()] == []
    assert repr(outbox) == "Outbox('default')"


def test_without_the_application_the_error_names_it(one_url: str) -> None:
    code = """
import django
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["bide.contrib.django"],
)
from bide import Queue
from bide.contrib.django.outbox import outbox
django.setup()
try:
    outbox.cancel(Queue("orders"), "a")
except Exception as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "BIDE_URL": one_url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert 'add "bide.contrib.django.outbox" to INSTALLED_APPS' in done.stdout
