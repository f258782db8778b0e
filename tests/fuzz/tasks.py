"""What mutated jobs may call."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import bide

_before = frozenset(sys.modules)


@dataclass
class Thing:
    id: int
    tags: list[str] = field(default_factory=list)


def take(*args: Any, **kwargs: Any) -> int:
    return len(args) + len(kwargs)


def typed(day: date, thing: Thing, many: list[int] | None = None) -> str:
    return f"{day} {thing.id} {many}"


def neighbour(number: int) -> int:
    return number


def imported() -> set[str]:
    """Modules that no job may have had imported."""
    return {"antigravity", "this", "webbrowser", "tkinter"} & (sys.modules.keys() - _before)


bide.Queue("fuzz").task(name="given")(take)
