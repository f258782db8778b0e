"""What may be said of a job besides its function and arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

from bide.clock import Duration
from bide.retry import Retry

OnCrash = Literal["rerun", "fail"]


class Options(TypedDict, total=False):
    """The options of `enqueue_call`, `prepare` and `Task.options`; all of them have a default."""

    delay: Duration | None
    """From now, on the server's clock: seconds, a `timedelta`, or text such as `"30m"`."""
    at: datetime | None
    """An aware `datetime` instead of a delay; one that has passed means now."""
    priority: int | None
    """0 to 9; 9 runs first; 5 by default."""
    job_id: str | None
    """Your own id: while a job has it, enqueueing it again changes nothing."""
    timeout: Duration | None
    """How long the job may run; five minutes by default."""
    retry: Retry | int | None
    """What happens when it raises: `Retry(...)`, or a number of retries; 0 by default."""
    retention: Duration | None
    """How long the finished job is kept; by default as the queue is configured."""
    on_crash: OnCrash | None
    """Whether a job whose worker died under it is run again (`"rerun"`, the default) or fails."""
    meta: Mapping[str, Any] | None
    """Your own notes on the job: plain values, stored with it, never passed to the function."""
    on_success: Callable[..., Any] | str | None
    """Called with the current job and its result, in the worker, once the job has completed."""
    on_failure: Callable[..., Any] | str | None
    """Called with the current job and its error, in the worker, once it has failed for good."""
