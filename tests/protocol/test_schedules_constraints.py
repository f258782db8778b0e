"""Jobs of schedules that have a group, a dedup key, or expire: as those of an enqueue."""

from __future__ import annotations

from typing import Any

import pytest

from bide.model.payload.body import of_schedule
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands.enqueue import Prepared
from tests.protocol.test_groups import limit
from tests.protocol.test_schedules import NAME, claim, due_of, move_to, put, read
from tests.support.probe import BODY, SECOND, Probe

HOUR = 3600 * SECOND


def on(q: Probe, way: str = "uk,f", *, name: str = NAME, more: str = "", **other: Any) -> None:
    """A schedule each ten seconds, whose jobs are deduplicated by one key."""
    put(q, name=name, constraints=f"{more}k=k f={way}", **other)


def call(q: Probe, id: str, way: str = "uk,f", when: str = "+0") -> tuple[str, str]:
    (receipt,) = q.add_many(Prepared(id, when, 5, BODY, constraints=f"k=k f={way}"))
    return receipt.result, receipt.id


def at(q: Probe, seconds: float) -> list[str]:
    """The ids that a claim so much later brings, for long."""
    q.move(seconds)
    return [job.id for job in q.claim(lease=1000).jobs]


def test_what_a_schedule_makes_is_of_its_group(q: Probe) -> None:
    put(q, every_us=10 * SECOND, constraints="g=g", missed="all", priority=9)
    move_to(q, q.now + 25 * SECOND)
    (job,) = q.claim().jobs
    assert q.run(queue_commands.counts(q.keys, "g"))[1:5] == (0, 1, 1, 9)
    assert q.claim().jobs == []
    assert q.settle(job, "complete") == "ok"
    assert len(q.claim().jobs) == 1
    assert q.run(schedule_commands.run_schedule(q.keys, NAME, f"{NAME}@now"))
    assert q.claim().jobs == []


def test_as_many_of_its_group_run_at_once_as_its_latest_job_says(q: Probe) -> None:
    q.add_many(Prepared("a", "+0", 5, BODY, constraints="g=g"))
    put(q, constraints="g=g n=2")
    assert len(at(q, 11)) == 2
    put(q, name="other", constraints="g=g n=3")
    assert len(at(q, 11)) == 1, "of the second schedule, which lets one more run"


def test_many_times_of_many_groups_are_fired_at_once(q: Probe) -> None:
    for n in range(3):
        put(q, name=f"s{n}", constraints=f"g=g{n % 2}", missed="all")
    q.move(41)
    first = q.claim(count=20)
    assert sorted(q.run(queue_commands.counts(q.keys, f"g{n}"))[3] for n in range(2)) == [1, 1]
    assert len(first.jobs) == 2


def test_a_time_whose_key_is_held_makes_no_job(q: Probe) -> None:
    on(q)
    q.move(11)
    (first,) = q.claim(lease=1000).jobs
    assert at(q, 10) == [], "the first runs yet"
    assert read(q).fired == 2
    assert sorted(q.holding().hashes["jobs"]) == [first.id]
    q.settle(first, "complete")
    assert len(at(q, 10)) == 1


def test_missed_times_are_deduplicated_into_one_job(q: Probe) -> None:
    on(q, missed="all")
    (job,) = at(q, 95)
    assert read(q).fired == 9
    assert list(q.holding().hashes["jobs"]) == [job]


def test_calls_and_times_share_a_key(q: Probe) -> None:
    on(q)
    assert call(q, "a", when=f"+{HOUR}") == ("created", "a")
    assert at(q, 11) == []
    assert list(q.holding().hashes["jobs"]) == ["a"]
    q.cancel("a")
    (job,) = at(q, 10)
    assert call(q, "b") == ("duplicate", job)


def test_a_time_replaces_what_waits(q: Probe) -> None:
    on(q, "ur,f", priority=7)
    call(q, "a", "ur,f", when="+5000000")
    q.listen()
    q.move(11)
    assert q.claim(count=0).jobs == []
    assert q.holding().hashes["jobs"]["a"] == of_schedule(BODY, NAME)
    assert list(q.zset_of("due:7")) == ["a"]
    assert q.taken() == ["a"]


def test_times_that_are_debounced_run_when_it_is_quiet(q: Probe) -> None:
    on(q, f"d{15 * SECOND},{40 * SECOND}", missed="all", limit=3)
    assert at(q, 11) == at(q, 10) == at(q, 10) == []
    (id,) = due_of(q)
    assert at(q, 10) == []
    assert at(q, 6) == [id]


def test_times_that_are_throttled_run_as_often_as_they_may(q: Probe) -> None:
    on(q, f"t1,{30 * SECOND}")
    ran = 0
    for _ in range(9):
        q.move(10.01)
        ran += len(claim(q).jobs)
    assert 2 <= ran <= 4
    assert read(q).fired == 9


def test_running_now_says_what_it_came_to(q: Probe) -> None:
    def run(id: str) -> tuple[str, str]:
        receipt = q.run(schedule_commands.run_schedule(q.keys, NAME, f"{NAME}@{id}"))
        assert receipt
        return receipt.result, receipt.id.removeprefix(f"{NAME}@")

    on(q)
    assert [run("a"), run("b")] == [("created", "a"), ("duplicate", "a")]
    on(q, "ux,f")
    assert run("c") == ("rejected", "a")
    on(q, "ur,f")
    assert [run("d"), run("d")] == [("replaced", "a")] * 2


def test_a_claim_that_fires_and_frees_keeps_its_groups(q: Probe) -> None:
    q.add_many(Prepared("p", f"+{HOUR}", 5, BODY))
    q.add_many(Prepared("c", "+0", 5, BODY, constraints="d=-", parents=("p",)))
    put(q, name="lapses", constraints=f"x=+{5 * SECOND}", missed="all")
    put(q, name="b", constraints="g=g n=9", missed="all")
    limit(q, "1 3600000000 1")
    assert [id.partition("@")[0] for id in at(q, 28)] == ["b"]
    assert q.holding().meta["expired"] == "2"
    q.move(1)
    assert q.taken() == [], "its rate is used up"


def test_who_waits_for_its_group_wakes_nobody(q: Probe) -> None:
    q.add_many(Prepared("a", "+0", 5, BODY, constraints="g=g"))
    assert q.taken() == ["a"]
    put(q, constraints="g=g")
    q.hear()
    q.run(schedule_commands.run_schedule(q.keys, NAME, f"{NAME}@a"))
    assert q.wakeups() == 0


@pytest.mark.parametrize("constraints", ["", "k=k f=uk,f", "g=g"])
def test_a_namesake_that_was_set_aside_is_made_anew(q: Probe, constraints: str) -> None:
    put(q, constraints=constraints)
    id = f"{NAME}@a"
    q.add(id, when=f"+{HOUR}")
    q.run(job_commands.purge(q.keys, "e1"))
    receipt = q.run(schedule_commands.run_schedule(q.keys, NAME, id))
    assert receipt is not None
    assert receipt.created
    assert q.taken() == [id]
    assert q.holding().hashes["jobs"] == {id: of_schedule(BODY, NAME)}


def test_keys_that_nobody_holds_are_forgotten(q: Probe) -> None:
    for n in range(40):
        put(q, name=f"n{n}", constraints=f"k=k{n} f=uk,f", limit=1)
    q.move(11)
    for _ in range(4):
        claim(q, count=40)
    assert q.holding().hashes["unique"]
    for n in range(40):
        put(q, name=f"more{n}", constraints="k=more f=uk,f", limit=1)
        q.move(11)
        claim(q)
    assert len(q.holding().hashes["unique"]) < 10


def test_constraints_and_deduplication_together(q: Probe) -> None:
    on(q, more=f"x=+{5 * SECOND} g=g ", missed="all")
    q.move(26)
    assert q.taken() == [], "the first had expired, and the second is deduplicated"
    q.move(6)
    (job,) = q.claim().jobs
    assert q.run(queue_commands.counts(q.keys, "g"))[1:4] == (0, 0, 1)
    q.settle(job, "complete")
    assert q.run(queue_commands.counts(q.keys, "g"))[1:4] == (0, 0, 0)
