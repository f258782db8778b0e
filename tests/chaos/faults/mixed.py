"""One thing after another, of different kinds, while what the last one did is not yet mended."""

from __future__ import annotations

import random

from tests.chaos.fault import Fault
from tests.chaos.faults.lines import HalfOpen, Lossy
from tests.chaos.faults.servers import ScriptsForgotten, ServerKilled
from tests.chaos.faults.workers import Frozen, Killed, Stopped
from tests.chaos.plan import Injection
from tests.chaos.scene import Scene

KINDS: tuple[type[Fault], ...] = (
    *(Killed, Stopped, Frozen),
    *(Lossy, HalfOpen, ServerKilled, ScriptsForgotten),
)


class Mixed(Fault):
    name = "everything"
    title = "Several of these at once: " + ", ".join(f"`{kind.name}`" for kind in KINDS)
    allows = "the cost of each alone"
    proxied = True
    persist = True
    server = ServerKilled.server
    jobs = 400
    injections = 5
    lease = 8.0

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        number = dice.randrange(len(KINDS))
        return {"kind": number, **KINDS[number].draw(dice)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        kind = KINDS[int(injection.drawn["kind"])]
        scene.count(kind.name)
        kind().inject(scene, injection)
