"""bide: a task queue on Valkey/Redis in which delay comes first. Jobs run on time."""

from bide.current import current_job
from bide.errors import (
    AccessDenied,
    BideError,
    JobNotFound,
    JobStateError,
    JobTimeout,
    PayloadError,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
    TaskNotFound,
    UsageError,
)
from bide.queue import AsyncJob, AsyncQueue, Job, Queue
from bide.retry import Retry
from bide.states import State
from bide.version import VERSION as __version__
from bide.worker import Worker

__all__ = [
    "AccessDenied",
    "AsyncJob",
    "AsyncQueue",
    "BideError",
    "Job",
    "JobNotFound",
    "JobStateError",
    "JobTimeout",
    "PayloadError",
    "Queue",
    "Retry",
    "ServerFull",
    "ServerRefused",
    "ServerUnavailable",
    "State",
    "TaskNotFound",
    "UsageError",
    "Worker",
    "__version__",
    "current_job",
]
