"""What goes wrong, and when: drawn from a seed beforehand, so that it can be drawn again.

A moment is a number of runs that have begun, not a time: a slow machine has the same faults under
the same load.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

Draw = Callable[[random.Random], dict[str, float]]
"""What an injection leaves to chance: which worker, for how long. Small numbers, with names."""

FIRST, LAST = 0.1, 0.85
"""Between which shares of all jobs faults are injected: under load, with some of it left."""


class Injection(NamedTuple):
    """One fault to come."""

    number: int
    after: int
    """How many runs have begun by then."""
    drawn: dict[str, float]

    def __str__(self) -> str:
        said = "".join(f" {name}={value:g}" for name, value in self.drawn.items())
        return f"after {self.after} runs: injection {self.number}{said}"


def dice(seed: int, name: str, what: str) -> random.Random:
    """The chance of one thing in one fault; what else draws does not change it."""
    return random.Random(f"{seed} {name} {what}")


def schedule(seed: int, name: str, jobs: int, count: int, draw: Draw) -> list[Injection]:
    """All injections of a fault: one at random in each `count`-th part of the load."""
    chance = dice(seed, name, "schedule")
    return list(_injections(chance, jobs, count, draw))


def _injections(chance: random.Random, jobs: int, count: int, draw: Draw) -> Iterator[Injection]:
    for i in range(count):
        share = FIRST + (LAST - FIRST) * (i + chance.random()) / count
        yield Injection(i + 1, round(jobs * share), draw(chance))
