"""The line to the server: lossy, slow, half-open, full of others' replies."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from bide import AsyncQueue
from bide.errors import BideError
from tests.chaos.books import Books, in_order
from tests.chaos.fault import AUTO, PROCESS, Fault, Role
from tests.chaos.jobs import QUEUE
from tests.chaos.load import MODULE, Given
from tests.chaos.plan import Injection
from tests.chaos.scene import Scene
from tests.support.eventually import PATIENCE


class OnALine(Fault):
    """With a lease that outlives the trouble, nothing may run twice."""

    proxied = True
    lease = 10.0
    leases_end = False
    allows = "time only"


class Lossy(OnALine):
    name = "line-lossy"
    title = "Replies and requests are lost, and connections are reset"
    injections = 3

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        seed, share = dice.randrange(1000), round(dice.uniform(0.02, 0.08), 3)
        return {"seed": seed, "share": share, "seconds": round(dice.uniform(0.3, 0.8), 2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        assert scene.setup.proxy is not None
        happened = scene.hit(excuses=False)
        drawn = injection.drawn
        scene.setup.proxy.lose_at_random(drawn["share"], int(drawn["seed"]))
        scene.last(drawn["seconds"])
        scene.count("messages lost", scene.setup.proxy.lost)
        scene.setup.proxy.behave()
        scene.setup.proxy.reset()
        scene.over(happened)


class Slow(OnALine):
    """One worker that runs one job at a time; so this is where order is looked at, too."""

    name = "line-slow"
    title = "Messages are late, or arrive a few bytes at a time"
    roles = (Role(("-c", "1")),)
    jobs = 100
    rate = 80.0
    injections = 2

    def load(self, scene: Scene, count: int) -> Iterator[Given]:
        """All due at a few moments, and enqueued in no order: 5 is about what runs when."""
        numbers = list(range(count))
        scene.dice.shuffle(numbers)
        for number in numbers:
            delay = scene.dice.choice([2.5, 2.7])
            id = f"brief-{number:05}"
            yield Given(
                scene.queue.prepare(f"{MODULE}:brief", [0.0], job_id=id, delay=delay), delay
            )

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        late = {"delay": round(dice.uniform(0.005, 0.03), 3), "drip": 0.0}
        drip = {"delay": 0.0, "drip": dice.choice([20, 100])}
        return {**dice.choice([late, drip]), "seconds": round(dice.uniform(0.2, 0.5), 2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        assert scene.setup.proxy is not None
        happened = scene.hit(excuses=False)
        drawn = injection.drawn
        scene.setup.proxy.slow_down(drawn["delay"], int(drawn["drip"]), 0.001)
        scene.last(drawn["seconds"])
        scene.setup.proxy.slow_down()
        scene.over(happened)

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        yield from in_order(line for line in books.lines if line.what == "begun")


class HalfOpen(OnALine):
    """What was sent on the connections of that time disappears for good."""

    name = "half-open"
    title = "Half-open connections: they carry data in one direction only"
    injections = 2
    jobs = 200

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"replies": dice.randrange(2), "seconds": round(dice.uniform(0.3, 1.5), 2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        assert scene.setup.proxy is not None
        happened = scene.hit(excuses=False)
        scene.setup.proxy.swallow("replies" if injection.drawn["replies"] else "requests")
        scene.last(injection.drawn["seconds"])
        scene.setup.proxy.hear()
        scene.over(happened)


class CancelledAwaits(Fault):
    """Each answer must be that to the call which it is handed to."""

    name = "cancelled-awaits"
    recovers = False
    title = "Awaited calls are cancelled at any moment; other calls use the same client"
    allows = "nothing"
    roles = (AUTO, PROCESS)
    jobs = 150
    injections = 3

    def set_up(self, scene: Scene) -> None:
        self._findings: list[str] = []

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"seed": dice.randrange(1000), "calls": 60}

    def inject(self, scene: Scene, injection: Injection) -> None:
        asked_us = scene.hit(excuses=False).from_us
        drawn = injection.drawn
        name = f"awaited-{injection.number}"
        given = [
            Given(scene.queue.prepare(f"{MODULE}:brief", [0.0], job_id=f"{name}-{i:03}"))
            for i in range(int(drawn["calls"]))
        ]
        thread = threading.Thread(
            target=lambda: asyncio.run(self._call(scene, given, int(drawn["seed"])))
        )
        thread.start()
        thread.join(PATIENCE)
        if thread.is_alive():
            self._findings.append(f"calls have not ended within {PATIENCE:g} s")
        scene.also(
            *given, asked_us=asked_us
        )  # so that they stand in the books; all but a few are there already

    async def _call(self, scene: Scene, given: list[Given], seed: int) -> None:
        dice = random.Random(seed)
        queue = AsyncQueue(QUEUE, url=scene.setup.url)
        await queue.counts()

        async def add_and_read(job: Given) -> None:
            (added,) = await queue.enqueue_many([job.prepared])
            read = await queue.fetch(added.id)
            if not added.id == read.id == job.prepared.id or read.task != f"{MODULE}:brief":
                self._findings.append(f"{job.prepared.id} was answered with {read.id}")

        calls = []
        for job in given:
            calls.append(asyncio.create_task(add_and_read(job)))
            await asyncio.sleep(dice.choice([0, 0, 0.001]))
            if dice.random() < 0.5:
                dice.choice(calls[-4:]).cancel()
        ends: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        for end in ends:
            if isinstance(end, asyncio.CancelledError):
                scene.count("calls cancelled")
            elif isinstance(end, BideError):
                self._findings.append(f"a call failed because others were cancelled: {end}")
            elif end is not None:
                raise end
        await queue.close()

    def check(self, scene: Scene, books: Books) -> Iterable[str]:
        return self._findings
