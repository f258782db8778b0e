"""What an operator may do with a schedule; when it fires is changed after a look at it.

A form says the verb, the queue `q` and the schedule's `name`. One that edits carries `stand`, what
it was made from: where another has changed the schedule since, that is shown, and nothing is done.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bide.errors import UsageError
from bide.ids import new_id
from bide.ops import schedules as ops
from bide.queue.schedules import found, ran
from bide.schedule import Schedule, id_of
from bide.web.access import Role
from bide.web.asked import Asked
from bide.web.editing import given, read_wish
from bide.web.pages import render
from bide.web.reads.schedules import describe, foreseen, named
from bide.web.site import Site

SCHEDULE_VERBS: Final = tuple(
    f"{verb}-schedule" for verb in ("pause", "resume", "run", "remove", "edit")
)


async def act_on_schedule(
    site: Site, request: Request, asked: Asked, role: Role, verb: str
) -> Response:
    """Do what a form says.

    Raises:
        UsageError: the form cannot be meant.
        NotFound: there is no such queue.
        ScheduleNotFound: it has no such schedule.
    """
    queue, now_us, one = await named(site, asked)
    keys = site.keys(queue)
    shown: dict[str, Any] = {"role": role, "asked": asked, "site": site}
    match verb:
        case "pause-schedule" | "resume-schedule":
            is_pause = verb == "pause-schedule"
            found(
                await site.client.run(ops.pause_schedule(keys, one.name, is_pause)), one.name, queue
            )
        case "run-schedule":
            id = id_of(one.name, new_id())
            receipt = await site.client.run(ops.run_schedule(keys, one.name, id))
            return _to(request, "job", q=queue, id=ran(receipt, one.name, queue).id)
        case "remove-schedule":
            if asked.text("sure") != "1":
                return render(request, "remove", m=describe(queue, one, now_us), **shown)
            await site.client.run(ops.remove_schedules(keys, [one.name]))
            return _to(request, "schedules", q=queue)
        case _:
            return await _edit(site, request, asked, shown, queue, now_us, one)
    return _to(request, "schedule", q=queue, name=one.name)


async def _edit(
    site: Site,
    request: Request,
    asked: Asked,
    shown: dict[str, Any],
    queue: str,
    now_us: int,
    one: Schedule,
) -> Response:
    def again(one: Schedule, status: int, **more: Any) -> Response:
        """The form as it was sent, below what it means, or what is wrong with it."""
        m = describe(queue, one, now_us)
        return render(request, "schedule", status, m=m, fields=given(asked), **more, **shown)

    try:
        wish = read_wish(asked)
        times = foreseen(one, wish.timing, now_us)
    except UsageError as error:
        return again(one, 400, problem=str(error))
    is_stale = asked.text("stand") != one.stand
    if not is_stale and asked.text("sure") == "1":
        edited = await site.client.run(ops.edit_schedule(site.keys(queue), one, *wish))
        if edited.word in ("ok", "same"):
            return _to(request, "schedule", q=queue, name=one.name)
        one, is_stale = found(edited.schedule, one.name, queue), True
        times = foreseen(one, wish.timing, now_us)
    if is_stale:
        sentence = (
            f"Somebody else has changed {one.name} meanwhile: it fires {one.when} now. Save again "
            "if yours is to hold."
        )
        return again(one, 409, problem=sentence, times=times, wish=wish)
    return again(one, 200, times=times, wish=wish)


def _to(request: Request, page: str, **asked: str) -> Response:
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(Asked("").address(f"{root}/{page}", **asked), 303)
