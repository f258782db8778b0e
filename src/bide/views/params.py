"""Reads the parameters of an address or a form, and formats moments.

An invalid parameter raises `UsageError`, with a sentence that names the parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

from bide.errors import BideError, UsageError
from bide.model.durations import at_to_us, describe
from bide.model.ids import short_id
from bide.model.job import LISTABLE, State
from bide.queue.select import ORDER


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence: `; did you mean 'jobs'?`, or nothing without a similar name."""
    near = get_close_matches(name, list(names), n=3)
    return f"; did you mean {' or '.join(repr(short_id(one)) for one in near)}?" if near else ""


class NotFound(BideError, LookupError):
    """A named object does not exist: exit code 3."""


def read_moment(text: str, name: str) -> datetime:
    """Parse a moment: ISO 8601 with a time zone."""
    said = f"{name}{' ' if name.startswith('-') else '='}{text[:40]!r}"
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{said} is not a moment; write it as 2030-01-31T09:00:00+01:00."
        ) from None
    if at.utcoffset() is None:
        raise UsageError(
            f"{said} has no time zone, so the moment is ambiguous; write {at.isoformat()}Z or "
            f"{at.isoformat()}+01:00."
        )
    return at


def moment(at: datetime) -> str:
    """Format a moment for people: in the local time zone, to the second."""
    return f"{at.astimezone():%F %T}"


def moment_exactly(at: datetime) -> str:
    """Format a moment to the millisecond, with its time zone."""
    local = at.astimezone()
    return f"{local:%F %T}.{local.microsecond // 1000:03}{local:%z}"


def moment_json(at: datetime | None) -> str | None:
    """Format a moment for programs: ISO 8601 in UTC."""
    return at.astimezone(UTC).isoformat() if at else None


def report(found: object, *names: str) -> dict[str, Any]:
    """Return attributes of a value by name, in their JSON forms."""
    values = {name: getattr(found, name) for name in names}
    return {n: moment_json(v) if isinstance(v, datetime) else v for n, v in values.items()}


def relative(seconds: float) -> str:
    """Format a time from now: `in 5m`, `now`, `3h2m ago`."""
    if abs(seconds) < 0.0005:
        return "now"
    if abs(seconds) >= 10:
        seconds = round(seconds)
    return f"in {describe(seconds)}" if seconds > 0 else f"{describe(-seconds)} ago"


def ahead(seconds: float) -> str:
    """Format a time from now, below a title that says `in`."""
    return relative(seconds).removeprefix("in ")


def megabytes(size: int) -> str:
    """Format a size of memory; empty if it is not known."""
    return f"{size / 1e6:.1f} MB" if size else ""


def about(seconds: float) -> str:
    """Format an estimated duration: two digits, and at least a second."""
    return f"about {describe(float(f'{max(1.0, seconds):.2g}'))}"


T = TypeVar("T")

LATEST_US: Final = 2**52
_EARLIEST_US: Final = 10**14
"""A smaller number is refused, because it is probably in seconds or milliseconds."""


class Params(dict[str, str]):
    """Parameters by name; the last of a repeated one. Ids may have any bytes."""

    def __init__(self, text: str | bytes) -> None:
        """Parse a query string, or the body of a form."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        try:
            pairs = parse_qsl(
                text, keep_blank_values=True, errors="surrogateescape", max_num_fields=2_000
            )
        except ValueError:
            raise UsageError("The request has too many parameters; send fewer.") from None
        super().__init__(pairs)
        self.pairs = pairs

    def text(self, name: str) -> str:
        """Return a parameter without surrounding blanks; empty if it is missing."""
        return self.get(name, "").strip()

    def every(self, name: str) -> list[str]:
        """Return all non-empty values of a parameter that may be repeated."""
        return [value for key, value in self.pairs if key == name and value]

    @property
    def queues(self) -> list[str]:
        """Return the queue in `q`; none if it is missing, which means all queues."""
        return [name for name in [self.text("q")] if name]

    def number(self, name: str, otherwise: int, most: int) -> int:
        """Parse an integer from 0 to `most`."""
        text = self.text(name)
        if not text:
            return otherwise
        if not (text.isascii() and text.isdecimal()) or len(text) > 16 or int(text) > most:
            raise UsageError(f"{name}={text[:40]!r} is not a whole number from 0 to {most}.")
        return int(text)

    def choice(self, name: str, among: Mapping[str, T], otherwise: str) -> tuple[str, T]:
        """Return the value that a parameter names, and the name."""
        word = self.text(name) or otherwise
        if word not in among:
            raise UsageError(f"There is no {name} {word[:40]!r}; give one of {', '.join(among)}.")
        return word, among[word]

    def moment_us(self, name: str) -> int | None:
        """Parse a moment: microseconds since 1970, or ISO 8601 with a time zone; None if empty."""
        text = self.text(name)
        if not text:
            return None
        if text.isascii() and text.isdecimal():
            at_us = self.number(name, 0, LATEST_US)
            if 0 < at_us < _EARLIEST_US:
                raise UsageError(
                    f"{name}={text} is too small for microseconds since 1970; give those, or a "
                    "time such as 2030-01-31T09:00:00+01:00."
                )
            return at_us
        return at_to_us(read_moment(text, name), name)

    def states(self) -> tuple[State, ...]:
        """Return the states in `state`; all states if it is missing."""
        named = self.every("state")
        for name in named:
            if name not in LISTABLE:
                raise UsageError(
                    f"There is no state {name[:40]!r}; give one of {', '.join(LISTABLE)}."
                )
        return tuple(state for state in ORDER if not named or state in named)

    def address(self, path: str, **changed: str | int | None) -> str:
        """Return an address with these parameters and changes; None removes a parameter."""
        kept = [(name, value) for name, value in self.pairs if name not in changed and value]
        kept += [(name, str(value)) for name, value in changed.items() if value is not None]
        return path + (f"?{urlencode(kept, errors='surrogateescape')}" if kept else "")
