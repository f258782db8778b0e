"""Workers that are killed, stopped, frozen, starved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from bide import Retry
from tests.chaos.books import Books, Happened, worker_of
from tests.chaos.fault import AUTO, PROCESS, Fault, Role
from tests.chaos.load import MODULE, Given, usual
from tests.chaos.plan import Injection
from tests.chaos.scene import Scene


class _OfOne(Fault):
    """One worker of the three is hit, whichever the dice say."""

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"worker": dice.randrange(3)}


class Killed(_OfOne):
    name = "worker-killed"
    title = "A worker is killed (SIGKILL)"
    allows = "its jobs run once more"
    injections = 4

    def inject(self, scene: Scene, injection: Injection) -> None:
        worker = scene.victim(injection.drawn["worker"])
        happened = scene.hit([worker])
        worker.kill()
        scene.over(happened)


class Stopped(_OfOne):
    """The first signal lets jobs finish, and so explains nothing; the second gives them back."""

    name = "worker-stopped"
    title = "A worker is stopped (SIGTERM; every other time twice)"
    allows = "jobs that the second signal stops run once more, in the same attempt"
    injections = 4

    def inject(self, scene: Scene, injection: Injection) -> None:
        twice = injection.number % 2 == 0
        worker = scene.victim(injection.drawn["worker"])
        happened = scene.hit([worker], excuses=twice)
        worker.terminate()
        if twice:
            worker.says(" is stopping: ")
            worker.terminate()
        worker.wait()
        scene.over(happened)


class Frozen(Fault):
    name = "worker-frozen"
    LONG: ClassVar[float] = 1.7
    title = "A worker is frozen (SIGSTOP) for longer than its lease, and continues"
    allows = "its jobs run once more; the outcomes of their first runs are refused"
    injections = 2

    def load(self, scene: Scene, count: int) -> Iterator[Given]:
        """Some jobs are long enough to run elsewhere when their first worker goes on."""
        for i, job in enumerate(usual(scene.queue, scene.dice, count)):
            yield job
            if i % 8 == 0:
                kind = ("brief", "plain")[i // 8 % 2]
                id = f"long-{kind}-{i:05}"
                yield Given(scene.queue.prepare(f"{MODULE}:{kind}", [self.LONG], job_id=id))

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"worker": dice.randrange(3), "leases": round(dice.uniform(1.2, 1.7), 2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        worker = scene.victim(injection.drawn["worker"])
        happened = scene.hit([worker])
        worker.freeze()
        scene.last(injection.drawn["leases"] * scene.fault.lease)
        worker.thaw()
        scene.over(happened)


class Blocked(Fault):
    name = "loop-blocked"
    title = "A coroutine blocks the event loop for longer than the lease"
    injections = 2
    lease = 1.0
    roles = (AUTO, AUTO)
    rate = 60.0
    jobs = 120
    allows = "nothing: leases are renewed from another thread"
    function: ClassVar[str] = "block_the_loop"

    def inject(self, scene: Scene, injection: Injection) -> None:
        happened = scene.hit(excuses=False)
        id = f"blocks-{injection.number}"
        task = f"{MODULE}:{self.function}"
        scene.also(Given(scene.queue.prepare(task, [1.6 * self.lease], job_id=id)))
        scene.last(2 * self.lease)
        scene.over(happened)


class Locked(Blocked):
    name = "lock-held"
    title = "A job in a child process holds the interpreter's lock for longer than the lease"
    roles = (PROCESS, PROCESS)
    allows = "nothing: leases are renewed from another process"
    function = "hold_the_lock"


class Poison(Fault):
    """In children, so that a crash has a culprit, and costs nobody else anything."""

    name = "poison"
    recovers = False
    title = "Jobs in child processes that kill their process each time"
    allows = "other jobs: nothing. The job fails after three crashes; its error names the signal"
    roles = (PROCESS, PROCESS)
    rate = 60.0
    jobs = 150
    hits_neighbours: ClassVar[bool] = False

    def inject(self, scene: Scene, injection: Injection) -> None:
        job = scene.queue.prepare(f"{MODULE}:deadly", job_id=f"deadly-{injection.number}")
        scene.also(Given(job, ends="failed", attempts=0, runs=False))

    def also_happened(self, scene: Scene) -> Iterator[Happened]:
        """Each run of it explains another of itself; and of its neighbours, if they share."""
        for line in scene.ledger.lines("begun"):
            if line.id.startswith("deadly"):
                yield Happened(line.real_us, line.real_us, frozenset({worker_of(line)}))

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        for id, runs in books.begun.items():
            if id.startswith("deadly"):
                most = 10 if self.hits_neighbours else 3
                if len(runs) > most:
                    yield f"{id} was tried {len(runs)} times, not {most}"
            elif (
                not self.hits_neighbours and len(runs) - books.starved[id] > books.jobs[id].attempts
            ):
                yield f"{id} ran again because of its neighbour"
        for id, raw in books.holding.hashes["notes"].items():
            if id.startswith("deadly") and not self.hits_neighbours and b"SIGKILL" not in raw:
                yield f"{id} has failed, and does not name the signal: {raw[-300:]!r}"


class Poisoned(Poison):
    """Where jobs share a process, its neighbours are innocent, and must not be blamed."""

    name = "worker-poisoned"
    recovers = True
    title = "Jobs that kill their whole worker each time"
    allows = "the other jobs of the worker run once more for each crash"
    roles = (Role(("-c", "4")), Role(("-c", "4")))
    injections = 1
    lease = 1.0
    back_off = 25.0
    hits_neighbours = True


class Grandchildren(Fault):
    name = "grandchildren"
    recovers = False
    title = "Jobs that leave processes behind when they end or time out"
    allows = "nothing: they are killed with the job's process"
    roles = (Role(("-x", "fork", "-c", "2")), PROCESS)
    jobs = 100
    rate = 40.0
    back_off = 6.0
    injections = 3

    def inject(self, scene: Scene, injection: Injection) -> None:
        hangs = injection.number % 2 == 1
        id = f"leaves-{injection.number}"
        job = scene.queue.prepare(
            f"{MODULE}:leaves_processes", [hangs], job_id=id, timeout=0.5 if hangs else None
        )
        scene.hit(excuses=False)
        scene.also(Given(job, ends="failed" if hangs else "completed", runs=not hangs))


class Forks(Fault):
    """Parent and child go on with what they both have; nobody reads the other's replies."""

    name = "forks"
    recovers = False
    title = "Jobs that fork with open connections, and use them in parent and child"
    roles = (AUTO, PROCESS)
    jobs = 100
    rate = 60.0
    injections = 4

    def inject(self, scene: Scene, injection: Injection) -> None:
        id = f"forks-{injection.number}"
        scene.hit(excuses=False)
        job = scene.queue.prepare(f"{MODULE}:forks", [scene.setup.url], job_id=id, retry=Retry(0))
        scene.also(Given(job))

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        for number in range(1, len(scene.plan) + 1):
            for who in ("before", "child", "parent"):
                id = f"forks-{number}-{who}"
                if books.holding.where(id) != "completed":
                    yield f"{id} was enqueued, and is {books.holding.where(id)}"
