"""Tasks of Django under test: what `bide.testing` sees of them, and how it runs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import date, timedelta

import pytest
from django.db import connection, transaction
from django.test import RequestFactory, TestCase, override_settings
from django.utils import timezone

from bide import JobFailed, State, UsageError, add_middleware
from bide.contrib.django import DatabaseConnections, on_commit
from bide.contrib.django.dashboard import dashboard
from bide.testing import TestBed, eager, isolated_registry
from tests.contrib.django import jobs

NAME = "tests.contrib.django.jobs"


@pytest.fixture
def bed(one_url: str) -> Iterator[TestBed]:
    jobs.seen.clear()
    with TestBed(one_url) as bed:
        yield bed


def test_a_task_was_enqueued(bed: TestBed) -> None:
    bed.assert_not_enqueued(jobs.add)
    result = jobs.add.enqueue(2, b=3)
    job = bed.assert_enqueued(jobs.add, 2, b=3, count=1, queue="default", delay=0)
    assert result.id == f"default:{job.id}"
    bed.assert_enqueued(jobs.add)
    bed.assert_enqueued(jobs.add, a=2, b=3)
    bed.assert_not_enqueued(jobs.add, 1)
    bed.assert_not_enqueued(jobs.on)
    assert [job.call for job in bed.enqueued(jobs.add)] == [f"{NAME}:add(2, b=3)"]
    assert bed.jobs(jobs.on) == []
    with pytest.raises(AssertionError, match=rf"{NAME}:add\(2, b=3\), waiting, due now, on def"):
        bed.assert_not_enqueued(jobs.add)


def test_a_variant_of_a_task_is_the_task(bed: TestBed) -> None:
    at = timezone.now() + timedelta(hours=2)
    variant = jobs.on.using(run_after=at, queue_name="default")
    variant.enqueue("2030-01-02")
    bed.assert_enqueued(jobs.on, date(2030, 1, 2), at=at, queue="default")
    bed.assert_enqueued(variant, delay="2h")


def test_a_context_is_no_argument(bed: TestBed) -> None:
    jobs.knows.enqueue(day="2030-01-02")
    bed.assert_enqueued(jobs.knows, day=date(2030, 1, 2))
    bed.assert_enqueued(jobs.knows, "2030-01-02")
    bed.assert_not_enqueued(jobs.knows, day=date(2030, 1, 3))


def test_it_runs(bed: TestBed) -> None:
    result = jobs.add.enqueue(2, b=3)
    later = jobs.knows.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(
        day="2030-01-02"
    )
    assert [job.result for job in bed.run()] == [5]
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 5)
    later.refresh()
    assert later.status == "READY"
    bed.run(until="1h")
    later.refresh()
    assert later.return_value == {"id": later.id, "attempt": 1, "year": 2030}


@pytest.mark.anyio
async def test_also_under_an_event_loop(bed: TestBed) -> None:
    result = await jobs.count.aenqueue()
    bed.assert_enqueued(jobs.count)
    await bed.arun()
    await result.arefresh()
    assert result.return_value == 0


def test_a_task_of_another_alias_and_its_failure(bed: TestBed) -> None:
    result = jobs.fails.enqueue("no")
    bed.assert_enqueued(jobs.fails, "no", queue="default")
    assert [job.state for job in bed.run()] == [State.DELAYED]
    with pytest.raises(JobFailed, match="ValueError: no"):
        bed.run(until="1h")
    result.refresh()
    assert result.status == "FAILED"
    assert result.errors[-1].exception_class is ValueError


def test_eager_mode_runs_it_where_it_is_enqueued(bed: TestBed) -> None:
    with eager() as mode:
        result = jobs.add.enqueue(2)
        result.refresh()
        assert result.return_value == 3
        with pytest.raises(ValueError, match="no"):
            jobs.fails.enqueue("no")
    assert [job.call for job in mode.jobs] == [f"{NAME}:add(2)", f"{NAME}:fails('no')"]
    bed.assert_not_enqueued(jobs.add)


def test_the_dashboard_shows_the_jobs_of_each_bed(one_url: str) -> None:
    def shown() -> str:
        request = RequestFactory().get("/jobs/api/queues", SERVER_NAME="testserver")
        response = dashboard(request, "api/queues", role=lambda request: "viewer")
        return str(response.content)

    with override_settings(ALLOWED_HOSTS=["testserver"]):
        for _ in range(2):
            with TestBed(one_url):
                assert '"default"' not in shown()
                jobs.add.enqueue(2)
                assert '"default"' in shown()


class InATransaction(TestCase):  # type: ignore[misc]
    """What Django's own tests do: a transaction around each, which is rolled back."""

    bed: TestBed

    @pytest.fixture(autouse=True)
    def _bed(self, bed: TestBed) -> None:
        self.bed = bed

    def test_what_waits_for_the_commit_is_named(self) -> None:
        jobs.add.enqueue(1)
        with pytest.raises(AssertionError) as info:
            self.bed.assert_enqueued(jobs.add)
        assert str(info.value).splitlines()[1:] == [
            "Nothing is enqueued.",
            "1 enqueue waits for the commit of a transaction. A TestCase never commits: make the "
            "call inside of `with self.captureOnCommitCallbacks(execute=True):`.",
        ]
        on_commit(jobs.remind).enqueue(7)
        with pytest.raises(AssertionError, match="\n2 enqueues wait for the commit of"):
            self.bed.assert_enqueued(jobs.add)

    def test_what_was_sent_does_not_wait(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            jobs.add.enqueue(1)
        self.bed.assert_enqueued(jobs.add)
        with pytest.raises(AssertionError, match=r"on default$"):
            self.bed.assert_enqueued(jobs.on)


def test_a_job_runs_in_the_transaction_of_its_test(bed: TestBed) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (id) VALUES (1)")
        with TestCase.captureOnCommitCallbacks(execute=True):
            result = jobs.count_in_thread.enqueue()
            jobs.plain.enqueue(jobs.rows)
        with isolated_registry():
            add_middleware(DatabaseConnections())
            assert [job.result for job in bed.run()] == [1, 1]
        result.refresh()
        assert result.return_value == 1
        with eager(), TestCase.captureOnCommitCallbacks(execute=True):
            jobs.count_in_thread.enqueue()
        assert len(jobs.seen) == 3
        transaction.set_rollback(True)


def test_a_task_that_another_backend_enqueues_is_refused(bed: TestBed) -> None:
    other = {"default": {"BACKEND": f"{jobs.package}.backends.dummy.DummyBackend"}}
    with (
        override_settings(TASKS=other),
        pytest.raises(
            UsageError,
            match=rf"{NAME}\.add is enqueued by TASKS\['default'\], whose backend is "
            r".*DummyBackend; in the tests' settings, set it to bide\.contrib\.django\.Backend\.",
        ),
    ):
        bed.assert_not_enqueued(jobs.add)


def test_where_django_is_not_set_up_nothing_waits_for_a_commit() -> None:
    """A module may import it for others, and the test be about something else."""
    code = "from bide.contrib.django import running; assert running.hint() == ''"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
