"""bide: a task queue on Valkey/Redis in which delay comes first. Jobs run on time."""

from bide.current import CurrentJob, current_job
from bide.delay_queue import (
    AsyncDelayQueue,
    AsyncItem,
    AsyncItems,
    DelayQueue,
    Item,
    Items,
    ItemSeen,
    Pushed,
)
from bide.errors import (
    AccessDenied,
    BadSignature,
    BideError,
    CannotConfirm,
    CannotSave,
    JobCancelled,
    JobFailed,
    JobNotFinished,
    JobNotFound,
    JobStateError,
    JobTimeout,
    NotUnique,
    PayloadError,
    PayloadTooNew,
    ResultDropped,
    ScheduleNotFound,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
    TaskNotFound,
    TooOld,
    Unconfirmed,
    UsageError,
    WorkerCrashed,
)
from bide.events import Event
from bide.flows import chain, fan_in
from bide.folding import Debounce, Gather, Throttle, Unique, debounce, gather, throttle
from bide.limits import Limits
from bide.middleware import FailedAttempt, Middleware, use
from bide.notes import Attempt, LogLine, Progress
from bide.ops.groups import GroupCounts
from bide.ops.inspect import Counts
from bide.ops.registry import WorkerSeen
from bide.options import GroupSettings, Options, QueueSettings, ScheduleOptions, TaskOptions
from bide.outcomes import Fail, RetryLater, Snooze
from bide.payload.codec import Body, ErrorInfo
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
from bide.resource import Resource, resource
from bide.retention import Retention
from bide.retry import Retry
from bide.schedule import Schedule
from bide.states import State
from bide.version import VERSION as __version__
from bide.why import Reason
from bide.worker import Worker

__all__ = [
    "AccessDenied",
    "AsyncDelayQueue",
    "AsyncGroup",
    "AsyncItem",
    "AsyncItems",
    "AsyncJob",
    "AsyncQueue",
    "AsyncSchedules",
    "AsyncTask",
    "Attempt",
    "BadSignature",
    "BideError",
    "Body",
    "CannotConfirm",
    "CannotSave",
    "Counts",
    "CurrentJob",
    "Debounce",
    "DelayQueue",
    "ErrorInfo",
    "Event",
    "Fail",
    "FailedAttempt",
    "Gather",
    "Group",
    "GroupCounts",
    "GroupSettings",
    "Item",
    "ItemSeen",
    "Items",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFinished",
    "JobNotFound",
    "JobStateError",
    "JobTimeout",
    "Limits",
    "LogLine",
    "Middleware",
    "NotUnique",
    "Options",
    "PayloadError",
    "PayloadTooNew",
    "Progress",
    "Pushed",
    "Queue",
    "QueueSettings",
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
    "ServerFull",
    "ServerRefused",
    "ServerUnavailable",
    "Snooze",
    "State",
    "Task",
    "TaskNotFound",
    "TaskOptions",
    "Throttle",
    "TooOld",
    "Unconfirmed",
    "Unique",
    "UsageError",
    "Worker",
    "WorkerCrashed",
    "WorkerSeen",
    "__version__",
    "chain",
    "current_job",
    "debounce",
    "fan_in",
    "gather",
    "resource",
    "throttle",
    "use",
]
