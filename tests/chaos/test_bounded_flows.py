"""Thousands that wait for one, and one that waits for thousands: no script takes long."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from bide.model.ids import new_id
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import fsck as fsck_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from tests.chaos.test_bounded_scripts import KEYS, MOST_US, OF_FLOWS, Full, hollow
from tests.chaos.verbs import enqueue_all
from tests.support.invariants import assert_legal
from tests.support.server_state import members

pytestmark = pytest.mark.slow

__all__ = ["hollow"]
WIDE, WIDEST = 2_000, 10_000
BODY = encode_body(Body("app:task"))


def plain(*ids: str) -> list[Prepared]:
    return [Prepared(id, "+0", 5, BODY) for id in ids]


def after(id: str, *parents: str) -> Prepared:
    return Prepared(id, "+0", 5, BODY, constraints="d=-", parents=parents)


def work(full: Full) -> int:
    """Claim and complete until nothing is due; how many jobs ran."""
    done = 0
    while jobs := full.claim():
        full.settle(jobs, "complete", "", b"1")
        done += len(jobs)
    return done


def test_no_script_takes_long_however_many_wait(hollow: Full) -> None:
    run, number = hollow.client.run, count()

    def fan_in() -> None:
        n = next(number)
        parents = [f"p{n}-{i:05}" for i in range(WIDE)]
        enqueue_all(hollow.client, KEYS, [*plain(*parents), after(f"z{n}", *parents)])
        (seen,) = run(job_commands.fetch(KEYS, [f"z{n}"]))
        assert seen is not None
        assert seen.awaits == WIDE
        assert work(hollow) == WIDE + 1

    def fan_out(end: Callable[[str], object]) -> None:
        n = next(number)
        children = [after(f"c{n}-{i:05}", f"a{n}") for i in range(WIDE)]
        enqueue_all(hollow.client, KEYS, [*plain(f"a{n}"), *children])
        assert run(enqueue_commands.children(KEYS, f"a{n}", 20)).total == WIDE
        end(f"a{n}")
        while hollow.direct.zcard(KEYS["blocked"]):
            hollow.settle(hollow.claim(), "complete")
        work(hollow)

    def remote() -> None:
        n = next(number)
        children = [(f"{{other}}c{i:05}", f"r{n}") for i in range(WIDE)]
        run(enqueue_commands.enqueue(KEYS, plain(f"r{n}")))
        for i in range(0, WIDE, enqueue_commands.CHUNK):
            run(enqueue_commands.subscribe(KEYS, children[i : i + enqueue_commands.CHUNK]))
        work(hollow)
        done: list[str] = []
        while letters := run(enqueue_commands.read_outbox(KEYS, "-", done)):
            done = [letter.stored for letter in letters]

    def hear() -> None:
        n = next(number)
        ids = [f"h{n}-{i:05}" for i in range(WIDE // 10)]
        waits = [after(id, "{other}far", "{other}near") for id in ids]
        for i in range(0, len(ids), enqueue_commands.MOST_POST):
            run(enqueue_commands.enqueue(KEYS, waits[i : i + enqueue_commands.MOST_POST]))
        cursor = fsck_commands.BEGIN
        while (
            step := run(fsck_commands.look_at_edges(KEYS, cursor, False))
        ).cursor != fsck_commands.BEGIN:
            cursor = step.cursor
        for parent in ("{other}far", "{other}near"):
            for i in range(0, len(ids), enqueue_commands.MOST_POST):
                some = ids[i : i + enqueue_commands.MOST_POST]
                run(enqueue_commands.resolve(KEYS, [(id, parent, "C") for id in some]))
        assert work(hollow) == len(ids)

    def many_parents(end: Callable[[list[str]], object]) -> None:
        n = next(number)
        parents, ids = [f"q{n}-{i}" for i in range(100)], [f"k{n}-{i}" for i in range(100)]
        enqueue_all(hollow.client, KEYS, [*plain(*parents), *(after(id, *parents) for id in ids)])
        end(ids)
        assert hollow.direct.zcard(KEYS["blocked"]) == 0
        work(hollow)

    def purge() -> None:
        run(job_commands.purge(KEYS, new_id()))
        while run(job_commands.purge(KEYS, None)).more:
            pass

    hollow.time("fan-in", fan_in)
    hollow.time("fan-out", lambda: fan_out(lambda id: work(hollow)))
    hollow.time("cancelled", lambda: fan_out(lambda id: run(job_commands.cancel(KEYS, [id]))))
    hollow.time("deleted", lambda: fan_out(lambda id: run(job_commands.delete(KEYS, [id]))))
    hollow.time(
        "many parents cancelled",
        lambda: many_parents(lambda ids: run(job_commands.cancel(KEYS, ids, True))),
    )
    hollow.time(
        "many parents deleted",
        lambda: many_parents(lambda ids: run(job_commands.delete(KEYS, ids))),
    )
    hollow.time("many parents purged", lambda: many_parents(lambda ids: purge()))
    hollow.time("elsewhere", remote)
    hollow.time("heard", hear)
    for what, us in hollow.timings.items():
        print(f"{what}: {us} us")
    assert {what.partition(": ")[2] for what in hollow.timings} >= OF_FLOWS
    assert members(hollow.direct, KEYS["blocked"]) == []
    assert_legal(hollow.direct, "mail")
    assert max(hollow.timings.values()) < MOST_US, hollow.timings


def test_ten_thousand_wait_for_one_and_one_waits_for_ten_thousand(hollow: Full) -> None:
    ids = [f"m{i:05}" for i in range(WIDEST)]
    middle = [after(id, "a") for id in ids]
    enqueue_all(hollow.client, KEYS, [*plain("a"), *middle, after("z", *ids)])
    assert work(hollow) == WIDEST + 2
    holding = assert_legal(hollow.direct, "mail")
    assert holding.sets["blocked"] == {}
    assert {member for member in holding.edges if member[0] != "="} == set()
