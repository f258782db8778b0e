"""What an operator may change: a queue, a group, a schedule, or jobs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bide.errors import UsageError
from bide.ops import groups, manage
from bide.web.access import Refused, Role
from bide.web.asked import Asked
from bide.web.changes import VERBS, change_jobs
from bide.web.scheduling import SCHEDULE_VERBS, act_on_schedule
from bide.web.site import Site


async def act(site: Site, request: Request, asked: Asked, role: Role) -> Response:
    """Do what a form says in `verb`.

    Raises:
        Refused: the sender may only look.
        UsageError: the form cannot be meant.
        NotFound: there is no such queue.
        ScheduleNotFound: it has no such schedule.
    """
    if role != Role.OPERATOR:
        raise Refused("You may look, but not change anything; an operator's token may.", 403)
    verb = asked.text("verb")
    if verb in ("pause", "resume"):
        return await _pause(site, request, asked, verb)
    if verb in SCHEDULE_VERBS:
        return await act_on_schedule(site, request, asked, role, verb)
    if verb in ("pause-group", "resume-group"):
        return await _pause_group(site, request, asked, verb)
    if verb not in VERBS:
        raise UsageError(f"There is no verb {verb[:40]!r}; there are {', '.join(VERBS)}.")
    return await change_jobs(site, request, asked, verb)


async def _pause(site: Site, request: Request, asked: Asked, verb: str) -> Response:
    name = await site.one(asked.text("q"))
    keys = site.keys(name)
    await site.client.run(manage.pause(keys) if verb == "pause" else manage.resume(keys))
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(Asked("").address(f"{root}/queue", q=name), 303)


async def _pause_group(site: Site, request: Request, asked: Asked, verb: str) -> Response:
    queue = await site.one(asked.text("q"))
    await site.client.run(
        groups.configure(site.keys(queue), asked.text("group"), paused=verb == "pause-group")
    )
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(Asked("").address(f"{root}/groups", q=queue), 303)
