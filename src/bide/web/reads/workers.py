"""Who works, and on what."""

from __future__ import annotations

from typing import Any

from bide.cli.workers import workers_report
from bide.web.asked import Asked
from bide.web.site import Site


async def workers(site: Site, asked: Asked) -> dict[str, Any]:
    """The workers that live or hold a job.

    Raises:
        NotFound: there is no queue `q`.
    """
    names = await site.known(asked.text("q"))
    seen = await site.workers()
    return {"workers": workers_report([w for w in seen if set(names) & set(w.about.queues)])}
