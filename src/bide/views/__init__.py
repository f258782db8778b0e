"""What the page, the JSON API and `bide top` show: functions from a site and what was asked for.

Each returns plain values, as JSON has them: moments in ISO 8601 and UTC, times in seconds. If a
parameter is invalid or missing, it raises `UsageError`. If what a parameter names does not exist or
is not shown, it raises `NotFound`, `JobNotFound` or `ScheduleNotFound`. To add a page is to add a
line to `READS`, and a template of the same name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from bide.views import jobs, queues, schedules, timeline
from bide.views._async import AsyncSite
from bide.views.params import Params

Read = Callable[[AsyncSite, Params], Awaitable[dict[str, Any]]]

READS: Final[dict[str, Read]] = {
    "timeline": timeline.timeline,
    "lateness": timeline.lateness,
    "range": jobs.stretch,
    "queues": queues.queues,
    "queue": queues.queue,
    "groups": queues.groups,
    "jobs": jobs.jobs,
    "job": jobs.job,
    "schedules": schedules.schedules,
    "schedule": schedules.schedule,
    "failures": jobs.failures,
    "workers": queues.workers,
    "outbox": queues.outboxes,
}
"""Every read, by the name that stands in its address."""
