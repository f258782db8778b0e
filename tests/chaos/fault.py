"""What a fault is: how it is drawn and injected, and what it may cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from bide.protocol.scripts import SERVER_CLOCK
from tests.chaos.books import Books, Happened
from tests.chaos.load import Given, Load, usual
from tests.chaos.plan import Injection

if TYPE_CHECKING:
    from tests.chaos.scene import Scene


class Role(NamedTuple):
    """How a worker of the pool is started."""

    options: tuple[str, ...] = ("-c", "8")
    skew: float | None = None
    """Seconds by which its clock errs."""


AUTO = Role()
PROCESS = Role(("-x", "process", "-c", "2"))


class Fault:
    """One row of the table; subclasses say what goes wrong."""

    name: ClassVar[str] = ""
    title: ClassVar[str]
    """What the report calls it."""
    allows: ClassVar[str] = "nothing"
    """What it may cost, in words; the report says so."""

    jobs: ClassVar[int] = 300
    rate: ClassVar[float] = 120.0
    """Jobs per second."""
    injections: ClassVar[int] = 3
    roles: ClassVar[tuple[Role, ...]] = (AUTO, AUTO, PROCESS)
    lease: ClassVar[float] = 2.0
    leases_end: ClassVar[bool] = True
    """Whether a job may be taken from a worker; else each claim must have kept what it took."""
    back_off: ClassVar[float] = 1.0
    """Seconds that a job may have to wait for its next attempt."""
    proxied: ClassVar[bool] = False
    tcp: ClassVar[bool] = False
    persist: ClassVar[bool] = False
    several: ClassVar[Callable[..., AbstractContextManager[Any]] | None] = None
    """Starts several servers in place of one: `cluster` or `sentinel`."""
    server: ClassVar[tuple[str, ...]] = ()
    """Options of the server."""
    clock: ClassVar[str] = SERVER_CLOCK
    real_clock: ClassVar[bool] = True
    """Whether the server's time is that of the machine."""
    program: ClassVar[str] = "bide"
    recovers: ClassVar[bool] = True
    """Whether it holds others up, so that it is worth measuring for how long."""
    descriptors: ClassVar[int] = 12
    """How many more of them a worker may hold at the end: connections and threads of its own."""
    unreadable: ClassVar[bool] = False
    """Whether there are bodies that nothing can read."""

    @staticmethod
    def missing() -> str:
        """Why this machine cannot play it; empty if it can."""
        return ""

    def load(self, scene: Scene, count: int) -> Iterable[Given]:
        """The jobs."""
        return usual(scene.queue, scene.dice, count)

    def producer(self, scene: Scene, jobs: Sequence[Given]) -> Load:
        """The producer that enqueues them."""
        return Load(scene.queue, jobs, self.rate, scene.quiet.is_set)

    def is_drained(self, scene: Scene) -> bool:
        """Whether the load has come to its end."""
        return scene.setup.is_drained()

    def set_up(self, scene: Scene) -> None:
        """Before the workers start."""

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        """What an injection leaves to chance."""
        return {}

    def inject(self, scene: Scene, injection: Injection) -> None:
        """Do it, and note it with `scene.hit`; returns when it is over."""

    def heal(self, scene: Scene) -> None:
        """After the last one, and after the load."""

    def also_happened(self, scene: Scene) -> Iterable[Happened]:
        """Faults that only the ledger knows of: jobs that kill."""
        return ()

    def check(self, scene: Scene, books: Books) -> Iterable[str]:
        """What else must hold; a sentence for each that does not."""
        return ()
