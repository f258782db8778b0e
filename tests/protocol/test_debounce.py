"""Debounce and throttle: many calls become few jobs, and the last call is never lost."""

from __future__ import annotations

from typing import Any

from bide.model.payload.body import Body, decode_body, encode_body
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from tests.support.probe import BODY, SECOND, Probe

QUIET = f"d{2 * SECOND},0"
BOUNDED = f"d{2 * SECOND},{5 * SECOND}"
ONE = f"t1,{10 * SECOND}"
THREE = f"t3,{10 * SECOND}"


def call(
    q: Probe, id: str, way: str, arg: object = None, when: str = "+0", key: str = "k", **more: Any
) -> tuple[str, str, int]:
    """What an enqueue came to, the job's id, and in how many seconds it is due."""
    body = encode_body(Body("app.tasks:send", (arg,)))
    priority = more.get("priority", 5)
    constraints = f"{more.get('constraints', '')}k={key} f={way}"
    (receipt,) = q.add_many(Prepared(id, when, priority, body, constraints=constraints))
    return receipt.result, receipt.id, round((receipt.due_us - q.now) / SECOND)


def args(q: Probe) -> dict[str, Any]:
    return {
        id: [*decode_body(body).args, None][0] for id, body in q.holding().hashes["jobs"].items()
    }


def done(q: Probe) -> list[str]:
    """The jobs that were due, and have completed."""
    jobs = q.claim().jobs
    for job in jobs:
        q.settle(job, "complete")
    return [job.id for job in jobs]


# -- debounce


def test_each_call_pushes_the_due_time_and_brings_its_arguments(q: Probe) -> None:
    assert call(q, "a", QUIET, 1) == ("created", "a", 2)
    q.move(1.5)
    assert call(q, "b", QUIET, 2) == ("debounced", "a", 2)
    q.move(1.5)
    assert q.taken() == []
    q.move(1)
    assert (q.taken(), args(q)) == (["a"], {"a": 2})


def test_it_is_due_by_its_longest_wait_however_many_calls_come(q: Probe) -> None:
    call(q, "a", BOUNDED)
    for i in range(4):
        q.move(1)
        call(q, f"b{i}", BOUNDED)
    assert call(q, "c", BOUNDED) == ("debounced", "a", 1)
    q.move(3)
    assert call(q, "d", BOUNDED, 9) == ("debounced", "a", -2)
    assert (q.taken(), args(q)) == (["a"], {"a": 9})


def test_a_call_while_it_runs_begins_anew(q: Probe) -> None:
    call(q, "a", BOUNDED, 1)
    q.move(2)
    (job,) = q.claim().jobs
    assert call(q, "b", BOUNDED, 2) == ("created", "b", 2)
    q.settle(job, "retry", f"+{SECOND}")
    assert call(q, "c", BOUNDED, 3) == ("debounced", "b", 2)
    assert args(q) == {"a": 1, "b": 3}


def test_one_that_was_cancelled_is_not_pushed(q: Probe) -> None:
    call(q, "a", BOUNDED)
    q.cancel("a")
    assert call(q, "b", BOUNDED) == ("created", "b", 2)


def test_a_delay_of_the_latest_call_is_kept(q: Probe) -> None:
    assert call(q, "a", BOUNDED, when=f"+{8 * SECOND}") == ("created", "a", 8)
    assert call(q, "b", BOUNDED, when=f"+{9 * SECOND}") == ("debounced", "a", 9)
    assert call(q, "c", BOUNDED) == ("debounced", "a", 2)


def test_the_priority_and_the_expiry_of_the_latest_call_hold(q: Probe) -> None:
    call(q, "a", QUIET, priority=3, constraints=f"x=+{4 * SECOND} ")
    call(q, "b", QUIET, priority=8, constraints=f"x=+{9 * SECOND} ")
    assert q.holding().sets["due:8"] == q.holding().due
    assert q.zset("expiring") == {"a": q.holding().due["a"] + 9 * SECOND}


def test_a_push_that_is_repeated_pushes_once(q: Probe) -> None:
    call(q, "a", QUIET, 1)
    q.move(1)
    assert call(q, "b", QUIET, 2) == ("debounced", "a", 2)
    call(q, "c", QUIET, 3)
    q.move(1)
    assert call(q, "b", QUIET, 2)[:2] == ("debounced", "a")
    assert args(q) == {"a": 3}
    q.move(1)
    assert q.taken() == ["a"]


def test_a_push_to_later_wakes_nobody(q: Probe) -> None:
    call(q, "a", QUIET)
    q.hear()
    q.raw.zadd(q.keys["keep"], {"k1": q.now + 20 * SECOND})
    q.move(1)
    call(q, "b", QUIET)
    assert q.hear() is None


# -- throttle


def test_the_first_runs_and_the_rest_become_one(q: Probe) -> None:
    assert call(q, "a", ONE, 1) == ("created", "a", 0)
    assert call(q, "b", ONE, 2) == ("created", "b", 10)
    assert call(q, "c", ONE, 3) == ("throttled", "b", 10)
    assert done(q) == ["a"]
    assert call(q, "d", ONE, 4) == ("throttled", "b", 10)
    assert args(q)["b"] == 4
    q.move(10)
    assert done(q) == ["b"]
    assert call(q, "e", ONE, 5) == ("created", "e", 10)
    q.move(21)
    assert call(q, "f", ONE, 6) == ("throttled", "e", -11)
    assert done(q) == ["e"]
    assert call(q, "g", ONE, 7) == ("created", "g", 0)


def test_several_run_in_a_period_and_never_more(q: Probe) -> None:
    dues = []
    for i in range(5):
        outcome, id, due = call(q, f"a{i}", THREE, i)
        dues.append((outcome, id, due))
        q.move(2)
    assert dues == [
        ("created", "a0", 0),
        ("created", "a1", 0),
        ("created", "a2", 0),
        ("created", "a3", 4),
        ("throttled", "a3", 2),
    ]
    assert args(q)["a3"] == 4
    q.move(1)
    assert q.taken() == ["a0", "a1", "a2", "a3"]
    assert call(q, "b", THREE) == ("created", "b", 1)


def test_a_first_job_that_waits_keeps_its_arguments(q: Probe) -> None:
    call(q, "a", ONE, 1)
    q.move(11)
    assert call(q, "b", ONE, 2) == ("created", "b", 0)
    assert args(q) == {"a": 1, "b": 2}


def test_a_trailing_run_that_was_cancelled_gives_its_turn_back(q: Probe) -> None:
    call(q, "a", ONE)
    call(q, "b", ONE)
    q.cancel("b")
    assert call(q, "c", ONE) == ("created", "c", 10)


def test_a_trailing_run_that_was_deleted_leaves_the_rate_as_it_is(q: Probe) -> None:
    call(q, "a", ONE)
    call(q, "b", ONE)
    q.run(job_commands.delete(q.keys, ["a", "b"]))
    assert call(q, "c", ONE) == ("created", "c", 20)


def test_a_delay_counts_where_it_is_due(q: Probe) -> None:
    assert call(q, "a", ONE, when=f"+{30 * SECOND}") == ("created", "a", 30)
    assert call(q, "b", ONE, when=f"+{35 * SECOND}") == ("created", "b", 40)
    assert call(q, "c", ONE, when=f"+{50 * SECOND}") == ("created", "c", 50)


def test_a_delayed_run_holds_no_others_back(q: Probe) -> None:
    assert call(q, "later", ONE, 0, when=f"+{3600 * SECOND}") == ("created", "later", 3600)
    assert call(q, "a", ONE, 1) == ("created", "a", 0)
    assert call(q, "b", ONE, 2) == ("created", "b", 10)
    assert call(q, "c", ONE, 3) == ("throttled", "b", 10)
    assert args(q) == {"later": 0, "a": 1, "b": 3}


def test_a_delayed_call_leaves_the_trailing_run_as_it_is(q: Probe) -> None:
    call(q, "a", ONE, 1)
    assert call(q, "b", ONE, 2) == ("created", "b", 10)
    assert call(q, "later", ONE, 3, when=f"+{60 * SECOND}") == ("created", "later", 60)
    assert call(q, "c", ONE, 4) == ("throttled", "b", 10)
    assert args(q) == {"a": 1, "b": 4, "later": 3}


def test_a_delayed_call_that_is_too_near_is_deduplicated_and_a_plain_one_brings_it_back(
    q: Probe,
) -> None:
    call(q, "later", ONE, 1, when=f"+{30 * SECOND}")
    call(q, "a", ONE, 2)
    call(q, "b", ONE, 3)
    assert call(q, "c", ONE, 4, when=f"+{25 * SECOND}") == ("throttled", "b", 40)
    assert call(q, "d", ONE, 5) == ("throttled", "b", 10)
    assert args(q) == {"later": 1, "a": 2, "b": 5}


def test_runs_on_both_sides_count(q: Probe) -> None:
    for i, at in enumerate((30, 35, 40)):
        call(q, f"later{i}", THREE, when=f"+{at * SECOND}")
    assert call(q, "a", THREE, when=f"+{29 * SECOND}") == ("created", "a", 29)
    assert call(q, "b", THREE, when=f"+{31 * SECOND}") == ("created", "b", 39)
    assert call(q, "c", THREE, when=f"+{20 * SECOND}") == ("created", "c", 20)


def test_of_very_many_delayed_runs_the_earliest_are_held_to(q: Probe) -> None:
    """What is remembered is bounded; what is not can be broken by no call."""
    jobs = [
        Prepared(f"j{i}", f"+{20 * i * SECOND}", 5, BODY, constraints=f"k=k f={ONE}")
        for i in range(130)
    ]
    for at in range(0, 130, 50):
        q.add_many(*jobs[at : at + 50])
    _, _, due = call(q, "a", ONE)
    assert due == 29 * 20 + 10
    assert q.raw.hstrlen(q.keys["unique"], "t:k") < 2000


def test_after_a_jump_backward_a_throttle_restrains_for_a_period_and_no_longer(q: Probe) -> None:
    call(q, "a", ONE)
    q.taken()
    q.move(-3600)
    assert call(q, "b", ONE) == ("created", "b", 10)
    assert call(q, "c", ONE) == ("throttled", "b", 10)


def test_a_throttle_is_forgotten_when_it_restrains_nothing(q: Probe) -> None:
    for i in range(60):
        call(q, f"j{i}", ONE, key=f"k{i}")
        q.taken()
        q.move(11)
    assert q.raw.hlen(q.keys["unique"]) < 40


def test_a_throttle_is_remembered_while_it_restrains(q: Probe) -> None:
    jobs = [Prepared(f"j{i}", "+0", 5, BODY, constraints=f"k=k{i} f={ONE}") for i in range(40)]
    q.add_many(*jobs)
    q.run(job_commands.delete(q.keys, [f"j{i}" for i in range(40)]))
    assert q.raw.hlen(q.keys["unique"]) == 40
    assert call(q, "b", ONE, key="k7") == ("created", "b", 10)


def test_a_trailing_run_that_is_late_takes_calls_after_its_time(q: Probe) -> None:
    call(q, "a", ONE, 1)
    call(q, "b", ONE, 2)
    q.move(25)
    others = [Prepared(f"x{i}", "+0", 5, BODY, constraints=f"k=k{i} f={ONE}") for i in range(60)]
    q.add_many(*others)
    assert call(q, "c", ONE, 3) == ("throttled", "b", -15)
    assert args(q)["b"] == 3
