"""Jobs that have to do with each other, while things break: in groups, limited, with keys, awaited.

And schedules, which workers fire that are killed. What each of these promises is looked at in
`tests/chaos/flows.py`, over what the jobs wrote into the ledger.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

from bide import Queue, Unique, batch
from bide.errors import BideError
from tests.chaos import flows
from tests.chaos.books import Books
from tests.chaos.fault import Fault
from tests.chaos.faults.lines import Lossy
from tests.chaos.faults.servers import ServerKilled
from tests.chaos.faults.workers import Killed
from tests.chaos.load import MODULE, Given, usual
from tests.chaos.scene import Scene
from tests.support.eventually import eventually

AT_ONCE = 6
"""Jobs of the queue, over all workers."""
RATE, BURST = 120, 5
"""Jobs per second, and of these at once."""
GROUPS = {"g1": 1, "g2": 1, "g3": 2}
"""How many run at once of each."""
KEYS = ("k1", "k2")
EVERY_US, TIMES = 40_000, 40
"""Of the schedules."""


class Flows(Fault):
    """What the faults below have in common."""

    jobs: ClassVar[int] = 200
    injections: ClassVar[int] = 2

    def set_up(self, scene: Scene) -> None:
        self.items: Counter[str] = Counter()
        self.parents: dict[str, list[str]] = {}
        scene.queue.configure(rate=f"{RATE}/s", burst=BURST, concurrency=AT_ONCE)
        usually: dict[str, Any] = {"every": EVERY_US / 1e6, "limit": TIMES, "missed": "all"}
        schedules = scene.queue.schedules
        schedules.upsert("tick", f"{MODULE}:plain", (0.0,), **usually)
        schedules.upsert("grouped", f"{MODULE}:brief", (0.0,), group="g1", **usually)
        one = Unique(until="finished")
        schedules.upsert("alone", f"{MODULE}:brief", (0.15,), unique=one, **usually)

    def load(self, scene: Scene, count: int) -> Iterator[Given]:
        """Some jobs of each kind among those that have to do with nobody."""
        alone: list[str] = []
        for i, job in enumerate(usual(scene.queue, scene.dice, count)):
            kind = scene.dice.choices(
                ["alone", "group", "child", "item", "doomed"], [3, 4, 3, 3, 1]
            )
            given = self._given(scene, kind[0], i, alone) if i > 5 else []
            yield from given or [job]
            if not given:
                alone.append(job.prepared.id)

    def _given(self, scene: Scene, kind: str, i: int, alone: list[str]) -> list[Given]:
        queue, dice = scene.queue, scene.dice
        if kind == "group":
            name = dice.choice(list(GROUPS))
            delay = dice.choice([0.0, 0.0, round(dice.uniform(0.1, 0.5), 3)])
            job = queue.prepare(
                f"{MODULE}:{dice.choice(['brief', 'plain'])}",
                [dice.choice([0.0, 0.02, 0.05])],
                job_id=f"{name}-{i:05}",
                delay=delay,
                group=name,
                group_concurrency=GROUPS[name],
            )
            return [Given(job, delay)]
        if kind == "child":
            parents = sorted({dice.choice(alone) for _ in range(3)})
            id = f"child-{i:05}"
            self.parents[id] = parents
            job = queue.prepare(f"{MODULE}:brief", [0.0], job_id=id, depends_on=parents)
            return [Given(job)]
        if kind == "item":
            return [self._item(queue, dice.choice(KEYS), i)]
        if kind == "doomed":
            return list(self._doomed(queue, i))
        return []

    def _item(self, queue: Queue, key: str, i: int) -> Given:
        item = (key, self.items[key])
        self.items[key] += 1
        policy = batch("100ms", max_wait="400ms", max_size=8, key=key)
        job = queue.prepare(f"{MODULE}:batched", [item], job_id=f"item-{i:05}", unique=policy)
        return Given(job)

    def _doomed(self, queue: Queue, i: int) -> Iterator[Given]:
        """One that fails, one that is cancelled with it, and one that runs for that."""
        doomed = queue.prepare(f"{MODULE}:fails", job_id=f"doomed-{i:05}")
        yield Given(doomed, ends="failed", runs=False)
        after = queue.prepare(f"{MODULE}:brief", [0.0], job_id=f"never-{i:05}", depends_on=doomed)
        yield Given(after, ends="cancelled", attempts=0, runs=False)
        id = f"alarm-{i:05}"
        alarm = queue.prepare(
            f"{MODULE}:brief", [0.0], job_id=id, depends_on=doomed, run_if="failed"
        )
        yield Given(alarm)

    def heal(self, scene: Scene) -> None:
        def is_over() -> bool:
            scene.replace_the_dead()
            with suppress(BideError):
                return all(schedule.over for schedule in scene.queue.schedules.all())
            return False

        eventually(is_over)

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        lines = books.lines
        found = flows.spans(lines, books.happened)
        yield from flows.too_many(found, AT_ONCE, "jobs")
        yield from flows.too_fast(lines, RATE + BURST - 1)
        for name, most in GROUPS.items():
            begins = (f"{name}-", "grouped@") if name == "g1" else (f"{name}-",)
            of_group = [span for span in found if span.id.startswith(begins)]
            yield from flows.too_many(of_group, most, f"of {name}")
            if most == 1:
                yield from flows.out_of_order((x for x in lines if x.id.startswith(begins)), name)
        yield from flows.too_many((s for s in found if s.id.startswith("alone@")), 1, "of alone")
        yield from flows.too_soon(lines, self.parents)
        yield from flows.wrongly_batched(self._lists(books), self.items)
        for name in ("tick", "grouped"):
            ids = books.holding.sets["completed"]
            yield from flows.wrongly_fired(name, ids, EVERY_US, TIMES)
        for schedule in scene.queue.schedules.all():
            if schedule.fired != TIMES:
                yield f"{schedule.name} says that it fired {schedule.fired} times, not {TIMES}"
        scene.count("of each schedule", TIMES)
        scene.count("children", len(self.parents))
        scene.count("items", sum(self.items.values()))

    def _lists(self, books: Books) -> Iterator[list[tuple[str, int]]]:
        """What each completed job was given, by the run that held it last."""
        records = books.holding.records
        said = {
            (line.id, line.token): json.loads(line.what.removeprefix("items "))
            for line in books.lines
            if line.what.startswith("items ")
        }
        done = sorted(
            (records[id].due_us, id, token) for id, token in said if records[id].token == token
        )
        for _, id, token in done:
            yield [(key, number) for key, number in said[id, token]]


class FlowsKilled(Flows, Killed):
    name = "flows-killed"
    title = "A worker dies that runs jobs of groups, parents, batches and schedules"
    allows = "its jobs run once more, before other jobs of their groups"


class FlowsLossy(Flows, Lossy):
    name = "flows-lossy"
    title = "Replies and requests of such jobs are lost, and connections are reset"
    allows = "time only"


class FlowsServerKilled(Flows, ServerKilled):
    name = "flows-server-killed"
    title = "The server of such jobs is killed, and starts again"
    allows = "time only: `appendfsync always`"
