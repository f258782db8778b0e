"""What is enqueued does not fit what runs: unreadable payloads, functions not there yet."""

from __future__ import annotations

import random
from collections.abc import Iterator

from bide import PayloadError
from tests.chaos.books import Books
from tests.chaos.fault import AUTO, PROCESS, Fault, Role
from tests.chaos.load import MODULE, Given
from tests.chaos.plan import Injection
from tests.chaos.scene import Scene

BAD: dict[str, bytes] = {
    "nothing": b"",
    "binary": b"\xff\xfe\x00\x80 no text",
    "cut-off": b'{"task":"tests.chaos.jobs:typed","args":[',
    "a-list": b"[1,2,3]",
    "no-task": b'{"args":[1]}',
    "task-is-a-number": b'{"task":7,"args":[1]}',
    "deep": b"[" * 50_000 + b"]" * 50_000,
    "wrong-type": b'{"task":"tests.chaos.jobs:typed","args":["seven"]}',
    "too-few": b'{"task":"tests.chaos.jobs:typed","args":[]}',
}
LARGE = 16 << 20


class Payloads(Fault):
    """Written past the client, which would refuse most of them."""

    name = "bad-payloads"
    recovers = False
    title = "Bodies that cannot be decoded, or do not fit their function; a body of 16 MB"
    allows = "other jobs: nothing. Each such job fails with an error, and its bytes are kept"
    roles = (AUTO, PROCESS)
    jobs = 150
    unreadable = True

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"first": dice.randrange(len(BAD)), "count": 5}

    def inject(self, scene: Scene, injection: Injection) -> None:
        scene.hit(excuses=False)
        names = list(BAD)
        for i in range(int(injection.drawn["count"])):
            name = names[(int(injection.drawn["first"]) + i) % len(names)]
            id = f"{name}-{injection.number}"
            job = scene.queue.prepare(f"{MODULE}:typed", [1], job_id=id)._replace(body=BAD[name])
            scene.also(Given(job, ends="failed", attempts=0, runs=False))
        try:
            scene.queue.enqueue(f"{MODULE}:typed", "x" * LARGE)
        except PayloadError:
            scene.count("refused for their size")

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        if scene.told.get("refused for their size") != len(scene.plan):
            yield "a body of 16 MB was not refused"
        for id, job in books.jobs.items():
            if job.ends == "failed":
                if books.holding.hashes["jobs"].get(id) != job.prepared.body:
                    yield f"the bytes of {id} were not kept"
                if b'"message"' not in books.holding.hashes["notes"].get(id, b""):
                    yield f"{id} does not say why it failed"
                if books.begun[id]:
                    yield f"{id} has run"


class Missing(Fault):
    """Jobs of new code have no retries, and need none: they wait, and use no attempt."""

    name = "function-missing"
    recovers = False
    title = "Jobs of a new release, before all workers have its functions"
    allows = "no attempt of these jobs: they wait, even if they have no retries"
    roles = (AUTO, AUTO)
    jobs = 150
    injections = 4
    back_off = 10.0

    def inject(self, scene: Scene, injection: Injection) -> None:
        scene.hit(excuses=False)
        jobs = [
            scene.queue.prepare("tests.chaos.newer:added", job_id=f"new-{injection.number}-{i}")
            for i in range(5)
        ]
        scene.also(*(Given(job) for job in jobs))
        if injection.number == 2:  # the deploy reaches the first worker, and later the second
            self._deploy(scene)

    def heal(self, scene: Scene) -> None:
        self._deploy(scene)

    def _deploy(self, scene: Scene) -> None:
        """One worker is stopped, and comes back with the new code."""
        role, worker = scene.serving.pop(0)
        worker.says(" serves ")
        worker.terminate()
        worker.wait()
        scene.start(Role(("tests.chaos.newer", *role.options)))

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        for id, runs in books.begun.items():
            if id.startswith("new-") and len(runs) - books.starved[id] != 1:
                yield f"{id} ran {len(runs)} times"
        if not any(b"TaskNotFound" in note for note in books.holding.hashes["notes"].values()):
            yield "no job was taken by a worker that lacks its function"
