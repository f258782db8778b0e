"""How the command line, the page and its JSON write moments and spans of time."""

from __future__ import annotations

from datetime import UTC, datetime

from bide.model.durations import describe


def moment(at: datetime) -> str:
    """A moment for people: in their own zone, to the second."""
    return f"{at.astimezone():%F %T}"


def moment_exactly(at: datetime) -> str:
    """The same to the millisecond, with its zone."""
    local = at.astimezone()
    return f"{local:%F %T}.{local.microsecond // 1000:03}{local:%z}"


def moment_json(at: datetime | None) -> str | None:
    """A moment for programs: ISO 8601, UTC."""
    return at.astimezone(UTC).isoformat() if at else None


def relative(seconds: float) -> str:
    """How far off: `in 5m`, `now`, `3h2m ago`."""
    if abs(seconds) < 0.0005:
        return "now"
    if abs(seconds) >= 10:
        seconds = round(seconds)
    return f"in {describe(seconds)}" if seconds > 0 else f"{describe(-seconds)} ago"


def about(seconds: float) -> str:
    """An estimated duration: with two digits, and a second at least."""
    return f"about {describe(float(f'{max(1.0, seconds):.2g}'))}"
