"""What spans are called and say, by OpenTelemetry's conventions for messaging.

https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/

These are in development, and names have changed before: so nothing but this file knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry.util.types import Attributes

from bide.clock import from_us
from bide.current import CurrentJob
from bide.ops.produce import Prepared
from bide.payload.codec import Body

ERROR_TYPE: Final = "error.type"


TASK: Final = "bide.task"


def of_preparing(queue: str, body: Body) -> tuple[str, Attributes]:
    """Name and attributes of the span of a job that is prepared, to be sent with others."""
    return f"prepare {queue}", {
        **_common(queue),
        TASK: body.task,
        "messaging.operation.name": "prepare",
        "messaging.operation.type": "create",
    }


def of_sending(queue: str, jobs: Sequence[Prepared] | None) -> tuple[str, Attributes]:
    """Name and attributes of the span of a sending: of one job, or of many."""
    many = {} if jobs is None else {"messaging.batch.message_count": len(jobs)}
    return f"enqueue {queue}", {
        **_common(queue),
        **many,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }


def of_run(job: CurrentJob) -> tuple[str, Attributes]:
    """Name and attributes of the span of a run."""
    claimed = from_us(job.token)  # by the server's clock, of which `due` is, too
    return f"run {job.queue}", {
        **_common(job.queue),
        TASK: job.task,
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.message.id": job.id,
        "messaging.client.id": job.worker,
        "bide.attempt": job.attempt,
        "bide.redelivered": job.redelivered,
        "bide.lateness": max(0.0, (claimed - job.due).total_seconds()),
    }


def of_failure(job: CurrentJob) -> tuple[str, Attributes]:
    """Name and attributes of the span of a failure that no run has raised."""
    return f"fail {job.queue}", {
        **_common(job.queue),
        TASK: job.task,
        "messaging.operation.name": "fail",
        "messaging.operation.type": "settle",
        "messaging.message.id": job.id,
        "messaging.client.id": job.worker,
        "bide.attempt": job.attempt,
    }


def _common(queue: str) -> dict[str, str]:
    return {"messaging.system": "bide", "messaging.destination.name": queue}
