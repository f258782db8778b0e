"""Queues, jobs and tasks, as users hold them; blocking ones and awaited ones."""

from bide.queue.awaited import AsyncQueue
from bide.queue.awaited_events import AsyncEvents, AsyncListening
from bide.queue.awaited_job import AsyncJob
from bide.queue.awaited_schedules import AsyncSchedules
from bide.queue.blocking import Queue
from bide.queue.blocking_events import Events, Listening
from bide.queue.blocking_job import Job
from bide.queue.blocking_schedules import Schedules
from bide.queue.tasks import AsyncTask, Task

__all__ = [
    "AsyncEvents",
    "AsyncJob",
    "AsyncListening",
    "AsyncQueue",
    "AsyncSchedules",
    "AsyncTask",
    "Events",
    "Job",
    "Listening",
    "Queue",
    "Schedules",
    "Task",
]
