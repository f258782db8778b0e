"""What an operator may change: first it is said what would be, then it is done.

A form says the verb, and which jobs: by `id` in a queue `q`; by `from` and `to`, the range in which
they are due; or by the filter of a list. Without `sure` the answer is how many jobs that means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bide.clock import describe, to_us
from bide.command import Command
from bide.errors import UsageError
from bide.ops import groups, manage, produce
from bide.states import FINISHED, State
from bide.web.access import Refused, Role
from bide.web.asked import Asked
from bide.web.chosen import Chosen, choose
from bide.web.pages import render
from bide.web.scheduling import SCHEDULE_VERBS, act_on_schedule
from bide.web.site import Site


class Verb(NamedTuple):
    """A change of jobs."""

    does: str
    """As a button says it."""
    done: str
    states: tuple[State, ...]
    """Of the jobs that it may be for."""


_DUE: Final = (State.WAITING, State.DELAYED)
_UNBEGUN: Final = (*_DUE, State.BLOCKED)
_ENDED: Final = tuple(state for state in State if state in FINISHED)

VERBS: Final[dict[str, Verb]] = {
    "cancel": Verb("Cancel", "cancelled", (State.ACTIVE, *_UNBEGUN)),
    "promote": Verb("Run now", "made due now", _UNBEGUN),
    "reschedule": Verb("Reschedule", "rescheduled", _UNBEGUN),
    "spread": Verb("Spread", "spread", _DUE),
    "retry": Verb("Retry", "retried", _ENDED),
    "delete": Verb("Delete", "deleted", (*_UNBEGUN, *_ENDED)),
}
"""What can be done to jobs."""

MOST_STEPS: Final = 1_000
"""Moments over which jobs are spread, at most."""

_TRIP: Final = 10
"""Calls per round trip: a bulk change leaves others their turn."""

_FINE: Final = ("ok", "asked")


async def act(site: Site, request: Request, asked: Asked, role: Role) -> Response:
    """Change a queue, a group, a schedule, or jobs.

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
    chosen = await choose(site, asked, VERBS[verb].states)
    what = _what(verb, asked)  # before anything is asked or done: it must be one that can be meant
    shown: dict[str, Any] = {"role": role, "asked": asked, "site": site}
    if not chosen.named and asked.text("sure") != "1":
        return render(
            request,
            "confirm",
            verb=VERBS[verb],
            what=what,
            chosen=chosen,
            fields=[(name, value) for name, value in asked.pairs if value],
            **shown,
        )
    came = await _do(site, verb, asked, chosen)
    if chosen.named and set(came) <= set(_FINE) and verb != "delete":
        ((queue, (id,)),) = chosen.ids.items()
        root = request.scope.get("root_path", "").rstrip("/")
        return RedirectResponse(Asked("").address(f"{root}/job", q=queue, id=id), 303)
    return render(
        request,
        "done",
        verb=VERBS[verb],
        changed=sum(came[word] for word in _FINE),
        others={word: n for word, n in came.items() if word not in _FINE},
        chosen=chosen,
        **shown,
    )


async def _pause(site: Site, request: Request, asked: Asked, verb: str) -> Response:
    name = asked.text("q")
    if not name:
        raise UsageError("Which queue? Give its name as q=.")
    await site.known(name)
    keys = site.keys(name)
    await site.client.run(manage.pause(keys) if verb == "pause" else manage.resume(keys))
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(Asked("").address(f"{root}/queue", q=name), 303)


async def _pause_group(site: Site, request: Request, asked: Asked, verb: str) -> Response:
    (queue,) = await site.known(asked.text("q") or "?")
    await site.client.run(
        groups.configure(site.keys(queue), asked.text("group"), paused=verb == "pause-group")
    )
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(Asked("").address(f"{root}/groups", q=queue), 303)


def _what(verb: str, asked: Asked) -> str:
    """The rest of the sentence that says what would be done.

    Raises:
        UsageError: when is not said, or cannot be meant.
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
    return f"={at_us}" if at_us is not None else produce.when(delay, None)


def _over_us(asked: Asked) -> int:
    over_us = to_us(asked.text("over") or "0", "over")
    if over_us < 1:
        raise UsageError("Say over how long to spread them, such as 10m.")
    return over_us


async def _do(site: Site, verb: str, asked: Asked, chosen: Chosen) -> Counter[str]:
    """Do it in bounded steps; how many jobs came to which word."""
    came: Counter[str] = Counter()
    for queue, ids in chosen.ids.items():
        keys = site.keys(queue)
        commands: list[Command[Any]] = []
        if verb == "spread":
            over_us = _over_us(asked)
            for some, after_us in spread(ids, over_us):
                commands.append(manage.reschedule(keys, some, f"+{after_us}"))
        for i in range(0, len(ids) if verb != "spread" else 0, manage.CHUNK):
            some = ids[i : i + manage.CHUNK]
            match verb:
                case "cancel":
                    commands.append(manage.cancel(keys, some))
                case "promote":
                    commands.append(manage.promote(keys, some))
                case "reschedule":
                    commands.append(manage.reschedule(keys, some, _when(asked)))
                case "retry":
                    commands.append(manage.retry(keys, some, "+0"))
                case _:
                    commands.append(manage.delete(keys, some))
        for i in range(0, len(commands), _TRIP):
            for replies in await site.client.run_many(commands[i : i + _TRIP]):
                came.update(getattr(reply, "word", reply) for reply in replies)
    return came


def spread(ids: Sequence[str], over_us: int) -> list[tuple[Sequence[str], int]]:
    """Jobs in groups, in their order, and how long from now each is due: evenly over a time."""
    size = min(manage.CHUNK, -(-len(ids) // MOST_STEPS)) or 1
    groups = [ids[i : i + size] for i in range(0, len(ids), size)]
    return [(group, i * over_us // len(groups)) for i, group in enumerate(groups)]
