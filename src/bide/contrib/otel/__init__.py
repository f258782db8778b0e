"""Traces by OpenTelemetry: a span where a job is enqueued, one where it runs, and a link between.

    pip install 'bide[otel]'

    bide.use(Tracing())  # in a module that producers and workers import

A link, and not a parent: a job may run days after the request that asked for it has ended, and more
than once. Each run is the root of a trace of its own, which names where it came from.
"""

from bide.contrib import needed

with needed("OpenTelemetry", "otel"):
    import opentelemetry.trace as _trace  # noqa: F401

from bide.contrib.otel.tracing import Tracing

__all__ = ["Tracing"]
