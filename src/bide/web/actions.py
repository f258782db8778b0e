"""The changes of operators: to a queue, a group, a worker, a schedule, a row of an outbox, or jobs.

A form contains the verb and the selection of jobs: by `id` in a queue `q`; by `from` and `to`, the
range in which they are due; or by the filter of a list. For a range or a filter, the response shows
the number of jobs, with a form that contains the number in `sure` and the time in `as_of`. If there
are more jobs when that form is sent, nothing changes, and the dashboard asks again. A form that is
sent twice changes nothing twice: it selects jobs that had started or ended at that time, or that
are still due in the range.

For a schedule, a form contains the verb, the queue `q` and the schedule's `name`. An edit also
contains `stand`, the version of the schedule: if someone else has changed the schedule since, the
response shows that, and nothing changes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, cast

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bide.errors import BideError, UsageError
from bide.model.durations import describe
from bide.model.ids import new_id, short_id
from bide.model.limits import DECLARED, TOGETHER
from bide.model.options import QueueSettings
from bide.model.schedule import id_of
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as ops
from bide.queue._async.scan import changes
from bide.queue.core import as_declared, settings_call, settings_calls
from bide.queue.schedules import found, ran
from bide.queue.select import VERBS, How, read_over
from bide.views._async import AsyncSite
from bide.views.jobs import read_range
from bide.views.params import LATEST_US, Params
from bide.views.queues import queue as queue_view
from bide.views.queues import repair_rows
from bide.views.schedules import FoundSchedule, describe_schedule, foreseen, named
from bide.web.access import Refused, Role, status_and_sentence
from bide.web.pages import render
from bide.web.selection import (
    MOST,
    SETTINGS,
    Selection,
    choose,
    given,
    group_shown,
    read_group_settings,
    read_settings,
    read_wish,
    settings_shown,
    stand_of,
)

_OF_ONE_FORM: Final = ("sure", "as_of", "after")
"""Fields that the form for the remaining jobs sets to new values."""


async def change_jobs(site: AsyncSite, request: Request, params: Params, verb: str) -> Response:
    """Show which jobs a form selects, or change them."""
    does = VERBS[verb]
    if not (does.leaves_list or params.text("id") or params.text("from")):
        raise UsageError(f"{does.label} which jobs? Give an id, or a range: from= and to=.")
    what = _what(verb, params)  # it checks the form before any question or change
    selection = await choose(site, params, does)
    if not selection.named and selection.total > MOST and params.text("from"):
        _check_rest(verb, params, selection)
    shown: dict[str, Any] = {"role": Role.OPERATOR, "params": params, "site": site}
    shown |= {"verb": does, "what": what, "selection": selection}
    fields = [(name, value) for name, value in params.pairs if value and name not in _OF_ONE_FORM]
    shown_before = params.number("sure", 0, LATEST_US)
    if not selection.named and not 0 < selection.count <= shown_before:
        sure = [*fields, ("after", params.text("after")), ("as_of", selection.as_of_us)]
        rest = selection.rest(Counter())
        return render(request, "confirm", fields=sure, rest=_after(fields, rest), **shown)
    came, error = await _do(site, verb, params, selection)
    words: Counter[str] = sum(came.values(), Counter())
    if error and (selection.named or not words):
        raise error
    if selection.named and set(words) <= set(does.fine) and verb != "delete":
        ((queue, (id,)),) = selection.ids.items()
        return _to(request, "job", q=queue, id=id)
    moved = Counter({queue: each["ok"] for queue, each in came.items()})
    status, problem = status_and_sentence(error) if error else (200, None)
    return render(
        request,
        "done",
        status,
        problem=problem,
        untold=selection.count - words.total(),
        changed=sum(words[word] for word in does.fine if word != "asked"),
        asked=words["asked"],
        others={word: n for word, n in words.items() if word not in does.fine},
        rest=None if error else _after(fields, selection.rest(moved)),
        **shown,
    )


def _after(fields: list[tuple[str, str]], rest: str | None) -> list[tuple[str, str]] | None:
    """Return the form for the remaining jobs; None if there are none."""
    return None if rest is None else [*fields, ("after", rest)]


def _check_rest(verb: str, params: Params, selection: Selection) -> None:
    """Refuse a change that cannot continue, because moved jobs would look like remaining ones."""
    (from_us, to_us), now_us = read_range(params), selection.as_of_us
    match verb:
        case "spread":
            first_us, last_us = now_us, now_us + _over_us(params)
        case "reschedule":
            when = _when(params)
            first_us = last_us = int(when[1:]) + (now_us if when[0] == "+" else 0)
        case "promote":
            first_us = last_us = now_us
        case _:
            return
    if first_us < to_us and last_us >= from_us:
        raise UsageError(
            f"{MOST:,} jobs are changed at a time. This range has more, and the changed jobs "
            f"would be due in it again; choose a shorter range, or a time outside of it."
        )


def _what(verb: str, params: Params) -> str:
    """Return the rest of the sentence that describes the change."""
    if verb == "spread":
        return f"evenly over the next {describe(_over_us(params) / 1e6)}"
    if verb == "reschedule":
        when = _when(params)
        if when[0] == "+":
            return f"to {describe(int(when[1:]) / 1e6)} from now"
        return f"to {params.text('at')}"
    return ""


def _when(params: Params) -> str:
    delay, at_us = params.text("delay"), params.moment_us("at")
    if bool(delay) == (at_us is not None):
        raise UsageError("Give a due time: either a delay such as 10m, or a moment.")
    return f"={at_us}" if at_us is not None else enqueue_commands.when(delay, None)


def _over_us(params: Params) -> int:
    return read_over(params.text("over") or "0")


async def _do(
    site: AsyncSite, verb: str, params: Params, selection: Selection
) -> tuple[dict[str, Counter[str]], BideError | None]:
    """Change jobs in limited steps, until one fails; count the results by queue."""
    how = How(
        when=_when(params) if verb == "reschedule" else "+0",
        states=selection.states,
        over_us=_over_us(params) if verb == "spread" else 0,
    )
    came: dict[str, Counter[str]] = {queue: Counter() for queue in selection.ids}
    try:
        async for queue, _, words in changes(site, VERBS[verb], selection.ids, how):
            came[queue].update(words)
    except BideError as error:
        return came, error
    return came, None


async def act_on_schedule(
    site: AsyncSite, request: Request, params: Params, role: Role, verb: str
) -> Response:
    """Run the change of a schedule in a form."""
    seen = await named(site, params)
    queue, one, keys = seen.queue, seen.schedule, site.keys(seen.queue)
    shown: dict[str, Any] = {"role": role, "params": params, "site": site}
    match verb:
        case "pause" | "resume":
            command = ops.pause_schedule(keys, one.name, verb == "pause")
            found(await site.client.run(command), one.name, queue)
        case "run":
            id = id_of(one.name, new_id())
            receipt = await site.client.run(ops.run_schedule(keys, one.name, id))
            return _to(request, "job", q=queue, id=ran(receipt, one.name, queue, id).id)
        case "remove":
            if params.text("sure") != "1":
                return render(request, "remove", m=describe_schedule(seen), **shown)
            await site.client.run(ops.remove_schedules(keys, [one.name]))
            return _to(request, "schedules", q=queue)
        case _:
            return await _edit(site, request, params, shown, seen)
    return _to(request, "schedule", q=queue, name=one.name)


async def _edit(
    site: AsyncSite, request: Request, params: Params, shown: dict[str, Any], seen: FoundSchedule
) -> Response:
    queue, one = seen.queue, seen.schedule

    def again(seen: FoundSchedule, status: int, **more: Any) -> Response:
        """Return the form as it was sent, with a preview or a problem."""
        m = describe_schedule(seen)
        return render(request, "schedule", status, m=m, fields=given(params), **more, **shown)

    try:
        wish = read_wish(params)
        times = foreseen(seen, wish.timing)
    except UsageError as error:
        return again(seen, 400, problem=str(error))
    is_stale = params.text("stand") != one.stand
    if not is_stale and params.text("sure") == "1":
        edited = await site.client.run(ops.edit_schedule(site.keys(queue), one, *wish))
        if edited.result in ("ok", "same"):
            return _to(request, "schedule", q=queue, name=one.name)
        one, is_stale = found(edited.schedule, one.name, queue), True
        seen = seen._replace(schedule=one)
        times = foreseen(seen, wish.timing)
    if is_stale:
        sentence = (
            f"Someone else has changed {one.name} meanwhile: it now fires {one.when}. Save again "
            f"to use your values."
        )
        return again(seen, 409, problem=sentence, times=times, wish=wish)
    return again(seen, 200, times=times, wish=wish)


async def _configure(site: AsyncSite, request: Request, params: Params) -> Response:
    """Change limits and retention of a queue; only what the form has changed."""
    queue = await site.one(params.text("q"))
    now = await queue_view(site, params)
    shown, sent = settings_shown(now), {name: params.text(name) for name in SETTINGS}

    def again(status: int, problem: str) -> Response:
        """Return the form as it was sent, with the problem."""
        role, values = Role.OPERATOR, {"settings": sent, "problem": problem}
        return render(
            request, "queue", status, m=now, role=role, params=params, site=site, **values
        )

    try:
        settings = read_settings(sent, shown)
        calls = settings_calls(site.keys(queue), settings) if settings else []
    except UsageError as error:
        return again(400, str(error))
    if params.text("stand") != stand_of(shown):
        line = ", ".join(f"{name} {shown[name] or 'none'}" for name in SETTINGS)
        return again(
            409,
            f"Someone else has changed the settings meanwhile: {line}. Save again to use your "
            f"values.",
        )
    await site.client.run_many(calls)
    return _to(request, "queue", q=queue)


async def _configure_group(site: AsyncSite, request: Request, params: Params) -> Response:
    """Change the limits of a group: of a shown one only what the form has changed."""
    queue, group = await site.one(params.text("q")), params.text("group")
    keys = site.keys(queue)
    now = await site.client.run(queue_commands.counts(keys, group))
    shown = group_shown(now._asdict())
    if "stand" not in params:  # the form for any group was empty
        shown = dict.fromkeys(shown, "")
    elif params.text("stand") != stand_of(shown):
        line = ", ".join(f"{name} {value or 'none'}" for name, value in shown.items())
        raise Refused(
            f"Someone else has changed the limits of the group {short_id(group)!r} meanwhile: "
            f"{line}. Nothing was saved; open the page again.",
            409,
        )
    settings = read_group_settings({name: params.text(name) for name in shown}, shown)
    if settings or "stand" not in params:
        await site.client.run(settings_call(keys, group, settings))
    return _to(request, "groups", q=queue)


def _to(request: Request, page: str, **params: str) -> Response:
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(Params("").address(f"{root}/{page}", **params), 303)


async def act(site: AsyncSite, request: Request, params: Params, role: Role) -> Response:
    """Run the change that the field `verb` of a form names."""
    if role != Role.OPERATOR:
        raise Refused("A viewer may not change anything; use an operator's token.", 403)
    verb, _, kind = (word := params.text("verb")).partition("-")
    if kind == "schedule" and verb in ("pause", "resume", "run", "remove", "edit"):
        return await act_on_schedule(site, request, params, role, verb)
    if word in ("pause", "resume", "pause-group", "resume-group"):
        queue, is_pause = await site.one(params.text("q")), verb == "pause"
        keys = site.keys(queue)
        if kind:
            command = queue_commands.configure(keys, params.text("group"), paused=is_pause)
            await site.client.run(command)
            return _to(request, "groups", q=queue)
        await site.client.run((job_commands.pause if is_pause else job_commands.resume)(keys))
        return _to(request, "queue", q=queue)
    if word in ("pause-worker", "resume-worker"):
        await site.pause_worker(params.text("worker"), verb == "pause")
        return _to(request, "workers")
    if verb == "declared" and kind in [name for name, *_ in TOGETHER]:
        queue = await site.one(params.text("q"))
        keys = site.keys(queue)
        counts = await site.client.run(job_commands.counts(keys))
        back = as_declared(cast("QueueSettings", {kind: DECLARED}), counts, queue)
        await site.client.run_many(settings_calls(keys, back))
        return _to(request, "queue", q=queue)
    if word == "configure-queue":
        return await _configure(site, request, params)
    if word == "configure-group":
        return await _configure_group(site, request, params)
    if word in ("retry-row", "retry-rows", "delete-row"):
        await repair_rows(site, params, word)
        return _to(request, "outbox")
    if word not in VERBS:
        raise UsageError(f"There is no verb {word[:40]!r}; there are {', '.join(VERBS)}.")
    return await change_jobs(site, request, params, word)
