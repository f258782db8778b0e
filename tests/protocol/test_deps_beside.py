"""Jobs that wait for others, beside what else may be asked of them: groups, keys, expiry."""

from __future__ import annotations

import pytest

from bide.errors import JobNotFound, UsageError
from bide.model.job import Claimed
from bide.model.limits import Retention
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared
from tests.protocol.test_deps import add, end, job, state
from tests.support.probe import BODY, SECOND, Probe

UNIQUE = "k=app.send:a f=uk,f"


def of(
    group: str, id: str, *parents: str, when: str = "+0", priority: int = 5, n: int = 1
) -> Prepared:
    return job(id, *parents, when=when, priority=priority, x=f"g={group} n={n}")


def end_one(q: Probe, id: str) -> list[Claimed]:
    """Claim what is due and have that job end; the others, which run."""
    claimed = {one.id: one for one in q.claim().jobs}
    assert q.settle(claimed.pop(id), "complete") == "ok"
    return [*claimed.values()]


def known(q: Probe) -> int:
    """How many entries there are about groups."""
    sets = ("order", "held", "turns")
    return q.raw.hlen(q.keys["groups"]) + sum(q.raw.zcard(q.keys[name]) for name in sets)


# -- groups


def test_while_it_waits_its_group_knows_nothing_of_it(q: Probe) -> None:
    add(q, job("a"), of("g", "b", "a"))
    assert (state(q, "b"), known(q)) == ("blocked", 0)
    assert q.cancel("b") == ["ok"]
    assert known(q) == 0


def test_once_it_is_freed_it_takes_its_turn_in_its_group(q: Probe) -> None:
    add(q, job("a"), of("g", "first"), of("g", "b", "a"))
    (first,) = end_one(q, "a")
    assert state(q, "b") == "waiting"
    assert "b" in q.holding().sets["due:grouped"]
    assert q.taken("w2") == [], "one of its group runs"
    q.settle(first, "complete")
    assert q.taken("w2") == ["b"]


def test_it_takes_its_turn_when_what_it_waited_for_is_removed(q: Probe) -> None:
    add(q, job("a"), job("b", "a", d="-e", x="g=g n=1"))
    q.run(job_commands.delete(q.keys, ["a"]))
    assert q.taken() == ["b"]


def test_it_waits_for_one_of_its_own_group(q: Probe) -> None:
    add(q, of("g", "a"), of("g", "b", "a"), of("g", "c", "b"))
    for id in ("a", "b", "c"):
        end(q, id)
    assert known(q) == 0


@pytest.mark.parametrize(("n", "taken"), [(1, ["b"]), (2, ["b", "c"])])
def test_how_many_run_at_once_is_said_by_one_that_was_freed(
    q: Probe, n: int, taken: list[str]
) -> None:
    add(q, job("a"), of("g", "b", "a", n=n), of("g", "c", "a", n=n))
    end(q, "a")
    assert q.taken() == taken


def test_its_groups_priority_is_its_own_once_it_is_freed(q: Probe) -> None:
    add(q, job("a", priority=9), of("g", "b", "a", priority=8), job("single", priority=7))
    (a,) = q.claim(count=1).jobs
    q.settle(a, "complete")
    assert q.taken("w2", 1) == ["b"]


def test_a_freed_one_that_is_not_due_has_its_turn_when_it_is(q: Probe) -> None:
    add(q, job("a"), of("g", "b", "a", when=f"+{10 * SECOND}"))
    (a,) = q.claim().jobs
    q.settle(a, "complete")
    assert q.claim().deadline_us == q.zset_of("due:grouped")["b"]
    q.move(10)
    assert q.taken() == ["b"]


def test_a_claim_that_frees_many_of_groups_puts_each_in_its_turn(q: Probe) -> None:
    children = [of(f"g{i % 7}", f"c{i:03}", "a") for i in range(300)]
    add(q, job("a"), *children)
    end(q, "a")
    seen: set[str] = set()
    for _ in range(400):
        claim = q.claim(count=10)
        for one in claim.jobs:
            assert q.settle(one, "complete") == "ok"
            seen.add(one.id)
        if not claim.jobs and not claim.more:
            break
    assert len(seen) == 300
    assert known(q) == 0


def test_parents_that_have_ended_let_it_come_to_its_group_at_once(q: Probe) -> None:
    add(q, job("a"))
    end(q, "a")
    (b,) = add(q, of("g", "b", "a"))
    assert b.due_us == q.zset_of("due:grouped")["b"]
    assert q.taken() == ["b"]


def test_to_promote_it_puts_it_into_its_group(q: Probe) -> None:
    add(q, job("a", when=f"+{60 * SECOND}"), of("g", "b", "a"), of("g", "c", "a"))
    assert q.promote("b").result == "ok"
    assert q.promote("c").result == "ok"
    assert q.taken() == ["b"]


def test_a_paused_group_keeps_what_was_freed(q: Probe) -> None:
    q.run(queue_commands.configure(q.keys, "g", paused=True))
    add(q, job("a"), of("g", "b", "a"))
    end(q, "a")
    assert q.taken() == []
    q.run(queue_commands.configure(q.keys, "g", paused=False))
    assert q.taken() == ["b"]


@pytest.mark.parametrize("by", ["delete", "purge"])
def test_to_remove_it_leaves_nothing_of_its_group(q: Probe, by: str) -> None:
    add(q, job("a", when=f"+{60 * SECOND}"), of("g", "b", "a"), of("g", "c"))
    if by == "delete":
        q.run(job_commands.delete(q.keys, ["b", "c"]))
    else:
        q.run(job_commands.purge(q.keys, "e1"))
        while q.run(job_commands.purge(q.keys, None)).more:
            pass
    assert known(q) == 0
    assert q.taken() == []
    assert q.holding().edges == set()


def test_it_expires_in_its_group_from_when_it_was_freed(q: Probe) -> None:
    late = job("b", "a", x=f"x=+{5 * SECOND} g=g")
    add(q, job("a"), of("g", "first"), late)
    (first,) = end_one(q, "a")
    q.move(6)
    q.taken("w2")
    assert state(q, "b") == "cancelled"
    q.settle(first, "complete")
    assert known(q) == 0


def test_a_retried_one_comes_to_its_group(q: Probe) -> None:
    add(q, job("a"), of("g", "b", "a"))
    end(q, "a", "fail")
    assert state(q, "b") == "cancelled"
    q.retry("b")
    assert "b" in q.holding().sets["due:grouped"]
    assert q.taken() == ["b"]


# -- keys


def test_what_waits_cannot_hold_a_key(q: Probe) -> None:
    waits = Prepared("b", "+0", 5, BODY, constraints=f"{UNIQUE} d=-", parents=("a",))
    add(q, job("a"))
    with pytest.raises(Exception, match="BADARG enqueue_full"):
        add(q, waits)
    assert state(q, "b") is None


def test_who_holds_a_key_can_be_waited_for(q: Probe) -> None:
    add(q, job("a", x=UNIQUE))
    (kept,) = add(q, job("other", x=UNIQUE))
    assert (kept.result, kept.id) == ("duplicate", "a")
    add(q, job("b", kept.id))
    end(q, "a")
    assert q.taken() == ["b"]


def test_a_call_that_may_be_deduplicated_cannot_be_waited_for_in_the_same_call(q: Probe) -> None:
    """It may become another job; `enqueue_many` says so first."""
    with pytest.raises(JobNotFound, match="There is no job 'a'"):
        add(q, job("a", x=UNIQUE), job("b", "a"))
    assert state(q, "b") is None


def test_deduplicated_calls_come_beside_jobs_that_wait(q: Probe) -> None:
    add(q, job("p"))
    receipts = add(q, job("a", x=UNIQUE), job("b", "p"), job("c", x=UNIQUE))
    assert [receipt.result for receipt in receipts] == ["created", "created", "duplicate"]
    assert state(q, "b") == "blocked"


# -- data


def test_data_of_its_own_queue_cannot_be_waited_for(q: Probe) -> None:
    assert q.run(job_commands.mark_data(q.keys, Retention(), True))
    q.push("item")
    with pytest.raises(UsageError, match="'mail' is a delay queue"):
        add(q, job("b", "item"))
    with pytest.raises(UsageError, match="'mail' is a delay queue"):
        add(q, job("b", "item", "{other}a"))
    assert state(q, "b") is None


def test_data_among_jobs_that_is_popped_has_ended(q: Probe) -> None:
    """A queue that had jobs first is not marked as one of data."""
    q.push("item")
    add(q, job("b", "item"))
    assert q.popped(count=1) == ["item"]
    assert q.taken() == ["b"]
