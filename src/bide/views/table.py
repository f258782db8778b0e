"""Every read, by the name that stands in its address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from bide.views.failures import failures
from bide.views.jobs import job, jobs, stretch
from bide.views.params import Asked
from bide.views.queues import groups, queue, queues, workers
from bide.views.schedules import schedule, schedules
from bide.views.site import AsyncSite
from bide.views.timeline import punctuality, timeline

Read = Callable[[AsyncSite, Asked], Awaitable[dict[str, Any]]]

READS: Final[dict[str, Read]] = {
    "timeline": timeline,
    "punctuality": punctuality,
    "range": stretch,
    "queues": queues,
    "queue": queue,
    "groups": groups,
    "jobs": jobs,
    "job": job,
    "schedules": schedules,
    "schedule": schedule,
    "failures": failures,
    "workers": workers,
}
