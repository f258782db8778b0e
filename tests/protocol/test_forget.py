"""A queue is forgotten that holds nothing, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bide.model.schedule import Timing
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.schedules import Draft
from tests.support.probe import BODY, SECOND, Probe

OFTEN = Draft("often", Timing(every_us=SECOND), "once", 0, 5, "app:task", b"{}")


def forget(q: Probe) -> dict[str, int]:
    return q.run(job_commands.forget(q.keys))


def keys(q: Probe) -> set[str]:
    """The queue's keys that are there."""
    return {key.decode() for key in q.raw.scan_iter(f"{q.keys['meta']}*")}


def finish(q: Probe) -> None:
    q.settle(q.take("a"), "complete")


def block(q: Probe) -> None:
    q.raw.zadd(q.keys["blocked"], {"a": q.now})


def set_aside(q: Probe) -> None:
    q.add("a")
    q.run(job_commands.purge(q.keys, "this"))


HOLDS: list[tuple[Callable[[Probe], object], dict[str, int]]] = [
    (lambda q: q.add("a", when="+1000000"), {"pending": 1}),
    (lambda q: q.add("a", "b"), {"pending": 2}),
    (block, {"pending": 1}),
    (set_aside, {"pending": 1}),
    (lambda q: q.take("a"), {"active": 1}),
    (finish, {"ended": 1}),
    (lambda q: q.raw.hset(q.keys["jobs"], "a", b"{}"), {"ended": 1}),
    (lambda q: q.run(schedule_commands.set_schedule(q.keys, OFTEN)), {"schedules": 1}),
    (lambda q: q.run(queue_commands.configure(q.keys, "g", 2)), {"groups": 1}),
    (lambda q: q.raw.zadd(q.keys["edges"], {"@{other}c a C": 0}), {"edges": 1}),
    (lambda q: q.run(job_commands.pause(q.keys)), {"paused": 1}),
    (lambda q: q.limit(rate="1/s"), {"limits": 1}),
    (lambda q: q.limit(concurrency=1), {"limits": 1}),
    (lambda q: q.raw.set(q.keys.names["aside"][8], "saved"), {"quarantined": 1}),
]


@pytest.mark.parametrize(("fill", "holds"), HOLDS)
def test_one_that_holds_something_is_left_as_it_is(
    q: Probe, fill: Callable[[Probe], object], holds: dict[str, int]
) -> None:
    q.legal = False  # some of it is what only a lost write leaves
    fill(q)
    for worker in ("w1", "w2"):
        q.leave(worker)
    before = {key: q.raw.dump(key) for key in keys(q)}
    assert forget(q) == holds
    assert {key: q.raw.dump(key) for key in keys(q)} == before


def test_all_that_it_holds_is_told(q: Probe) -> None:
    q.take("a")
    q.add("b", "c")
    q.run(job_commands.pause(q.keys))
    q.leave("w1")
    assert forget(q) == {"pending": 2, "active": 1, "paused": 1}


def test_nothing_is_left_of_one_that_holds_nothing(q: Probe) -> None:
    q.settle(q.take("a"), "complete")
    q.add("b")
    q.listen()
    q.watch("b")
    q.run(job_commands.delete(q.keys, ["a", "b"]))
    q.leave("w1")
    q.raw.hdel(q.keys["meta"], "test_offset_us")
    assert {q.keys[name] for name in ("meta", "minutes", "listeners")} <= keys(q)
    assert forget(q) == {}
    assert keys(q) == set()
    assert forget(q) == {}, "a repeat finds it so"


def test_one_whose_jobs_somebody_waits_for_is_left_until_he_is_gone(q: Probe) -> None:
    for worker in ("w1", "w2", "w3"):
        q.claim(worker)
    assert {*q.zset("keep"), *q.zset("park")} == {"w1", "w2", "w3"}
    assert forget(q) == {"served": 3}
    q.leave("w2")
    assert forget(q) == {"served": 2}
    q.move(10.1)
    assert forget(q) == {}, "the others have died"


def test_one_that_was_forgotten_begins_anew(q: Probe) -> None:
    q.settle(q.take("a"), "complete")
    q.run(job_commands.delete(q.keys, ["a"]))
    q.leave("w1")
    assert forget(q) == {}
    q.settle(q.take("a"), "complete")
    assert q.holding().total("completed") == 1


def test_marks_of_a_purged_flow_are_not_in_the_way(q: Probe) -> None:
    """No worker serves the queue, which would remove them."""
    parent = Prepared("a", f"+{SECOND}", 5, BODY)
    child = Prepared("b", "+0", 5, BODY, constraints="d=-", parents=("a",))
    q.run(enqueue_commands.enqueue(q.keys, [parent, child], full=True))
    q.run(job_commands.purge(q.keys, "this"))
    q.run(job_commands.purge(q.keys, None))
    assert q.zset("edges") != {}
    assert forget(q) == {}
    assert keys(q) == set()
