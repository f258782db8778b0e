"""Many at once: what is due at one instant, what fails at once, what says much, who sleeps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar

from bide import Retention, Retry
from bide.protocol.keys import keys_of
from tests.chaos.books import Books
from tests.chaos.fault import AUTO, PROCESS, Fault, Role
from tests.chaos.jobs import QUEUE
from tests.chaos.load import MODULE, Given, now_us
from tests.chaos.plan import Injection
from tests.chaos.scene import Scene
from tests.support.server_state import members, size

KEYS = keys_of(QUEUE)
SMALL = Role(("-c", "4"))


class Burst(Fault):
    """A million due at once, and every script under ten milliseconds, is in `tests/faults`."""

    name = "due-burst"
    title = "All jobs are due at the same moment"
    allows = "nothing; recovery is the time to run all jobs"
    jobs = 1500
    rate = 20_000.0
    injections = 1
    lease = 10.0
    leases_end = False
    back_off = 60.0

    def load(self, scene: Scene, count: int) -> Iterator[Given]:
        self._at_us = (now_us() // 1_000_000 + 3 + count // 1000) * 1_000_000
        at = datetime.fromtimestamp(self._at_us // 1_000_000, UTC)
        for i in range(count):
            kind = scene.dice.choice(["brief", "plain"])
            priority = scene.dice.choice([0, 5, 9])
            options: dict[str, Any] = {"at": at, "priority": priority, "job_id": f"{kind}-{i:06}"}
            yield Given(scene.queue.prepare(f"{MODULE}:{kind}", [0.0], **options))

    def inject(self, scene: Scene, injection: Injection) -> None:
        happened = scene.hit(excuses=False)
        at_us = self._at_us
        scene.happened[-1] = happened._replace(from_us=at_us, until_us=at_us)


class RetryStorm(Fault):
    """They failed together; full jitter sees to it that they do not come back together."""

    name = "retry-storm"
    recovers = False
    title = "All jobs fail at the same time, and are retried"
    allows = "nothing; the retries are spread over the whole back-off"
    jobs = 400
    rate = 4_000.0
    injections = 1
    lease = 10.0
    leases_end = False
    back_off = 8.0

    def load(self, scene: Scene, count: int) -> Iterator[Given]:
        retry = Retry(5, "exponential", base=1.5)
        for i in range(count):
            id = f"storm-{i:05}"
            job = scene.queue.prepare(f"{MODULE}:all_fail_once", job_id=id, retry=retry)
            yield Given(job, attempts=2)

    def inject(self, scene: Scene, injection: Injection) -> None:
        scene.hit(excuses=False)

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        dues = sorted(run.due_us for runs in books.begun.values() for run in runs)
        width = (dues[-1] - dues[0]) / 10
        fullest = max(
            sum(start <= due < start + width for due in dues)
            for start in (dues[0] + i * width for i in range(10))
        )
        scene.count("most retries in a tenth of the time, in percent", 100 * fullest // len(dues))
        if fullest > 0.3 * len(dues):
            yield f"{fullest} of {len(dues)} retries fall into a tenth of the time"


class FailureFlood(Fault):
    """Jobs that raise at once end faster than their outcomes travel; a kill must repeat few."""

    name = "failure-flood"
    recovers = False
    title = "A worker is killed while many thousand jobs raise at once"
    allows = "the jobs in the worker's slots and its prefetched jobs run once more"
    jobs = 16_000
    rate = 40_000.0
    injections = 2
    roles = (Role(("-c", "50")),)
    MOST: ClassVar[int] = 150
    """Fifty slots, and quick jobs that are taken ahead."""
    _most = 0

    def set_up(self, scene: Scene) -> None:
        self._left: set[str] = set()
        """Jobs of killed workers, which are active until their leases end."""
        scene.queue.configure(retention=Retention(count=100_000))

    def load(self, scene: Scene, count: int) -> Iterator[Given]:
        at = datetime.fromtimestamp(now_us() // 1_000_000 + 2 + count // 2000, UTC)
        for i in range(count):
            job = scene.queue.prepare(f"{MODULE}:fails", at=at, job_id=f"fails-{i:05}")
            yield Given(job, ends="failed")

    def inject(self, scene: Scene, injection: Injection) -> None:
        worker = scene.victim(0)
        for _ in range(20):
            held = {*members(scene.direct, KEYS["active"])} - self._left
            self._most = max(self._most, len(held))
        happened = scene.hit([worker])
        worker.kill()
        self._left.update(members(scene.direct, KEYS["active"]))
        scene.over(happened)

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        if self._most > self.MOST:
            yield f"{self._most} jobs were held at once by one worker"
        again = sum(len(runs) - books.starved[id] > 1 for id, runs in books.begun.items())
        scene.count("jobs that ran again", again)
        scene.count("longest settle in µs", scene.setup.longest_us.get("settle", 0))
        if again > len(scene.plan) * self.MOST:
            yield f"{again} jobs ran again after {len(scene.plan)} kills"


class Timekeepers(Fault):
    """The load is light, so that workers sleep, and must be woken, or keep the time."""

    name = "wakers-lost"
    title = "Wake-up messages are lost, and the timekeeper and the backup are killed"
    allows = "jobs of the killed workers run once more; jobs start up to two seconds late"
    jobs = 60
    rate = 20.0
    injections = 4
    roles = (SMALL, SMALL, SMALL)

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"seconds": round(dice.uniform(0.2, 0.5), 2), "kills": dice.randrange(2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        timekeepers = members(scene.direct, KEYS["keep"], 0, 0)
        if injection.drawn["kills"] and timekeepers:
            timekeeper = timekeepers[0].partition(".")[0]
            workers = [worker for _, worker in scene.serving if worker.name == timekeeper]
            happened = scene.hit(workers)
            for worker in workers:
                worker.kill()
            scene.over(happened)
            return
        happened = scene.hit(excuses=False)
        for _ in range(int(injection.drawn["seconds"] / 0.002)):
            if scene.direct.lpop(KEYS["wake"]):
                scene.count("wake-up messages lost")
            scene.last(0.002)
        scene.over(happened)

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        first = [runs[0] for runs in books.begun.values()]
        lates = [scene.worker_pool.late_us(run) for run in first]
        scene.count("latest start after ms", max(run.token - run.due_us for run in first) // 1000)
        if max(lates) > 2_000_000 + 1_000_000:  # and a second to begin in
            yield f"a job began {max(lates) / 1e6:.2f} s late"


class Growth(Fault):
    """Nobody reads what is told: it must stay bounded all the same."""

    name = "growth"
    recovers = False
    title = "Jobs write more notes and events than are kept; a listener reads nothing"
    allows = "nothing; events, notes and records of workers stay within their limits"
    jobs = 300
    rate = 300.0
    injections = 2
    roles = (AUTO, PROCESS)
    lease = 10.0
    leases_end = False
    back_off = 20.0

    def load(self, scene: Scene, count: int) -> Iterator[Given]:
        for i in range(count):
            job = scene.queue.prepare(f"{MODULE}:talkative", [150], job_id=f"talk-{i:05}")
            yield Given(job)

    def set_up(self, scene: Scene) -> None:
        scene.enter(scene.queue.events(name="deaf"))

    def inject(self, scene: Scene, injection: Injection) -> None:
        scene.hit(excuses=False)

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        most = max(len(raw) for raw in books.holding.hashes["notes"].values())
        scene.count("bytes of the longest notes", most)
        if most > 100_000:
            yield f"the notes of a job have {most} bytes"
        told = scene.direct.xlen(KEYS["events"])
        scene.count("events kept", told)
        if told > 11_000:
            yield f"{told} events are kept"
        claims: Any = scene.direct.hlen(KEYS["claims"])
        held = max(claims, size(scene.direct, KEYS["keep"]), size(scene.direct, KEYS["park"]))
        if held > len(scene.worker_pool.workers):
            yield f"{held} workers are remembered, and there are {len(scene.worker_pool.workers)}"
