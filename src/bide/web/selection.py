"""The jobs that a form selects: by id, by a range of due times, or by a filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from bide.errors import UsageError
from bide.model.durations import SECOND_US, describe_exactly, to_us
from bide.model.job import FINISHED, State
from bide.model.limits import Retention, stored_rate
from bide.model.options import GroupSettings, QueueSettings
from bide.model.schedule import Missed, Timing, check_missed, timing_of
from bide.protocol.commands import jobs as job_commands
from bide.queue._async.scan import AsyncScan
from bide.queue.select import PAGE, FoundJob, JobVerb, Paging, Place, in_turn
from bide.views._async import AsyncSite
from bide.views.jobs import FILTER, read_filter, read_range
from bide.views.params import LATEST_US, Params, read_moment

MOST: Final = 100_000
"""Maximum number of jobs of a range that one form changes."""

LOOK: Final = 20_000
"""Maximum number of jobs that one form reads for a filter; the next form continues there."""

_DATED: Final = (State.ACTIVE, *FINISHED)
"""States for which the moment of the change to the state is known."""


@dataclass
class Selection:
    """The jobs that a form selects."""

    ids: dict[str, list[str]] = field(default_factory=dict)
    """The ids by queue."""
    named: bool = False
    """Whether it is one job that was selected by its id."""
    states: tuple[State, ...] = (State.WAITING, State.DELAYED)
    """The allowed states; jobs that have changed to another state are not selected."""
    total: int = 0
    """The number of selected jobs, if it is known without reading each; otherwise the number of
    jobs to read."""
    as_of_us: int = 0
    """When they were selected; jobs that have started or ended since are not selected."""
    tasks: Counter[str] = field(default_factory=Counter)
    """The number of jobs of each task, if the jobs were read."""
    looked: int | None = None
    """Number of jobs read, including earlier forms; None if no job had to be read."""
    next: Place | None = None
    """The position from which to continue."""

    @property
    def count(self) -> int:
        """The number of jobs."""
        return sum(map(len, self.ids.values()))

    def rest(self, moved: Counter[str]) -> str | None:
        """Return the position of the remaining jobs, after so many jobs have left their lists.

        None if no jobs remain; empty if the same form selects the remaining jobs.
        """
        if self.next is not None:
            return str(self.next.up(moved[self.next.queue]))
        return "" if self.looked is None and self.count < self.total else None


async def choose(site: AsyncSite, params: Params, verb: JobVerb) -> Selection:
    """Find the jobs that a form selects for a change."""
    if id := params.text("id"):
        queue = await site.one(params.text("q"))
        # The button to delete stands at a job that has ended, which may be to run again by now.
        fit = tuple(FINISHED) if verb.name == "delete" else tuple(State)
        return Selection({queue: [id]}, named=True, states=fit, total=1)
    if params.text("from"):
        return await _in_range(site, params)
    if not params.text("state"):
        raise UsageError("Which jobs? Give an id, a range, or a state.")
    return await _that_fit(site, params, verb)


async def _in_range(site: AsyncSite, params: Params) -> Selection:
    from_us, to_us = read_range(params)
    if any(params.text(name) for name in FILTER):
        raise UsageError("Choose jobs by a range, from= and to=, or by a filter, not by both.")
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


async def _that_fit(site: AsyncSite, params: Params, verb: JobVerb) -> Selection:
    queues, wanted = await site.known(params.queues), read_filter(params)
    odd = [state for state in wanted.states if state not in verb.possible]
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
        is_due = verb.name == "promote" and seen.state == State.WAITING
        if is_due or _changed_us(seen) > selection.as_of_us:
            continue
        selection.ids.setdefault(seen.queue, []).append(seen.id)
        selection.tasks[seen.snapshot.task] += 1
    selection.looked, selection.total, selection.next = scan.looked, scan.total, scan.next
    return selection


def _changed_us(seen: FoundJob) -> int:
    """Return when a job has started or ended; 0 if it was never claimed."""
    if seen.state in _DATED:
        return seen.moment_us
    run = seen.snapshot.run  # a job that waits for its next attempt has one
    return run.token if run else 0


_LIMITS: Final = ("rate", "burst", "concurrency", "group_rate", "group_burst")
_KEPT: Final = ("completed", "failed", "cancelled", "count", "results")

SETTINGS: Final = (*_LIMITS, *_KEPT)


def settings_shown(queue: Mapping[str, Any]) -> dict[str, str]:
    """Return the form fields of a queue's settings, from the result of `views.queues`."""
    limits, kept = queue["counts"]["limits"], queue["retention"]
    shown = {name: str(limits[name] or "") for name in _LIMITS}
    for rate, burst in (("rate", "burst"), ("group_rate", "group_burst")):
        shown[burst] = _burst_shown(shown[rate], shown[burst])
    for state in _KEPT[:3]:
        shown[state] = describe_exactly(round(kept[state] * SECOND_US)) or "0s"
    return shown | {"count": str(kept["count"]), "results": _size(kept["results"])}


def group_shown(group: Mapping[str, Any]) -> dict[str, str]:
    """Return the form fields of a group's limits, from its `GroupCounts` as a mapping."""
    own = [str(group[name]) if group["has_own_rate"] else "" for name in ("rate", "burst")]
    concurrency = str(group["concurrency"]) if group["is_configured"] else ""
    return {"concurrency": concurrency, "rate": own[0], "burst": _burst_shown(*own)}


def _burst_shown(rate: str, burst: str) -> str:
    """Return the field of a burst; empty if it follows from the rate, also from another one."""
    return "" if rate and stored_rate(rate).split()[-1] == burst else burst


def _size(number: int) -> str:
    """Format bytes in a form that `Retention` reads."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def stand_of(settings: Mapping[str, str]) -> str:
    """Return the settings as one text, with which a form detects changes by others."""
    return " ".join(value or "-" for value in settings.values())


def read_settings(given: Mapping[str, str], shown: Mapping[str, str]) -> QueueSettings:
    """Read the settings of a form that differ from those that are shown.

    Raises:
        UsageError: one is invalid.
    """
    settings = cast("QueueSettings", _read_limits(given, shown, "rate", "group_rate"))
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


def read_group_settings(given: Mapping[str, str], shown: Mapping[str, str]) -> GroupSettings:
    """Read the limits of a group that differ from those that are shown; empty means none.

    Raises:
        UsageError: one is invalid.
    """
    return cast("GroupSettings", _read_limits(given, shown, "rate"))


def _read_limits(
    given: Mapping[str, str], shown: Mapping[str, str], *rates: str
) -> dict[str, int | str | None]:
    limits: dict[str, int | str | None] = {}
    for rate in rates:
        burst = rate.replace("rate", "burst")
        if any(given[name] != shown[name] for name in (rate, burst)):
            limits[rate] = given[rate] or None
            if given[burst] and (given[burst] != shown[burst] or given[rate]):
                limits[burst] = _whole(given[burst], burst)
    if given["concurrency"] != shown["concurrency"]:
        limits["concurrency"] = _whole(given["concurrency"], "concurrency")
    return limits


def _whole(text: str, name: str) -> int | None:
    """Parse an integer; None if empty."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 12:
        raise UsageError(f"{name}={text[:40]!r} is not a whole number.")
    return int(text)


FIELDS: Final = ("kind", "cron", "tz", "every", "at", "start", "end", "limit", "missed", "jitter")

_KINDS: Final = ("cron", "every", "at")
_LARGEST_LIMIT: Final = 10**15


class Wish(NamedTuple):
    """The times of a schedule in a form."""

    timing: Timing
    missed: Missed
    jitter_us: int


def filled(shown: Mapping[str, Any]) -> dict[str, str]:
    """Return the form's fields, from a schedule in the form of `views.schedules`."""
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
    """Return the form's fields as they were sent."""
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
