"""When a schedule fires, as a form has it: filled from a schedule, and read again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from bide.clock import SECOND_US, to_us
from bide.errors import UsageError
from bide.schedule import Missed, Timing, check_missed, timing_of
from bide.web.asked import Asked, read_moment

FIELDS: Final = ("kind", "cron", "tz", "every", "at", "start", "end", "limit", "missed", "jitter")

_KINDS: Final = ("cron", "every", "at")
_LARGEST_LIMIT: Final = 10**15
_UNITS: Final = (
    *(("d", 86_400 * SECOND_US), ("h", 3_600 * SECOND_US), ("m", 60 * SECOND_US)),
    *(("s", SECOND_US), ("ms", 1_000), ("us", 1)),
)


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
        "every": exact(round((shown["every"] or 0) * SECOND_US)),
        "at": " ".join(shown["at"]),
        "start": shown["start"] or "",
        "end": shown["end"] or "",
        "limit": str(shown["limit"] or ""),
        "missed": shown["missed"],
        "jitter": exact(round(shown["jitter"] * SECOND_US)),
    }


def given(asked: Asked) -> dict[str, str]:
    """The form's fields, as they were sent."""
    return {name: " ".join(asked.text(name).split()) for name in FIELDS}


def read_wish(asked: Asked) -> Wish:
    """What a form asks for.

    Raises:
        UsageError: it cannot be meant.
    """
    kind = asked.text("kind")
    if kind not in _KINDS:
        raise UsageError("Say by what it fires: a cron expression, an interval, or moments.")
    if kind != "at" and not asked.text(kind):
        raise UsageError(
            "Write a cron expression, such as '0 9 * * 1-5'."
            if kind == "cron"
            else "Write an interval, such as 90s or 1h30m."
        )
    timing = timing_of(
        cron=asked.text("cron") if kind == "cron" else None,
        every=asked.text("every") if kind == "every" else None,
        at=[read_moment(word, "at") for word in asked.text("at").split()] if kind == "at" else None,
        tz=(asked.text("tz") or None) if kind == "cron" else None,
        start=_moment(asked, "start"),
        end=_moment(asked, "end"),
        limit=asked.number("limit", 0, _LARGEST_LIMIT) if asked.text("limit") else None,
    )
    missed = check_missed(cast("Missed", asked.text("missed")))
    return Wish(timing, missed, to_us(asked.text("jitter") or 0, "jitter"))


def exact(us: int) -> str:
    """A duration as a form has it: read again, it is the same to the microsecond."""
    parts = []
    for unit, size in _UNITS:
        count, us = divmod(us, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def _moment(asked: Asked, name: str) -> datetime | None:
    text = asked.text(name)
    return read_moment(text, name) if text else None
