"""The middleware that makes the spans."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
from opentelemetry import context, trace
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Link, SpanKind, StatusCode, TracerProvider
from opentelemetry.util.types import Attributes

from bide.contrib.otel.attributes import ERROR_TYPE, of_enqueue, of_run
from bide.current import CurrentJob
from bide.errors import JobCancelled
from bide.middleware import Middleware
from bide.outcomes import Snooze
from bide.payload.codec import Body
from bide.version import VERSION

KEY: Final = "otel"
"""Under which, in a job's `meta`, the context of its enqueue travels."""

_NO_ERRORS: Final = (Snooze, JobCancelled, asyncio.CancelledError)
"""What ends a run, and is no error."""


class Tracing(Middleware):
    """A span for each enqueue, and for each run, which links to it.

    The context travels in the job's `meta`, as the process's propagators write it. Where nothing
    is sampled or no SDK is set up, nothing travels.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """Take a provider; by default the process's own, as of the first span."""
        self._tracer = trace.get_tracer("bide", VERSION, tracer_provider)

    def enqueuing(self, queue: str, body: Body) -> Body:
        """Make the span of an enqueue; the body takes its context along."""
        name, attributes = of_enqueue(queue, body)
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.PRODUCER, attributes=attributes
        ):
            carrier: dict[str, str] = {}
            inject(carrier)
        if not carrier:
            return body
        return msgspec.structs.replace(body, meta={**(body.meta or {}), KEY: carrier})

    @contextmanager
    def running(self, job: CurrentJob) -> Iterator[None]:
        """Make the span of a run, the root of a trace, with a link to the enqueue."""
        carrier = job.meta.get(KEY)
        came = extract(_texts(carrier), context.Context())
        origin = trace.get_current_span(came).get_span_context()
        name, attributes = of_run(job)
        # What else the enqueue's context has, baggage for one, holds for the run.
        token = context.attach(trace.set_span_in_context(trace.INVALID_SPAN, came))
        try:
            with self._running(name, attributes, [Link(origin)] if origin.is_valid else []):
                yield
        finally:
            context.detach(token)

    @contextmanager
    def _running(self, name: str, attributes: Attributes, links: list[Link]) -> Iterator[None]:
        with self._tracer.start_as_current_span(
            name,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except _NO_ERRORS:
                raise
            except BaseException as error:
                span.set_attribute(
                    ERROR_TYPE, f"{type(error).__module__}.{type(error).__qualname__}"
                )
                span.set_status(StatusCode.ERROR)
                with suppress(Exception):  # some exceptions make it impossible to show them
                    span.record_exception(error)
                    span.set_status(StatusCode.ERROR, str(error))
                raise


def _texts(carrier: Any) -> Mapping[str, str]:
    """What travelled, if it is what was sent: another program may have written it."""
    if not isinstance(carrier, Mapping):
        return {}
    return {str(name): value for name, value in carrier.items() if isinstance(value, str)}
