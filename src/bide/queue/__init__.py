"""The public classes of queues, jobs and tasks: blocking ones and awaited ones."""

from bide.queue._async.events import AsyncEventListener, AsyncEvents
from bide.queue._async.job import AsyncJob, AsyncTask
from bide.queue._async.queue import AsyncQueue
from bide.queue._async.schedules import AsyncGroup, AsyncSchedules
from bide.queue._sync.events import EventListener, Events
from bide.queue._sync.job import Job, Task
from bide.queue._sync.queue import Queue
from bide.queue._sync.schedules import Group, Schedules

__all__ = [
    "AsyncEventListener",
    "AsyncEvents",
    "AsyncGroup",
    "AsyncJob",
    "AsyncQueue",
    "AsyncSchedules",
    "AsyncTask",
    "EventListener",
    "Events",
    "Group",
    "Job",
    "Queue",
    "Schedules",
    "Task",
]
