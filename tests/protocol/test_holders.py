"""Which workers are listed, and what each runs: from their heartbeats and the server's leases."""

from __future__ import annotations

from typing import Any

from bide.errors import AccessDenied
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.queues import WorkerInfo, WorkerReport
from bide.protocol.keys import keys_of
from tests.protocol.test_registry import GLOBAL, say_since
from tests.support.probe import LEASE, Probe

ABOUT = WorkerReport("host", 42, ["mail"], concurrency=3, busy=9, lease=LEASE)
"""What it said of its jobs lately is not what it runs now."""


def listed(q: Probe, prefix: str = "bide") -> dict[str, WorkerInfo]:
    seen = q.run(queue_commands.workers(GLOBAL))
    replies = q.executor.attempt_many(queue_commands.ask(seen, prefix))
    return {worker.name: worker for worker in queue_commands.tell(seen, replies)}


def say(q: Probe, *workers: str, about: WorkerReport = ABOUT) -> None:
    for worker in workers:
        q.run(queue_commands.heartbeat(GLOBAL, worker, about))


def job(id: str, task: str) -> Prepared:
    return Prepared(id, "+0", 5, encode_body(Body(task)))


def test_what_a_worker_runs_is_what_it_holds_at_this_moment(q: Probe) -> None:
    say(q, "w1", "w2")
    assert {name: one.about.busy for name, one in listed(q).items()} == {"w1": 0, "w2": 0}
    q.add_many(job("a", "shop:send"))
    (first,) = q.claim("w1").jobs
    q.add_many(job("b", "shop:bill"))
    (second,) = q.claim("w1").jobs
    about = listed(q)["w1"].about
    assert about.busy == 2
    assert [(one.queue, one.id, one.task) for one in about.doing] == [
        ("mail", "a", "shop:send"),
        ("mail", "b", "shop:bill"),
    ]
    assert [one.since_us for one in about.doing] == [first.token, second.token]
    assert listed(q)["w2"].about.busy == 0
    q.settle(first, "complete")
    assert [one.id for one in listed(q)["w1"].about.doing] == ["b"]
    q.settle(second, "complete")
    assert listed(q)["w1"].about.busy == 0


def test_what_waits_in_a_worker_for_a_slot_does_not_run(q: Probe) -> None:
    say(q, "w1")
    q.add_many(*(job(f"a{n}", "shop:send") for n in range(5)))
    assert len(q.claim("w1").jobs) == 5
    about = listed(q)["w1"].about
    assert (about.busy, len(about.doing)) == (3, 3)


def test_all_queues_of_a_worker_count(q: Probe) -> None:
    other = Probe(q.executor, q.raw, "other")
    say(q, "w1", about=WorkerReport("host", 42, ["mail", "other"], concurrency=3, lease=LEASE))
    q.take("a")
    other.take("b")
    about = listed(q)["w1"].about
    assert about.busy == 2
    assert [(one.queue, one.id) for one in about.doing] == [("mail", "a"), ("other", "b")]


def test_any_number_of_jobs_is_counted(q: Probe, monkeypatch: Any) -> None:
    monkeypatch.setattr(queue_commands, "CHUNK", 2)
    say(q, "w1", "w2", about=WorkerReport("host", 42, ["mail"], concurrency=9, lease=LEASE))
    q.add(*"abcde")
    q.claim("w1", 3)
    q.claim("w2", 2)
    seen = listed(q)
    assert {name: one.about.busy for name, one in seen.items()} == {"w1": 3, "w2": 2}
    assert {one.id for worker in seen.values() for one in worker.about.doing} == {*"abcde"}


def test_of_many_jobs_those_that_run_for_longest_are_named(q: Probe) -> None:
    say(q, "w1")
    first, *_ = [q.take(id) for id in "abc"]
    q.move(1)
    q.extend(first)  # its lease is the last to end
    held = q.run(queue_commands.holders(q.keys, 2))["w1"]
    assert (held.number, [one.id for one in held.doing]) == (3, ["a", "b"])
    assert q.run(queue_commands.holders(q.keys, 0))["w1"].doing == []


def test_a_dead_worker_that_holds_nothing_is_not_listed(q: Probe) -> None:
    dead, live = [f"d{n}" for n in range(20)], [f"w{n}" for n in range(6)]
    say(q, *dead, *live)
    for worker in dead:
        say_since(q, worker, queue_commands.ALIVE + 1)
    assert [*listed(q)] == live


def test_a_dead_worker_is_listed_while_it_holds_a_job(q: Probe) -> None:
    q.take("a", "dead")
    say(q, "dead", about=WorkerReport("host", 42, ["mail"], concurrency=3))
    say_since(q, "dead", queue_commands.ALIVE + 1)
    (seen,) = listed(q).values()
    assert (seen.name, seen.alive, seen.about.busy) == ("dead", False, 1)
    q.move(LEASE + 1)
    assert listed(q) == {}


def test_a_lease_that_was_renewed_is_a_sign_of_life(q: Probe) -> None:
    """A worker sends no heartbeat while a job holds up its event loop; its thread renews leases."""
    held = q.take("a", "w1")
    say(q, "w1")
    say_since(q, "w1", 100)
    q.move(4)
    assert 3.9 < listed(q)["w1"].ago < 5
    q.extend(held)
    assert listed(q)["w1"].ago < 1
    assert listed(q)["w1"].alive


def test_of_a_queue_that_cannot_be_read_it_is_what_the_worker_said(q: Probe) -> None:
    """Whoever asks may have permission for some queues only."""
    q.take("a", "w1")
    say(q, "w1", about=ABOUT)
    say(q, "w2", about=WorkerReport("host", 42, ["mail", "secret"], busy=2, lease=LEASE))
    seen = q.run(queue_commands.workers(GLOBAL))
    found = q.run(queue_commands.holders(keys_of("mail"), 10))
    told = queue_commands.tell(seen, [found, AccessDenied("no permission")])
    assert [(one.name, one.about.busy) for one in told] == [("w1", 1), ("w2", 2)]


def test_names_that_no_queue_can_have_are_passed_over(q: Probe) -> None:
    """Another program may write what a worker says of itself."""
    say(q, "w1", about=WorkerReport("host", 42, ["{mail}", "mail"], busy=2, lease=LEASE))
    assert [*listed(q)] == ["w1"]


def test_a_job_that_cannot_be_read_is_counted(q: Probe) -> None:
    say(q, "w1")
    q.add("a", "b", "c", body=b"\xff")
    q.claim("w1")
    q.raw.hdel(q.keys["jobs"], "b")
    q.raw.hset(q.keys["run"], "c", b"odd")
    q.legal = False
    seen = listed(q)["w1"]
    assert (seen.about.busy, [one.task for one in seen.about.doing]) == (2, ["?", "?"])


def test_bodies_that_are_large_are_not_all_read(q: Probe) -> None:
    say(q, "w1", about=WorkerReport("host", 42, ["mail"], concurrency=9, lease=LEASE))
    large = encode_body(Body("shop:send", ("x" * 900_000,)))
    q.add("a", "b", "c", body=large)
    while len(q.claim("w1", 9).jobs) > 0:
        pass
    doing = listed(q)["w1"].about.doing
    assert [one.id for one in doing] == ["a", "b", "c"]
    assert [one.task for one in doing] == ["shop:send", "shop:send", "?"]
