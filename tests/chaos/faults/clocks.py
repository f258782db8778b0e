"""Clocks: those of workers and producers, which must not matter, and the server's, which does."""

from __future__ import annotations

import random

from bide.client.config import override
from bide.protocol.keys import keys_of
from bide.protocol.scripts import TEST_CLOCK
from tests.chaos.fault import Fault, Role
from tests.chaos.faults.workers import Killed
from tests.chaos.jobs import QUEUE
from tests.chaos.load import now_us
from tests.chaos.plan import Injection
from tests.chaos.scene import Scene

HOUR = 3600.0
SMALL = 30.0
"""Seconds; a step forward that looks like an idle fleet, so that leases end by it."""
JUMPS = (HOUR, -HOUR, 20.0, -20.0, 45.0)
META = keys_of(QUEUE)["meta"]


class ClientClocks(Killed):
    """What a worker with a wrong clock held is taken when its lease ends, no sooner.

    Nothing else is injected but the clocks themselves; that of producers is in `tests/faults`.
    """

    name = "client-clocks"
    title = "Workers whose clocks are an hour slow, correct, and an hour fast"
    allows = "nothing by the clocks. One of the workers is killed: its jobs run once more"
    roles = (
        Role(("-c", "8"), -HOUR),
        Role(("-x", "process", "-c", "2"), HOUR),
        Role(("-c", "8"), 0.0),
    )
    jobs = 200
    injections = 1


class ServerClock(Fault):
    """The scripts' clock is the server's plus an offset, which is set and taken back."""

    name = "server-clock"
    title = "The server's clock jumps forward or back, by 20 s to an hour, and later returns"
    allows = "a jump forward of up to 30 s: running jobs run once more; other jumps: nothing"
    clock = TEST_CLOCK
    real_clock = False
    program = "tests.chaos.clocked"
    injections = 3

    def set_up(self, scene: Scene) -> None:
        scene.enter(override(clock=TEST_CLOCK))  # for the producer

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"jump": dice.choice(JUMPS), "seconds": round(dice.uniform(0.2, 1.0), 2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        before = 0.0
        for jump in (injection.drawn["jump"], 0.0):
            happened = scene.hit(excuses=0 < jump - before <= SMALL)
            scene.direct.hset(META, "test_offset_us", round(jump * 1e6))
            before = jump
            scene.last(injection.drawn["seconds"])
            scene.over(happened)

    def heal(self, scene: Scene) -> None:
        """What was enqueued an hour ahead is due in an hour: it is brought forward."""
        soon_us = now_us() + 5_000_000
        ids = [id for id, due_us in scene.due().items() if due_us > soon_us]
        scene.count("brought forward", len(ids))
        for start in range(0, len(ids), 100):
            scene.queue.promote_many(ids[start : start + 100])
