"""The data of the dashboard, its JSON API and `bide top`: functions of a site and parameters.

Each function returns plain values as in JSON: moments in ISO 8601 and UTC, durations in seconds. It
raises `UsageError` if a parameter is invalid or missing. It raises `NotFound`, `JobNotFound` or
`ScheduleNotFound` if a parameter names something that does not exist or is not shown. A new page
needs a line in `READS`, and a template of the same name.
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
"""The function for each name in an address."""
