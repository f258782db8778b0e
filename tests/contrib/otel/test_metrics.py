"""Metrics of runs and attempts, by OpenTelemetry's API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from bide import Fail, Queue, Retry, Snooze, Worker, current_job
from bide.contrib.otel import Metrics
from bide.errors import JobTimeout, TaskNotFound
from bide.model.context import CurrentJob
from bide.model.job import Claimed
from bide.tasks import middleware
from bide.tasks.middleware import FailedAttempt
from bide.worker.metrics import LATENESS, MOST_TASKS, RUN_TIME


async def completes() -> None: ...


def fails() -> None:
    raise Fail("no such order")


def fails_once() -> None:
    if current_job().attempt == 1:
        raise ValueError("not yet")


snoozed: list[str] = []


def snoozes() -> None:
    if not snoozed:
        snoozed.append("once")
        raise Snooze("0s")


def a_job(task: str) -> CurrentJob:
    claimed = Claimed("j1", b"", 3_500_000, 1, 0, 1_000_000, 1_000_000)
    run: Any = SimpleNamespace(lateness=0.5)
    return CurrentJob("orders", "w", task, claimed, run)


class Measured:
    """A meter whose metrics can be looked at."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def by_task(self, name: str, *more: str) -> dict[tuple[str, ...], Any]:
        """The points of a metric, by task and more attributes."""
        return {
            tuple(point.attributes.get(of, "") for of in ("bide.tasks.task", *more)): point
            for point in self.points(name)
        }


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    measured = Measured()
    monkeypatch.setattr(middleware, "in_use", [Metrics(measured.provider)])
    snoozed.clear()
    yield measured
    measured.provider.shutdown()


def test_runs_and_attempts_are_measured_by_task(measured: Measured, one_url: str) -> None:
    with closing(Queue("orders", url=one_url)) as queue:
        for task in (completes, completes, fails, snoozes):
            queue.enqueue(task)
        queue.enqueue(fails_once, retry=Retry(1, backoff=["0s"]))
        Worker(queue, modules=__name__).run(burst=True)
    attempts = measured.by_task("bide.attempts", "bide.outcome")
    assert {key: point.value for key, point in attempts.items()} == {
        (f"{__name__}:completes", "completed"): 2,
        (f"{__name__}:fails", "failed"): 1,
        (f"{__name__}:fails_once", "retried"): 1,
        (f"{__name__}:fails_once", "completed"): 1,
        (f"{__name__}:snoozes", "completed"): 1,
    }
    runs = measured.by_task("messaging.process.duration", "error.type")
    assert {key: point.count for key, point in runs.items()} == {
        (f"{__name__}:completes", ""): 2,
        (f"{__name__}:fails", "bide.model.context.Fail"): 1,
        (f"{__name__}:fails_once", "builtins.ValueError"): 1,
        (f"{__name__}:fails_once", ""): 1,
        (f"{__name__}:snoozes", ""): 2,
    }
    late = measured.by_task("bide.lateness")
    assert late[f"{__name__}:snoozes",].count == 2
    assert tuple(late[f"{__name__}:snoozes",].explicit_bounds) == LATENESS
    assert tuple(runs[f"{__name__}:completes", ""].explicit_bounds) == RUN_TIME
    assert late[f"{__name__}:completes",].attributes["messaging.destination.name"] == "orders"


def test_an_unknown_task_is_no_name_of_a_metric(measured: Measured) -> None:
    (metrics,) = middleware.in_use
    job = a_job("nowhere:chosen_by_a_producer")
    metrics.failed(FailedAttempt(job, TaskNotFound("no such task"), [], {}, None, False))
    metrics.failed(FailedAttempt(a_job("shop:send"), JobTimeout("late"), [], {}, 1.5, False))
    attempts = measured.by_task("bide.attempts", "bide.outcome")
    assert {*attempts} == {("other", "failed"), ("shop:send", "retried")}


def test_tasks_after_the_first_hundred_share_a_name(measured: Measured) -> None:
    (metrics,) = middleware.in_use
    for number in range(MOST_TASKS + 5):
        with Metrics.running(metrics, a_job(f"shop:{number}")):  # type: ignore[arg-type]
            pass
    late = measured.by_task("bide.lateness")
    assert len(late) == MOST_TASKS + 1
    assert late["other",].count == 5
