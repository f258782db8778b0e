"""bide: a task queue on Valkey/Redis in which delay comes first. Jobs run on time."""

from importlib import import_module
from typing import TYPE_CHECKING

from bide.errors import (
    AccessDenied,
    BadSignature,
    BideError,
    ClientTooOld,
    DuplicateJob,
    DurabilityTimeout,
    DurabilityUnavailable,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobStateError,
    JobTimeout,
    JobWaitTimeout,
    PayloadError,
    PayloadTooNew,
    ResultDropped,
    ScheduleNotFound,
    ServerFull,
    ServerReadOnly,
    ServerRefused,
    ServerUnavailable,
    TaskNotFound,
    UsageError,
    WorkerCrashed,
)
from bide.model.context import CurrentJob, Fail, PauseQueue, RetryLater, Snooze, current_job
from bide.model.dedup import Batch, Debounce, Throttle, Unique, batch, debounce, throttle
from bide.model.history import Attempt, LogLine, Progress
from bide.model.job import Event, State
from bide.model.limits import Limits, Retention
from bide.model.options import GroupSettings, Options, QueueSettings, ScheduleOptions, TaskOptions
from bide.model.payload.body import Body, ErrorInfo
from bide.model.retry import Retry
from bide.model.schedule import Schedule
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import GroupCounts, WorkerInfo
from bide.queue import (
    AsyncGroup,
    AsyncJob,
    AsyncQueue,
    AsyncSchedules,
    AsyncTask,
    Group,
    Job,
    Queue,
    Schedules,
    Task,
)
from bide.queue.dependencies import chain, fan_in
from bide.queue.job_view import Reason
from bide.tasks.middleware import FailedAttempt, Middleware, add_middleware
from bide.tasks.registry import Resource, resource
from bide.version import VERSION as __version__

if TYPE_CHECKING:
    from bide.queue._async.delay import AsyncDelayQueue
    from bide.queue._async.items import AsyncItem, AsyncItems
    from bide.queue._async.scan import AsyncSelection
    from bide.queue._sync.delay import DelayQueue
    from bide.queue._sync.items import Item, Items
    from bide.queue._sync.scan import Selection
    from bide.queue.items import ItemInfo, PushResult
    from bide.queue.select import BulkResult
    from bide.worker import Worker
else:
    _LATER = {
        "AsyncDelayQueue": "bide.queue._async.delay",
        "AsyncItem": "bide.queue._async.items",
        "AsyncItems": "bide.queue._async.items",
        "AsyncSelection": "bide.queue._async.scan",
        "BulkResult": "bide.queue.select",
        "DelayQueue": "bide.queue._sync.delay",
        "Item": "bide.queue._sync.items",
        "ItemInfo": "bide.queue.items",
        "Items": "bide.queue._sync.items",
        "PushResult": "bide.queue.items",
        "Selection": "bide.queue._sync.scan",
        "Worker": "bide.worker",
    }

    def __getattr__(name: str) -> object:
        """Import a name on first use, if programs that only enqueue do not need it."""
        if name not in _LATER:
            is_of_queue = name in ("task", "cron", "every", "enqueue", "where", "schedules")
            hint = f"; write queue.{name}, with queue = bide.Queue(...)" if is_of_queue else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "AccessDenied",
    "AsyncDelayQueue",
    "AsyncGroup",
    "AsyncItem",
    "AsyncItems",
    "AsyncJob",
    "AsyncQueue",
    "AsyncSchedules",
    "AsyncSelection",
    "AsyncTask",
    "Attempt",
    "BadSignature",
    "Batch",
    "BideError",
    "Body",
    "BulkResult",
    "ClientTooOld",
    "CurrentJob",
    "Debounce",
    "DelayQueue",
    "DuplicateJob",
    "DurabilityTimeout",
    "DurabilityUnavailable",
    "ErrorInfo",
    "Event",
    "Fail",
    "FailedAttempt",
    "Group",
    "GroupCounts",
    "GroupSettings",
    "Item",
    "ItemInfo",
    "Items",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobStateError",
    "JobTimeout",
    "JobWaitTimeout",
    "Limits",
    "LogLine",
    "Middleware",
    "Options",
    "PauseQueue",
    "PayloadError",
    "PayloadTooNew",
    "Prepared",
    "Progress",
    "PushResult",
    "Queue",
    "QueueSettings",
    "QueueStats",
    "Reason",
    "Resource",
    "ResultDropped",
    "Retention",
    "Retry",
    "RetryLater",
    "Schedule",
    "ScheduleNotFound",
    "ScheduleOptions",
    "Schedules",
    "Selection",
    "ServerFull",
    "ServerReadOnly",
    "ServerRefused",
    "ServerUnavailable",
    "Snooze",
    "State",
    "Task",
    "TaskNotFound",
    "TaskOptions",
    "Throttle",
    "Unique",
    "UsageError",
    "Worker",
    "WorkerCrashed",
    "WorkerInfo",
    "__version__",
    "add_middleware",
    "batch",
    "chain",
    "current_job",
    "debounce",
    "fan_in",
    "resource",
    "throttle",
]
