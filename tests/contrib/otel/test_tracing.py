"""Spans of enqueues and runs, and the links between them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from bide import (
    AsyncQueue,
    DelayQueue,
    Fail,
    PauseQueue,
    Queue,
    Snooze,
    Worker,
    current_job,
    testing,
)
from bide.contrib.otel import Tracing, of_run
from bide.errors import ServerUnavailable
from bide.model.context import CurrentJob
from bide.model.job import Claimed
from bide.protocol.commands.enqueue import Prepared
from bide.tasks import middleware

seen: list[Any] = []


def plain(text: str) -> str:
    seen.append(baggage.get_baggage("customer"))
    return text


async def awaited() -> str:
    return current_job().id


def fails() -> None:
    raise Fail("no such order")


def snoozes() -> None:
    if current_job().attempt and not seen:
        seen.append("snoozed")
        raise Snooze("0s")


def pauses() -> None:
    raise PauseQueue("1h")


def needs_a_number(number: int) -> None: ...


def unfit() -> object:
    return object()


async def hangs() -> None:
    await asyncio.sleep(60)


done = threading.Event()


def hangs_in_a_thread() -> None:
    done.wait(60)


class Traced:
    """A tracer whose spans can be looked at."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self.exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind == kind]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    traced = Traced()
    monkeypatch.setattr(middleware, "in_use", [Tracing(traced.provider)])
    seen.clear()
    done.clear()
    yield traced
    done.set()
    traced.provider.shutdown()


@pytest.fixture
def queue(one_url: str) -> Iterator[Queue]:
    queue = Queue("orders", url=one_url)
    yield queue
    queue.close()


def work(queue: Queue) -> None:
    Worker(queue, modules=__name__).run(burst=True)


@pytest.mark.slow
@pytest.mark.parametrize("task", [plain, awaited])
def test_a_run_links_to_its_enqueue_and_is_a_trace_of_its_own(
    traced: Traced, queue: Queue, task: Any
) -> None:
    tracer = traced.provider.get_tracer("web")
    with tracer.start_as_current_span("request") as request:
        job = queue.enqueue(task, *(["x"] if task is plain else []), meta={"order": 7})
    work(queue)
    (made,) = traced.spans(SpanKind.PRODUCER)
    (run,) = traced.spans(SpanKind.CONSUMER)
    assert (made.name, run.name) == ("enqueue orders", "run orders")
    assert made.parent == request.get_span_context()
    assert run.parent is None
    assert made.context is not None
    assert run.context is not None
    (link,) = run.links
    assert (link.context.trace_id, link.context.span_id) == (
        made.context.trace_id,
        made.context.span_id,
    )
    assert run.context.trace_id != made.context.trace_id
    assert dict(made.attributes or {}) == {
        "messaging.system": "bide",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "bide.tasks.task": f"{__name__}:{task.__name__}",
    }
    said = dict(run.attributes or {})
    assert said["messaging.message.id"] == job.id
    assert said["messaging.operation.type"] == "process"
    assert (said["bide.attempt"], said["bide.redelivered"]) == (1, False)
    assert run.status.status_code is StatusCode.UNSET
    job.refresh()
    assert job.state == "completed"
    assert job.meta["order"] == 7


def test_jobs_that_are_sent_together_have_spans_of_their_own_which_the_sending_links_to(
    traced: Traced, queue: Queue
) -> None:
    odd = Prepared("odd", "+60000000", 5, b"another program's")
    queue.enqueue_many([queue.prepare(plain, ["x"]), queue.prepare(plain, ["y"]), odd])
    prepared = traced.spans(SpanKind.PRODUCER)
    (sent,) = traced.spans(SpanKind.CLIENT)
    assert [span.name for span in prepared] == ["prepare orders"] * 2
    made = [span.context and span.context.span_id for span in prepared]
    assert [link.context.span_id for link in sent.links] == made
    assert sent.name == "enqueue orders"
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    work(queue)
    runs = traced.spans(SpanKind.CONSUMER)
    assert [run.links[0].context.span_id for run in runs] == made


def blocking(many: bool) -> None:
    gone = Queue("orders", url="redis://127.0.0.1:1", retry_for=0)
    if many:
        gone.enqueue_many([gone.prepare(plain, ["x"])])
    gone.enqueue(plain, "x")


def on_a_loop(many: bool) -> None:
    async def send() -> None:
        gone = AsyncQueue("orders", url="redis://127.0.0.1:1", retry_for=0)
        try:
            if many:
                await gone.enqueue_many([gone.prepare(plain, ["x"])])
            await gone.enqueue(plain, "x")
        finally:
            await gone.close()

    asyncio.run(send())


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize("send", [blocking, on_a_loop])
def test_the_span_of_a_sending_ends_with_what_it_raises(
    traced: Traced, many: bool, send: Callable[[bool], None]
) -> None:
    with pytest.raises(ServerUnavailable):
        send(many)
    (sent,) = traced.spans(SpanKind.CLIENT if many else SpanKind.PRODUCER)[-1:]
    assert sent.name == "enqueue orders"
    assert sent.status.status_code is StatusCode.ERROR
    assert (sent.attributes or {})["error.type"] == "bide.errors.ServerUnavailable"


def prepares() -> None:
    Queue("orders").prepare(plain, ["x"])


def test_what_a_job_prepares_that_runs_within_a_sending_has_a_span_of_its_own(
    traced: Traced,
) -> None:
    with testing.eager():
        Queue("orders").enqueue(prepares)
    names = [span.name for span in traced.exporter.get_finished_spans()]
    assert names == ["prepare orders", "run orders", "enqueue orders"]


def test_items_of_data_have_no_spans(traced: Traced, one_url: str) -> None:
    with closing(DelayQueue("pile", url=one_url)) as pile:
        pile.push(7)
        assert pile.pop() == [7]
    assert traced.exporter.get_finished_spans() == ()


def test_lateness_is_that_of_the_run() -> None:
    claimed = Claimed("j1", b"", 3_500_000, 1, 0, 1_000_000, 1_000_000)
    run: Any = SimpleNamespace(lateness=2.5)
    job = CurrentJob("orders", "w1", "t:t", claimed, run)
    _, said = of_run(job)
    assert dict(said or {})["bide.lateness"] == 2.5


def test_baggage_travels(traced: Traced, queue: Queue) -> None:
    token = context.attach(baggage.set_baggage("customer", "ann"))
    queue.enqueue(plain, "x")
    context.detach(token)
    work(queue)
    assert seen == ["ann"]


def test_an_error_is_on_the_span_and_reaches_the_worker(traced: Traced, queue: Queue) -> None:
    job = queue.enqueue(fails)
    work(queue)
    (run,) = traced.spans(SpanKind.CONSUMER)
    assert run.status.status_code is StatusCode.ERROR
    assert (run.attributes or {})["error.type"] == "bide.model.context.Fail"
    assert [event.name for event in run.events] == ["exception"]
    job.refresh()
    assert job.state == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "args", "runs", "error"),
    [
        (needs_a_number, ["one"], 0, "PayloadError"),
        (unfit, [], 1, "PayloadError"),
        (hangs, [], 1, "JobTimeout"),
        (hangs_in_a_thread, [], None, "JobTimeout"),
    ],
)
def test_a_failure_that_no_run_has_raised_has_a_span_of_its_own(
    traced: Traced, queue: Queue, task: Any, args: list[Any], runs: int | None, error: str
) -> None:
    job = queue.enqueue_call(task, args, timeout=0.1)
    work(queue)
    (failure,) = traced.spans(SpanKind.CLIENT)
    assert failure.name == "fail orders"
    assert failure.status.status_code is StatusCode.ERROR
    said = dict(failure.attributes or {})
    assert said["error.type"] == f"bide.errors.{error}"
    assert (said["messaging.message.id"], said["bide.attempt"]) == (job.id, 1)
    assert [event.name for event in failure.events] == ["exception"]
    assert (failure.parent, len(failure.links)) == (None, 1)
    if runs is not None:
        assert len(traced.spans(SpanKind.CONSUMER)) == runs


def test_an_error_that_a_run_has_raised_is_on_one_span(traced: Traced, queue: Queue) -> None:
    queue.enqueue(fails)
    work(queue)
    assert traced.spans(SpanKind.CLIENT) == []


def test_a_snooze_is_no_error_and_each_run_has_a_span(traced: Traced, queue: Queue) -> None:
    queue.enqueue(snoozes)
    work(queue)
    runs = traced.spans(SpanKind.CONSUMER)
    assert [run.status.status_code for run in runs] == [StatusCode.UNSET] * 2
    assert [len(run.links) for run in runs] == [1, 1]


def test_a_pause_of_the_queue_is_no_error(traced: Traced, queue: Queue) -> None:
    queue.enqueue(pauses)
    work(queue)
    (run,) = traced.spans(SpanKind.CONSUMER)
    assert run.status.status_code is StatusCode.UNSET


@pytest.mark.slow
@pytest.mark.parametrize("meta", [{"otel": "x"}, {"otel": {"traceparent": 7}}, {"otel": {}}])
def test_what_others_wrote_into_meta_stops_no_job(
    traced: Traced, queue: Queue, monkeypatch: pytest.MonkeyPatch, meta: dict[str, Any]
) -> None:
    monkeypatch.setattr(Tracing, "enqueuing", lambda self, queue, body: body)
    job = queue.enqueue(plain, "x", meta=meta)
    work(queue)
    (run,) = traced.spans(SpanKind.CONSUMER)
    assert list(run.links) == []
    job.refresh()
    assert job.state == "completed"


def test_without_an_sdk_nothing_travels(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "in_use", [Tracing()])
    job = queue.enqueue(plain, "x")
    work(queue)
    job.refresh()
    assert (job.state, job.meta) == ("completed", {})


def test_who_does_not_use_it_imports_none_of_it() -> None:
    code = "import bide, bide.cli.main, sys; print('bide.contrib.otel' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"
