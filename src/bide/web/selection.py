"""Which jobs a form means: one by its id, those due in a range, or those that fit a filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, cast

from bide.errors import UsageError
from bide.model.durations import SECOND_US, describe_exactly, to_us
from bide.model.job import FINISHED, State
from bide.model.limits import Retention
from bide.model.options import GroupSettings, QueueSettings
from bide.model.schedule import Missed, Timing, check_missed, timing_of
from bide.protocol.commands import jobs as job_commands
from bide.queue._async.scan import AsyncScan
from bide.queue.select import PAGE, Paging, Place, in_turn
from bide.views._async import AsyncSite
from bide.views.jobs import read_filter, read_range
from bide.views.params import LATEST_US, Params, read_moment

MOST: Final = 100_000
"""Jobs of a range that one form changes; what is left is for the next."""

LOOK: Final = 20_000
"""Jobs that are looked at for those that fit a filter; the next part continues from there."""

_DATED: Final = (State.ACTIVE, *FINISHED)
"""States of which a job has the moment at which it came there."""


@dataclass
class Selection:
    """The jobs that a form means."""

    ids: dict[str, list[str]] = field(default_factory=dict)
    """By queue."""
    named: bool = False
    """Whether it is one job, by its id."""
    states: tuple[State, ...] = (State.WAITING, State.DELAYED)
    """In which they are meant: what has come to another meanwhile is not."""
    total: int = 0
    """How many there are to mean, where that is known without looking at each; else how many
    there are to look at."""
    as_of_us: int = 0
    """When they were chosen: what has begun or ended since is not meant."""
    tasks: Counter[str] = field(default_factory=Counter)
    """How many are of which task, where they were looked at."""
    looked: int | None = None
    """How many were looked at, in earlier parts too; None where that was not needed."""
    next: Place | None = None
    """Where to look on."""

    @property
    def count(self) -> int:
        """How many jobs this is."""
        return sum(map(len, self.ids.values()))

    def rest(self, moved: Counter[str]) -> str | None:
        """Where those that are left begin, once so many jobs of each queue have left their list.

        None where nothing is left; empty where those that are left are what the same form means.
        """
        if self.next is not None:
            return str(self.next.up(moved[self.next.queue]))
        return "" if self.looked is None and self.count < self.total else None


async def choose(site: AsyncSite, params: Params, states: Sequence[State]) -> Selection:
    """Find the jobs that a form selects, if they may be in these states."""
    if id := params.text("id"):
        queue = await site.one(params.text("q"))
        return Selection({queue: [id]}, named=True, states=tuple(State), total=1)
    if params.text("from"):
        return await _in_range(site, params)
    if not params.text("state"):
        raise UsageError("Which jobs? Give an id, a range, or a state.")
    return await _that_fit(site, params, states)


async def _in_range(site: AsyncSite, params: Params) -> Selection:
    from_us, to_us = read_range(params)
    selection = Selection()
    for queue in await site.known(params.queues):
        ids: list[str] = []
        paging, room = Paging(), MOST - selection.count
        while True:
            start, size = paging.page(min(PAGE, room - len(ids)))
            page = await site.client.run(
                job_commands.list_due(site.keys(queue), from_us, to_us, start, size)
            )
            ids += paging.read([id for id, _ in page.jobs])
            if paging.is_over or len(ids) >= room:
                break
        selection.total += max(page.total, len(ids))
        selection.as_of_us = page.now_us
        if ids:
            selection.ids[queue] = ids
    return selection


async def _that_fit(site: AsyncSite, params: Params, states: Sequence[State]) -> Selection:
    queues, wanted = await site.known(params.queues), read_filter(params)
    odd = [state for state in wanted.states if state not in states]
    if odd:
        raise UsageError(
            f"Jobs that are {', '.join(odd)} do not allow this change; choose another state."
        )
    wanted = wanted.within(in_turn(wanted.states))
    scan = AsyncScan(site, queues, wanted, look=LOOK, after=params.text("after"))
    selection = Selection(states=wanted.states, as_of_us=params.number("as_of", 0, LATEST_US))
    async for seen in scan.each():
        if not selection.as_of_us:
            selection.as_of_us = seen.snapshot.now_us
        if seen.state in _DATED and seen.moment_us > selection.as_of_us:
            continue
        selection.ids.setdefault(seen.queue, []).append(seen.id)
        selection.tasks[seen.snapshot.task] += 1
    selection.looked, selection.total, selection.next = scan.looked, scan.total, scan.next
    return selection


_LIMITS: Final = ("rate", "burst", "concurrency", "group_rate", "group_burst")
_KEPT: Final = ("completed", "failed", "cancelled", "count", "results")

SETTINGS: Final = (*_LIMITS, *_KEPT)


def settings_shown(queue: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a queue's settings, from a queue as `views.queues` has it."""
    limits, kept = queue["counts"]["limits"], queue["retention"]
    shown = {name: str(limits[name] or "") for name in _LIMITS}
    for state in _KEPT[:3]:
        shown[state] = describe_exactly(round(kept[state] * SECOND_US)) or "0s"
    return shown | {"count": str(kept["count"]), "results": _size(kept["results"])}


def _size(number: int) -> str:
    """A number of bytes, as `Retention` reads it; of a large odd one, nearly."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number) if number < 10**9 else f"{number / 10**9:.3f}GB"


def stand_of(settings: Mapping[str, str]) -> str:
    """What a form of these settings carries, to show that they have not changed meanwhile."""
    return " ".join(settings[name] or "-" for name in SETTINGS)


def read_settings(given: Mapping[str, str], shown: Mapping[str, str]) -> QueueSettings:
    """Read the settings of a form that differ from those that are shown.

    Raises:
        UsageError: one is invalid.
    """
    settings: QueueSettings = {}
    rates: tuple[tuple[Literal["rate", "group_rate"], Literal["burst", "group_burst"]], ...] = (
        ("rate", "burst"),
        ("group_rate", "group_burst"),
    )
    for rate, burst in rates:
        if any(given[name] != shown[name] for name in (rate, burst)):
            settings[rate] = given[rate] or None
            if given[burst] and (given[burst] != shown[burst] or given[rate]):
                settings[burst] = _whole(given[burst], burst)
    if given["concurrency"] != shown["concurrency"]:
        settings["concurrency"] = _whole(given["concurrency"], "concurrency")
    if any(given[name] != shown[name] for name in _KEPT):
        count, results = _whole(given["count"], "count"), given["results"]
        ages = {state: given[state] for state in _KEPT[:3]}
        if count is None or not all((results, *ages.values())):
            raise UsageError(
                "Give the retention of each state, the maximum number of jobs, and "
                "the bytes of results."
            )
        settings["retention"] = Retention(**ages, count=count, results=results)
    return settings


def read_group_settings(params: Params) -> GroupSettings:
    """Read the limits of a group; an empty field means none.

    Raises:
        UsageError: one is invalid.
    """
    settings: GroupSettings = {"rate": params.text("rate") or None}
    if params.text("burst"):
        settings["burst"] = _whole(params.text("burst"), "burst")
    settings["concurrency"] = _whole(params.text("concurrency"), "concurrency")
    return settings


def _whole(text: str, name: str) -> int | None:
    """Read a whole number; None for nothing."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 12:
        raise UsageError(f"{name}={text[:40]!r} is not a whole number.")
    return int(text)


FIELDS: Final = ("kind", "cron", "tz", "every", "at", "start", "end", "limit", "missed", "jitter")

_KINDS: Final = ("cron", "every", "at")
_LARGEST_LIMIT: Final = 10**15


class Wish(NamedTuple):
    """What a form asks for."""

    timing: Timing
    missed: Missed
    jitter_us: int


def filled(shown: Mapping[str, Any]) -> dict[str, str]:
    """The form's fields, from a schedule as `reads.schedules` has it."""
    kind = next((kind for kind in _KINDS if shown[kind]), "at")
    return {
        "kind": kind,
        "cron": shown["cron"] or "",
        "tz": shown["tz"] or "",
        "every": describe_exactly(round((shown["every"] or 0) * SECOND_US)),
        "at": " ".join(shown["at"]),
        "start": shown["start"] or "",
        "end": shown["end"] or "",
        "limit": str(shown["limit"] or ""),
        "missed": shown["missed"],
        "jitter": describe_exactly(round(shown["jitter"] * SECOND_US)),
    }


def given(params: Params) -> dict[str, str]:
    """The form's fields, as they were sent."""
    return {name: " ".join(params.text(name).split()) for name in FIELDS}


def read_wish(params: Params) -> Wish:
    """Read the timing, the missed-times policy and the jitter of a form."""
    kind = params.text("kind")
    if kind not in _KINDS:
        raise UsageError("Choose when it fires: by a cron expression, an interval, or moments.")
    if kind != "at" and not params.text(kind):
        raise UsageError(
            "Write a cron expression, such as '0 9 * * 1-5'."
            if kind == "cron"
            else "Write an interval, such as 90s or 1h30m."
        )
    timing = timing_of(
        cron=params.text("cron") if kind == "cron" else None,
        every=params.text("every") if kind == "every" else None,
        at=[read_moment(word, "at") for word in params.text("at").split()]
        if kind == "at"
        else None,
        tz=(params.text("tz") or None) if kind == "cron" else None,
        start=_moment(params, "start"),
        end=_moment(params, "end"),
        limit=params.number("limit", 0, _LARGEST_LIMIT) if params.text("limit") else None,
    )
    missed = check_missed(cast("Missed", params.text("missed")))
    return Wish(timing, missed, to_us(params.text("jitter") or 0, "jitter"))


def _moment(params: Params, name: str) -> datetime | None:
    text = params.text(name)
    return read_moment(text, name) if text else None
