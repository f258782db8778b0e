"""Herds: many jobs that are due at the same moment, found without reading any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bide.cli.screen import moment_json
from bide.clock import from_us
from bide.ops import ahead
from bide.ops.ahead import MOST_STRETCHES, Timeline
from bide.web.site import Site

LEAST: Final = 100
"""Jobs within a second that make a herd."""

SHOWN: Final = 3

_SECOND: Final = 1_000_000
_MINUTE: Final = 60 * _SECOND


class _Place(NamedTuple):
    """A stretch of time with many jobs in it."""

    number: int
    queue: str
    at_us: int
    step_us: int


async def herds(site: Site, lines: Mapping[str, Timeline]) -> list[dict[str, Any]]:
    """The largest herds ahead, and how long each will take at the rate of the best minute lately.

    The fullest stretches are looked at again in finer steps, until a step is a second.
    """
    places = [
        _Place(number, queue, line.from_us + i * line.step_us, line.step_us)
        for queue, line in lines.items()
        for i, number in enumerate(line.due)
        if number >= LEAST and line.from_us + (i + 1) * line.step_us > line.now_us
    ]
    found = []
    for full in sorted(places, reverse=True)[:SHOWN]:
        place: _Place | None = full
        while place is not None and place.step_us > _SECOND:
            place = await _finer(site, place)
        if place is not None and place.number >= LEAST:
            found.append(place)
    rates = await _rates(site, {place.queue for place in found})
    return [
        {
            "queue": place.queue,
            "at": moment_json(from_us(place.at_us)),
            "from_us": place.at_us,
            "to_us": place.at_us + place.step_us,
            "count": place.number,
            "per_second": rates[place.queue],
            "takes": place.number / rate if (rate := rates[place.queue]) else None,
        }
        for place in found
    ]


async def _finer(site: Site, place: _Place) -> _Place | None:
    """The fullest part of a stretch."""
    step = max(_SECOND, -(-place.step_us // (MOST_STRETCHES * _SECOND)) * _SECOND)
    command = ahead.timeline(
        site.keys(place.queue), step, -(-place.step_us // step), at_us=place.at_us
    )
    line = await site.client.run(command)
    number = max(line.due)
    if not number:  # it was taken or moved meanwhile
        return None
    return _Place(number, place.queue, line.from_us + line.due.index(number) * step, step)


async def _rates(site: Site, queues: set[str]) -> dict[str, float]:
    """Jobs per second in the best minute of the last hour, of those whose end is kept."""
    commands = [
        ahead.timeline(site.keys(queue), _MINUTE, 61, offset_us=-60 * _MINUTE) for queue in queues
    ]
    lines = await site.client.run_many(commands)
    return {
        queue: max(map(sum, zip(line.completed, line.failed, strict=True))) / 60
        for queue, line in zip(queues, lines, strict=True)
    }
