"""What an operator may do to jobs: first it is said how many, then it is done to no more than that.

A form says the verb, and which jobs: by `id` in a queue `q`; by `from` and `to`, the range in which
they are due; or by the filter of a list. Of a range or a filter, the answer is how many jobs that
means, with a form that says so in `sure`, and in `as_of` when that was. Where more are meant by the
time that form comes, nothing is done, and it is asked again. What is done once is not done again by
the same form: it means what had begun or ended by then, or what is still due in the range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bide.clock import describe, to_us
from bide.command import Command
from bide.errors import BideError, UsageError
from bide.ops import manage, produce
from bide.states import FINISHED, State
from bide.web.access import Role
from bide.web.asked import LATEST_US, Asked
from bide.web.chosen import MOST, Chosen, choose
from bide.web.pages import render
from bide.web.reads.range import read_range
from bide.web.site import Site
from bide.web.trouble import status_and_sentence


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

_IN_THEIR_LIST: Final = ("reschedule", "spread")
"""What leaves jobs in the list in which they stand, so that the rest of it could not be told."""

_OF_ONE_FORM: Final = ("sure", "as_of", "after")
"""What the form for the rest says anew."""


async def change_jobs(site: Site, request: Request, asked: Asked, verb: str) -> Response:
    """Say which jobs are meant, or change them.

    Raises:
        UsageError: the form cannot be meant.
        NotFound: there is no such queue.
    """
    does = VERBS[verb]
    if verb in _IN_THEIR_LIST and not (asked.text("id") or asked.text("from")):
        raise UsageError(f"{does.does} which jobs? Give an id, or a range: from= and to=.")
    what = _what(verb, asked)  # before anything is asked or done: it must be one that can be meant
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


async def _do(
    site: Site, verb: str, asked: Asked, chosen: Chosen
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
                    words.update(getattr(reply, "word", reply) for reply in replies)
            if trouble:
                return came, trouble
    return came, None


def _commands(
    site: Site,
    verb: str,
    asked: Asked,
    queue: str,
    ids: Sequence[str],
    states: Sequence[State],
) -> list[Command[Any]]:
    keys = site.keys(queue)
    if verb == "spread":
        steps = spread(ids, _over_us(asked))
        return [manage.reschedule(keys, some, f"+{after_us}") for some, after_us in steps]
    commands: list[Command[Any]] = []
    for i in range(0, len(ids), manage.CHUNK):
        some = ids[i : i + manage.CHUNK]
        match verb:
            case "cancel":
                commands.append(manage.cancel(keys, some, running=State.ACTIVE in states))
            case "promote":
                commands.append(manage.promote(keys, some))
            case "reschedule":
                commands.append(manage.reschedule(keys, some, _when(asked)))
            case "retry":
                commands.append(manage.retry(keys, some, "+0"))
            case _:
                commands.append(manage.delete(keys, some, unbegun=not FINISHED.issuperset(states)))
    return commands


def spread(ids: Sequence[str], over_us: int) -> list[tuple[Sequence[str], int]]:
    """Jobs in groups, in their order, and how long from now each is due: evenly over a time."""
    size = min(manage.CHUNK, -(-len(ids) // MOST_STEPS)) or 1
    groups = [ids[i : i + size] for i in range(0, len(ids), size)]
    return [(group, i * over_us // len(groups)) for i, group in enumerate(groups)]
