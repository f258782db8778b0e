"""Several servers: slots that move, masters that die or hang, replicas that take over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from bide.client.execute import RETRY_FOR
from bide.protocol.keys import keys_of
from tests.chaos.books import Books
from tests.chaos.fault import AUTO, PROCESS, Fault
from tests.chaos.faults.servers import told_to_repeat
from tests.chaos.jobs import QUEUE
from tests.chaos.load import Given, now_us, usual
from tests.chaos.plan import Injection
from tests.chaos.scene import Scene
from tests.support.cluster import cluster
from tests.support.eventually import eventually
from tests.support.nodes import Node
from tests.support.sentinel import sentinel

META = keys_of(QUEUE)["meta"]


class _OfSeveral(Fault):
    """All on one machine, so that there are fewer workers and jobs than with one server."""

    descriptors = 24  # each of its clients keeps a connection to each server that it has met
    roles = (AUTO, PROCESS)
    jobs = 250
    rate = 80.0


class _OfSentinels(_OfSeveral):
    several = staticmethod(sentinel)
    back_off = 5.0


class SlotsMove(_OfSeveral):
    """What a cluster does in earnest, every day; nobody is to notice."""

    name = "cluster-moves"
    title = "A cluster moves the queue's slot, key by key; replicas take over by command"
    allows = "time only; the producer gets no error"
    several = staticmethod(cluster)
    lease = 10.0
    leases_end = False
    injections = 3

    @staticmethod
    def draw(dice: random.Random) -> dict[str, float]:
        return {"moves": dice.randrange(3) > 0, "to": dice.randrange(2)}

    def inject(self, scene: Scene, injection: Injection) -> None:
        owner = scene.setup.owner
        happened = scene.hit(excuses=False)
        if injection.drawn["moves"]:
            others = [node for node in scene.setup.several.masters if node is not owner]
            scene.setup.several.migrate_slot(META, others[int(injection.drawn["to"])])
            scene.count("slots moved")
        else:
            scene.setup.several.fail_over(owner)
            scene.count("replicas that took over")
        scene.over(happened)

    def check(self, scene: Scene, books: Books) -> Iterator[str]:
        """A change for which a busy cluster took longer than a client waits explains refusals."""
        longest_us = max(happened.until_us - happened.from_us for happened in scene.happened)
        explained = {"ServerUnavailable"} if longest_us > RETRY_FOR * 1e6 else set()
        if scene.load.refusals.keys() - explained:
            yield f"the producer was told {scene.load.refusals}"


class OwnerKilled(_OfSeveral):
    name = "cluster-owner-killed"
    title = "The cluster's node that has the queue is killed; its replica takes over"
    allows = "writes that the replica had not received, until the producer repeats them"
    several = staticmethod(cluster)
    injections = 1
    back_off = 5.0

    def inject(self, scene: Scene, injection: Injection) -> None:
        owner = scene.setup.owner
        scene.setup.look_at_scripts()
        since_us = passed_on(owner)
        happened = scene.hit()
        owner.kill()
        scene.setup.several.fail_over(owner)
        told_to_repeat(scene, since_us)
        scene.over(happened)
        scene.setup.several.restart(owner)


class OwnerFrozen(OwnerKilled):
    name = "cluster-owner-frozen"
    title = "The cluster's node that has the queue hangs; its replica takes over"

    def inject(self, scene: Scene, injection: Injection) -> None:
        owner = scene.setup.owner
        freeze(scene, owner, lambda: scene.setup.several.fail_over(owner))


class Confirmed(_OfSentinels):
    """The old master is dead, so that the replicas alone decide: what one of them has stays."""

    name = "failover-confirmed"
    title = 'Sentinels\' master is killed; jobs were enqueued with `durability="replica"`'
    allows = "no job; outcomes that no replica had received: their jobs run once more"
    injections = 1

    def load(self, scene: Scene, count: int) -> Iterator[Given]:
        for job in usual(scene.queue, scene.dice, count):
            yield job._replace(prepared=job.prepared._replace(durability="replica"))

    def inject(self, scene: Scene, injection: Injection) -> None:
        """Nothing is repeated but what was not acknowledged; what is gone stays gone."""
        master = scene.setup.several.master
        scene.setup.look_at_scripts()
        happened = scene.hit()
        master.kill()
        scene.setup.several.fail_over()
        scene.over(happened)
        scene.setup.several.restart(master)


class MasterKilled(_OfSentinels):
    """Every other time by command: the old master takes writes for a moment longer."""

    name = "sentinel-failover"
    title = "Sentinels make a replica take over: by command, or because the master is killed"
    allows = "writes that the replica had not received, until the producer repeats them"
    injections = 2

    def inject(self, scene: Scene, injection: Injection) -> None:
        master = scene.setup.several.master
        scene.setup.look_at_scripts()
        since_us = passed_on(master)
        happened = scene.hit()
        killed = injection.number % 2 == 1
        if killed:
            master.kill()
        scene.setup.several.fail_over()
        told_to_repeat(scene, since_us)
        scene.over(happened)
        if killed:
            scene.setup.several.restart(master)


class MasterFrozen(MasterKilled):
    name = "sentinel-master-frozen"
    title = "Sentinels' master hangs; a replica takes over"
    injections = 1

    def inject(self, scene: Scene, injection: Injection) -> None:
        freeze(scene, scene.setup.owner, scene.setup.several.fail_over)


def passed_on(master: Node) -> int:
    """A moment, and what the master had by then is on its replicas now."""
    since_us = now_us()
    master.passed_on()
    return since_us


def freeze(scene: Scene, master: Node, fail_over: Callable[[], object]) -> None:
    """Have a master hang until another has taken over and the work has gone on there."""
    scene.setup.look_at_scripts()
    since_us = passed_on(master)
    happened = scene.hit()
    master.freeze()
    try:
        fail_over()
        told_to_repeat(scene, since_us)
        begun = scene.begun()
        eventually(lambda: scene.begun() > begun or scene.setup.is_drained())
        scene.over(happened)
    finally:
        master.thaw()
    scene.setup.several.settled()
