"""Every read, by the name that stands in its address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from bide.web.asked import Asked
from bide.web.reads.failures import failures
from bide.web.reads.groups import groups
from bide.web.reads.jobs import job, jobs
from bide.web.reads.punctuality import punctuality
from bide.web.reads.queues import queue, queues
from bide.web.reads.range import stretch
from bide.web.reads.schedules import schedule, schedules
from bide.web.reads.timeline import timeline
from bide.web.reads.workers import workers
from bide.web.site import Site

Read = Callable[[Site, Asked], Awaitable[dict[str, Any]]]

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
