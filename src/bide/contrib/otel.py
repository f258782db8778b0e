"""Traces and metrics by OpenTelemetry.

A trace has a span where a job is enqueued, one where it runs, and a link between.

    pip install 'bide[otel]'

    bide.add_middleware(Tracing())  # in a module that producers and workers import
    bide.add_middleware(Metrics())

It is a link and not a parent, because a job may run days after its request has ended, and more than
once. Each run is the root of a trace of its own, with a link to its enqueue.

https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/

These conventions are in development, and their names may change, so only this module uses them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from bide.contrib import needed
from bide.errors import JobCancelled, PayloadError, TaskNotFound
from bide.model.context import CurrentJob, PauseQueue, Snooze
from bide.model.payload.body import Body, decode_envelope
from bide.protocol.commands.enqueue import Prepared
from bide.tasks.middleware import FailedAttempt, Middleware
from bide.version import VERSION
from bide.worker.metrics import LATENESS, MOST_TASKS, OTHER, RUN_TIME

with needed("OpenTelemetry", "otel"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TracerProvider
    from opentelemetry.util.types import Attributes

ERROR_TYPE: Final = "error.type"


TASK: Final = "bide.tasks.task"

OUTCOME: Final = "bide.outcome"


def of_preparing(queue: str, body: Body) -> tuple[str, Attributes]:
    """Return name and attributes of the span of a prepared job."""
    return f"prepare {queue}", {**_common(queue, "prepare", "create"), TASK: body.task}


def of_sending(queue: str, jobs: Sequence[Prepared] | None) -> tuple[str, Attributes]:
    """Return name and attributes of the span of a send of one or many jobs."""
    many = {} if jobs is None else {"messaging.batch.message_count": len(jobs)}
    return f"enqueue {queue}", {**_common(queue, "enqueue", "send"), **many}


def of_run(job: CurrentJob) -> tuple[str, Attributes]:
    """Return name and attributes of the span of a run."""
    return f"run {job.queue}", {
        **_of_job(job, "run", "process"),
        "bide.redelivered": job.redelivered,
        "bide.lateness": job.lateness,
    }


def of_failure(job: CurrentJob) -> tuple[str, Attributes]:
    """Return name and attributes of the span of a failure that no run has raised."""
    return f"fail {job.queue}", _of_job(job, "fail", "settle")


def _of_job(job: CurrentJob, name: str, kind: str) -> dict[str, str | int]:
    return {
        **_common(job.queue, name, kind),
        TASK: job.task,
        "messaging.message.id": job.id,
        "messaging.client.id": job.worker,
        "bide.attempt": job.attempt,
    }


def _common(queue: str, name: str, kind: str) -> dict[str, str]:
    return {
        "messaging.system": "bide",
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


KEY: Final = "otel"
"""The key in a job's `meta` that holds the trace context of its enqueue."""

_NO_ERRORS: Final = (Snooze, PauseQueue, JobCancelled, asyncio.CancelledError)
"""Exceptions that end a run and are not errors."""

_LINKS: Final = 128
"""Maximum links of a span, as in the default of SDKs."""

_sending: ContextVar[Span | None] = ContextVar("_sending", default=None)
"""The span of a send whose single job has not been prepared yet."""


class Tracing(Middleware):
    """A middleware that creates spans for enqueues and runs, linked to each other.

    `enqueue` creates a span. `prepare` creates a span too, and the span of `enqueue_many` links to
    the spans of its jobs. Each run has a span that links to the span of its enqueue. A failure that
    no run has raised, such as a time-out or arguments that do not fit, has a span of its own.

    The job's `meta` carries the context, as the process's propagators write it. Without an SDK, or
    if nothing is sampled, it carries nothing.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """Set the provider; by default the process's own, at the first span."""
        self._tracer = trace.get_tracer("bide", VERSION, tracer_provider)

    def enqueuing(self, queue: str, body: Body) -> Body:
        """Add to the body the context of its enqueue, or of a span of its own."""
        carrier: dict[str, str] = {}
        span = _sending.get()
        if span is None:
            with self._span(SpanKind.PRODUCER, *of_preparing(queue, body)):
                inject(carrier)
        else:
            _sending.set(None)
            span.set_attribute(TASK, body.task)
            inject(carrier, trace.set_span_in_context(span))
        if not carrier:
            return body
        return msgspec.structs.replace(body, meta={**(body.meta or {}), KEY: carrier})

    @contextmanager
    def sending(self, queue: str, jobs: Sequence[Prepared] | None) -> Iterator[None]:
        """Create the span of an enqueue, which records its error."""
        kind = SpanKind.PRODUCER if jobs is None else SpanKind.CLIENT
        links = [Link(origin) for origin in map(_made, (jobs or ())[:_LINKS]) if origin.is_valid]
        with self._span(kind, *of_sending(queue, jobs), links) as span:
            token = _sending.set(span if jobs is None else None)
            try:
                yield
            finally:
                _sending.reset(token)

    @contextmanager
    def running(self, job: CurrentJob) -> Iterator[None]:
        """Create the span of a run, the root of a trace, with a link to the enqueue."""
        with self._root(job, SpanKind.CONSUMER, *of_run(job)):
            yield

    def failed(self, failure: FailedAttempt) -> None:
        """Create a span of a failure that the span of the run does not show."""
        if failure.raised:
            return
        with self._root(failure.job, SpanKind.CLIENT, *of_failure(failure.job)) as span:
            _record(span, failure.error)

    @contextmanager
    def _root(
        self, job: CurrentJob, kind: SpanKind, name: str, attributes: Attributes
    ) -> Iterator[Span]:
        """Create a span that is the root of a trace, with a link to the job's enqueue."""
        came = _came(job.meta)
        origin = trace.get_current_span(came).get_span_context()
        links = [Link(origin)] if origin.is_valid else []
        # The rest of the enqueue's context, such as baggage, applies to the run.
        token = context.attach(trace.set_span_in_context(trace.INVALID_SPAN, came))
        try:
            with self._span(kind, name, attributes, links) as span:
                yield span
        finally:
            context.detach(token)

    @contextmanager
    def _span(
        self, kind: SpanKind, name: str, attributes: Attributes, links: Sequence[Link] = ()
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except _NO_ERRORS:
                raise
            except BaseException as error:
                _record(span, error)
                raise


def _record(span: Span, error: BaseException) -> None:
    span.set_attribute(ERROR_TYPE, _type_of(error))
    span.set_status(StatusCode.ERROR)
    with suppress(Exception):  # some exceptions cannot be formatted
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, str(error))


def _type_of(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _made(job: Prepared) -> SpanContext:
    try:
        meta = decode_envelope(job.body).body.meta or {}
    except PayloadError:  # another program has written it
        meta = {}
    return trace.get_current_span(_came(meta)).get_span_context()


def _came(meta: Mapping[str, Any]) -> context.Context:
    return extract(_texts(meta.get(KEY)), context.Context())


def _texts(carrier: Any) -> Mapping[str, str]:
    """Return the stored context if it has the right form: another program may have written it."""
    if not isinstance(carrier, Mapping):
        return {}
    return {str(name): value for name, value in carrier.items() if isinstance(value, str)}


class Metrics(Middleware):
    """A middleware that measures how late jobs start, how long they run, and how attempts end.

    The metrics are `bide.lateness` and `messaging.process.duration`, histograms in seconds, and
    `bide.attempts`, a counter. Their attributes are the queue and the task. The first 100 tasks of
    a process have names of their own, all others share the name `other`.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        """Set the provider; by default the process's own, also if it is set later."""
        meter = metrics.get_meter("bide", VERSION, meter_provider)
        self._tasks: set[str] = set()
        self._late: Final = meter.create_histogram(
            "bide.lateness",
            unit="s",
            description="From the due time of a job to its claim, by the server's clock.",
            explicit_bucket_boundaries_advisory=LATENESS,
        )
        self._ran: Final = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="How long a job ran, with any outcome.",
            explicit_bucket_boundaries_advisory=RUN_TIME,
        )
        self._attempts: Final = meter.create_counter(
            "bide.attempts",
            unit="{attempt}",
            description="Attempts by their end: completed, retried or failed.",
        )

    @contextmanager
    def running(self, job: CurrentJob) -> Iterator[None]:
        """Measure a run."""
        attributes = self._attributes(job, job.task)
        self._late.record(job.lateness, attributes)
        began, errors = time.monotonic(), {}
        try:
            yield
        except _NO_ERRORS:
            raise
        except BaseException as error:
            errors = {ERROR_TYPE: _type_of(error)}
            raise
        else:
            self._attempts.add(1, {**attributes, OUTCOME: "completed"})
        finally:
            self._ran.record(time.monotonic() - began, {**attributes, **errors})

    def failed(self, failure: FailedAttempt) -> None:
        """Count an attempt that failed, for whatever reason."""
        is_unknown = isinstance(failure.error, TaskNotFound)
        attributes = self._attributes(failure.job, OTHER if is_unknown else failure.job.task)
        outcome = "failed" if failure.is_final else "retried"
        self._attempts.add(1, {**attributes, OUTCOME: outcome})

    def _attributes(self, job: CurrentJob, task: str) -> dict[str, str]:
        if len(self._tasks) < MOST_TASKS:
            self._tasks.add(task)
        name = task if task in self._tasks else OTHER
        return {**_common(job.queue, "run", "process"), TASK: name}


__all__ = ["Metrics", "Tracing"]
