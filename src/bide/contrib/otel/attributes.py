"""What spans are called and say, by OpenTelemetry's conventions for messaging.

https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/

These are in development, and names have changed before: so nothing but this file knows them.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.util.types import Attributes

from bide.clock import from_us
from bide.current import CurrentJob
from bide.payload.codec import Body

ERROR_TYPE: Final = "error.type"


def of_enqueue(queue: str, body: Body) -> tuple[str, Attributes]:
    """Name and attributes of the span of an enqueue."""
    return f"enqueue {queue}", {
        **_common(queue, body.task),
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "create",
    }


def of_run(job: CurrentJob) -> tuple[str, Attributes]:
    """Name and attributes of the span of a run."""
    claimed = from_us(job.token)  # by the server's clock, of which `due` is, too
    return f"run {job.queue}", {
        **_common(job.queue, job.task),
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.message.id": job.id,
        "messaging.client.id": job.worker,
        "bide.attempt": job.attempt,
        "bide.redelivered": job.redelivered,
        "bide.lateness": max(0.0, (claimed - job.due).total_seconds()),
    }


def _common(queue: str, task: str) -> dict[str, str]:
    return {
        "messaging.system": "bide",
        "messaging.destination.name": queue,
        "bide.task": task,
    }
