"""What an operator may change: a queue, a group, a schedule, or jobs.

A form says the verb, and which jobs: by `id` in a queue `q`; by `from` and `to`, the range in which
they are due; or by the filter of a list. Of a range or a filter, the answer is how many jobs that
means, with a form that says so in `sure`, and in `as_of` when that was. Where more are meant by the
time that form comes, nothing is done, and it is asked again. What is done once is not done again by
the same form: it means what had begun or ended by then, or what is still due in the range.

A form says the verb, the queue `q` and the schedule's `name`. One that edits carries `stand`, what
it was made from: where another has changed the schedule since, that is shown, and nothing is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bide.errors import BideError, UsageError
from bide.model.durations import describe, to_us
from bide.model.ids import new_id
from bide.model.job import FINISHED, State
from bide.model.schedule import Schedule, id_of
from bide.protocol.command import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as ops
from bide.queue.schedules import found, ran
from bide.views.jobs import read_range
from bide.views.params import LATEST_US, Asked
from bide.views.schedules import describe_schedule, foreseen, named
from bide.views.site import AsyncSite
from bide.web.access import Refused, Role, status_and_sentence
from bide.web.pages import render
from bide.web.selection import MOST, Chosen, choose, given, read_wish


class JobAction(NamedTuple):
    """A change that the dashboard offers for jobs."""

    does: str
    """The label of its button."""
    done: str
    states: tuple[State, ...]
    """The states of jobs that allow the change."""


_DUE: Final = (State.WAITING, State.DELAYED)
_UNBEGUN: Final = (*_DUE, State.BLOCKED)
_ENDED: Final = tuple(state for state in State if state in FINISHED)

VERBS: Final[dict[str, JobAction]] = {
    "cancel": JobAction("Cancel", "cancelled", (State.ACTIVE, *_UNBEGUN)),
    "promote": JobAction("Run now", "made due now", _UNBEGUN),
    "reschedule": JobAction("Reschedule", "rescheduled", _UNBEGUN),
    "spread": JobAction("Spread", "spread", _DUE),
    "retry": JobAction("Retry", "retried", _ENDED),
    "delete": JobAction("Delete", "deleted", (*_UNBEGUN, *_ENDED)),
}
"""What can be done to jobs."""

MOST_STEPS: Final = 1_000
"""Moments over which jobs are spread, at most."""

_TRIP: Final = 10
"""Calls per round trip: a bulk change leaves others their turn."""

_FINE: Final = ("ok", "asked")

_IN_THEIR_LIST: Final = ("reschedule", "spread")
"""Verbs that leave jobs in their list, so that changed jobs look like the remaining ones."""

_OF_ONE_FORM: Final = ("sure", "as_of", "after")
"""Fields that the form for the remaining jobs sets to new values."""


async def change_jobs(site: AsyncSite, request: Request, asked: Asked, verb: str) -> Response:
    """Show which jobs a form selects, or change them.

    Raises:
        UsageError: the form is invalid.
        NotFound: there is no such queue.
    """
    does = VERBS[verb]
    if verb in _IN_THEIR_LIST and not (asked.text("id") or asked.text("from")):
        raise UsageError(f"{does.does} which jobs? Give an id, or a range: from= and to=.")
    what = _what(verb, asked)  # checks the form before anything is asked or done
    chosen = await choose(site, asked, does.states)
    if not chosen.named and chosen.total > MOST and asked.text("from"):
        _check_rest(verb, asked, chosen)
    shown: dict[str, Any] = {"role": Role.OPERATOR, "asked": asked, "site": site}
    shown |= {"verb": does, "what": what, "chosen": chosen}
    fields = [(name, value) for name, value in asked.pairs if value and name not in _OF_ONE_FORM]
    shown_before = asked.number("sure", 0, LATEST_US)
    if not chosen.named and not 0 < chosen.count <= shown_before:
        sure = [*fields, ("after", asked.text("after")), ("as_of", chosen.as_of_us)]
        rest = chosen.rest(Counter())
        return render(request, "confirm", fields=sure, rest=_after(fields, rest), **shown)
    came, trouble = await _do(site, verb, asked, chosen)
    words: Counter[str] = sum(came.values(), Counter())
    if trouble and (chosen.named or not words):
        raise trouble
    if chosen.named and set(words) <= set(_FINE) and verb != "delete":
        ((queue, (id,)),) = chosen.ids.items()
        root = request.scope.get("root_path", "").rstrip("/")
        return RedirectResponse(Asked("").address(f"{root}/job", q=queue, id=id), 303)
    moved = Counter({queue: each["ok"] for queue, each in came.items()})
    status, problem = status_and_sentence(trouble) if trouble else (200, None)
    return render(
        request,
        "done",
        status,
        problem=problem,
        untold=chosen.count - words.total(),
        changed=sum(words[word] for word in _FINE),
        others={word: n for word, n in words.items() if word not in _FINE},
        rest=None if trouble else _after(fields, chosen.rest(moved)),
        **shown,
    )


def _after(fields: list[tuple[str, str]], rest: str | None) -> list[tuple[str, str]] | None:
    """The form for those that are left; None where there are none."""
    return None if rest is None else [*fields, ("after", rest)]


def _check_rest(verb: str, asked: Asked, chosen: Chosen) -> None:
    """Refuse what could not go on: those that were moved would be taken for those that are left.

    Raises:
        UsageError: too many jobs are meant, and are due in the same range after the change.
    """
    (from_us, to_us), now_us = read_range(asked), chosen.as_of_us
    match verb:
        case "spread":
            first_us, last_us = now_us, now_us + _over_us(asked)
        case "reschedule":
            when = _when(asked)
            first_us = last_us = int(when[1:]) + (now_us if when[0] == "+" else 0)
        case "promote":
            first_us = last_us = now_us
        case _:
            return
    if first_us < to_us and last_us >= from_us:
        raise UsageError(
            f"{MOST:,} jobs are changed in one go, this range has more, and they would be due in "
            "it again; choose a shorter range, or a time outside of it."
        )


def _what(verb: str, asked: Asked) -> str:
    """Return the rest of the sentence that says what would be done.

    Raises:
        UsageError: the time is missing or invalid.
    """
    if verb == "spread":
        return f"evenly over the next {describe(_over_us(asked) / 1e6)}"
    if verb == "reschedule":
        when = _when(asked)
        if when[0] == "+":
            return f"to {describe(int(when[1:]) / 1e6)} from now"
        return f"to {asked.text('at')}"
    return ""


def _when(asked: Asked) -> str:
    delay, at_us = asked.text("delay"), asked.moment_us("at")
    if bool(delay) == (at_us is not None):
        raise UsageError("Say when: either a delay such as 10m, or a moment.")
    return f"={at_us}" if at_us is not None else enqueue_commands.when(delay, None)


def _over_us(asked: Asked) -> int:
    over_us = to_us(asked.text("over") or "0", "over")
    if over_us < 1:
        raise UsageError("Say over how long to spread them, such as 10m.")
    return over_us


async def _do(
    site: AsyncSite, verb: str, asked: Asked, chosen: Chosen
) -> tuple[dict[str, Counter[str]], BideError | None]:
    """Do it in bounded steps, until one fails; how many jobs of each queue came to which word."""
    came: dict[str, Counter[str]] = {}
    for queue, ids in chosen.ids.items():
        commands = _commands(site, verb, asked, queue, ids, chosen.states)
        words = came[queue] = Counter[str]()
        for i in range(0, len(commands), _TRIP):
            trouble = None
            for replies in await site.client.attempt_many(commands[i : i + _TRIP]):
                if isinstance(replies, BideError):
                    trouble = replies
                else:
                    words.update(getattr(reply, "result", reply) for reply in replies)
            if trouble:
                return came, trouble
    return came, None


def _commands(
    site: AsyncSite,
    verb: str,
    asked: Asked,
    queue: str,
    ids: Sequence[str],
    states: Sequence[State],
) -> list[Command[Any]]:
    keys = site.keys(queue)
    if verb == "spread":
        steps = spread(ids, _over_us(asked))
        return [job_commands.reschedule(keys, some, f"+{after_us}") for some, after_us in steps]
    commands: list[Command[Any]] = []
    for i in range(0, len(ids), job_commands.MOST_CHANGED):
        some = ids[i : i + job_commands.MOST_CHANGED]
        match verb:
            case "cancel":
                commands.append(job_commands.cancel(keys, some, running=State.ACTIVE in states))
            case "promote":
                commands.append(job_commands.promote(keys, some))
            case "reschedule":
                commands.append(job_commands.reschedule(keys, some, _when(asked)))
            case "retry":
                commands.append(job_commands.retry(keys, some, "+0"))
            case _:
                commands.append(
                    job_commands.delete(keys, some, unbegun=not FINISHED.issuperset(states))
                )
    return commands


def spread(ids: Sequence[str], over_us: int) -> list[tuple[Sequence[str], int]]:
    """Jobs in groups, in their order, and how long from now each is due: evenly over a time."""
    size = min(job_commands.MOST_CHANGED, -(-len(ids) // MOST_STEPS)) or 1
    groups = [ids[i : i + size] for i in range(0, len(ids), size)]
    return [(group, i * over_us // len(groups)) for i, group in enumerate(groups)]


SCHEDULE_VERBS: Final = tuple(
    f"{verb}-schedule" for verb in ("pause", "resume", "run", "remove", "edit")
)


async def act_on_schedule(
    site: AsyncSite, request: Request, asked: Asked, role: Role, verb: str
) -> Response:
    """Do what a form says with a schedule.

    Raises:
        UsageError: the form is invalid.
        NotFound: there is no such queue.
        ScheduleNotFound: the queue has no such schedule.
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
            return _to(request, "job", q=queue, id=ran(receipt, one.name, queue, id).id)
        case "remove-schedule":
            if asked.text("sure") != "1":
                return render(request, "remove", m=describe_schedule(queue, one, now_us), **shown)
            await site.client.run(ops.remove_schedules(keys, [one.name]))
            return _to(request, "schedules", q=queue)
        case _:
            return await _edit(site, request, asked, shown, queue, now_us, one)
    return _to(request, "schedule", q=queue, name=one.name)


async def _edit(
    site: AsyncSite,
    request: Request,
    asked: Asked,
    shown: dict[str, Any],
    queue: str,
    now_us: int,
    one: Schedule,
) -> Response:
    def again(one: Schedule, status: int, **more: Any) -> Response:
        """The form as it was sent, below what it means, or what is wrong with it."""
        m = describe_schedule(queue, one, now_us)
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


async def act(site: AsyncSite, request: Request, asked: Asked, role: Role) -> Response:
    """Do what a form says in `verb`.

    Raises:
        Refused: the sender may only look.
        UsageError: the form is invalid.
        NotFound: there is no such queue.
        ScheduleNotFound: the queue has no such schedule.
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


async def _pause(site: AsyncSite, request: Request, asked: Asked, verb: str) -> Response:
    name = await site.one(asked.text("q"))
    keys = site.keys(name)
    await site.client.run(
        job_commands.pause(keys) if verb == "pause" else job_commands.resume(keys)
    )
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(Asked("").address(f"{root}/queue", q=name), 303)


async def _pause_group(site: AsyncSite, request: Request, asked: Asked, verb: str) -> Response:
    queue = await site.one(asked.text("q"))
    await site.client.run(
        queue_commands.configure(
            site.keys(queue), asked.text("group"), paused=verb == "pause-group"
        )
    )
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(Asked("").address(f"{root}/groups", q=queue), 303)
