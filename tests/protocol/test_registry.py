"""Queues that were used, workers that live, and a worker that leaves."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.queues import RunningTask, WorkerReport
from bide.protocol.keys import keys_of
from tests.support.probe import SECOND, Probe

GLOBAL = keys_of(None)
ABOUT = WorkerReport("host", 42, ["mail"], "auto", 100, 1_700_000_000_000_000, "0.1")


def say_since(q: Probe, worker: str, seconds: float) -> None:
    """Pretend that the worker was last heard of so long ago."""
    said: Any = q.raw.hget(GLOBAL["workers"], worker)
    at_us, _, text = said.partition(b" ")
    earlier: Any = b"%d " % (int(at_us) - round(seconds * SECOND)) + text
    q.raw.hset(GLOBAL["workers"], worker, earlier)


def test_queues_are_listed_once_each_in_order(q: Probe) -> None:
    assert q.run(queue_commands.queues(GLOBAL)) == []
    q.run(queue_commands.register_queues(GLOBAL, ["mail", "audit"]))
    since = q.raw.hgetall(GLOBAL["queues"])
    q.run(queue_commands.register_queues(GLOBAL, ["mail", "zoo"]))
    assert q.run(queue_commands.queues(GLOBAL)) == ["audit", "mail", "zoo"]
    assert since.items() <= q.raw.hgetall(GLOBAL["queues"]).items(), "first used stays first"


def test_a_worker_says_that_it_lives(q: Probe) -> None:
    q.run(queue_commands.heartbeat(GLOBAL, "w1", ABOUT))
    (seen,) = q.run(queue_commands.workers(GLOBAL))
    assert (seen.name, seen.about) == ("w1", ABOUT)
    assert 0 <= seen.ago < 60
    say_since(q, "w1", 100)
    q.run(queue_commands.heartbeat(GLOBAL, "w1", ABOUT))
    (seen,) = q.run(queue_commands.workers(GLOBAL))
    assert seen.ago < 60


def test_a_worker_lives_whatever_the_ids_of_its_jobs_are(q: Probe) -> None:
    doing = [RunningTask("mail", id, "app:task", 1) for id in ("plain", "grün", "odd\udcff")]
    about = structs.replace(ABOUT, busy=3, doing=doing)
    q.run(queue_commands.heartbeat(GLOBAL, "w1", about))
    (seen,) = q.run(queue_commands.workers(GLOBAL))
    assert [job.id for job in seen.about.doing] == ["plain", "grün", "odd\ufffd"]
    told = structs.replace(about, doing=[*doing[:2], structs.replace(doing[2], id="odd\ufffd")])
    assert seen.about == told


def test_and_that_it_stops(q: Probe) -> None:
    for worker in ("w2", "w1"):
        q.run(queue_commands.heartbeat(GLOBAL, worker, ABOUT))
    assert [w.name for w in q.run(queue_commands.workers(GLOBAL))] == ["w1", "w2"]
    q.run(queue_commands.heartbeat(GLOBAL, "w1", None))
    assert [w.name for w in q.run(queue_commands.workers(GLOBAL))] == ["w2"]


def test_one_that_was_not_heard_of_for_fifteen_seconds_is_not_alive(q: Probe) -> None:
    for worker in ("dead", "slow"):
        q.run(queue_commands.heartbeat(GLOBAL, worker, ABOUT))
    say_since(q, "dead", queue_commands.ALIVE + 1)
    say_since(q, "slow", queue_commands.ALIVE - 5)
    alive = [(w.name, w.alive) for w in q.run(queue_commands.workers(GLOBAL))]
    assert alive == [("dead", False), ("slow", True)]


def test_and_after_an_hour_it_is_forgotten(q: Probe) -> None:
    for worker in ("dead", "silent"):
        q.run(queue_commands.heartbeat(GLOBAL, worker, ABOUT))
    say_since(q, "dead", 3601)
    say_since(q, "silent", 3500)
    q.run(queue_commands.heartbeat(GLOBAL, "w1", ABOUT))
    assert set(q.raw.hkeys(GLOBAL["workers"])) == {b"silent", b"w1"}


def test_a_worker_of_another_version_is_shown_whatever_it_says(q: Probe) -> None:
    now = q.raw.time()[0] * SECOND
    q.raw.hset(GLOBAL["workers"], "newer", b'%d {"host":["two"],"pid":{}}' % now)
    q.raw.hset(GLOBAL["workers"], "older", b'%d {"host":"h","more":1}' % now)
    seen = q.run(queue_commands.workers(GLOBAL))
    assert [(w.name, w.about.host) for w in seen] == [("newer", "?"), ("older", "h")]


def test_a_worker_that_leaves_is_forgotten_by_its_queue(q: Probe) -> None:
    q.claim("w1", seq=5)
    q.leave("w1")
    assert q.zset("keep") == {}
    assert q.raw.hgetall(q.keys["claims"]) == {}
    assert not q.claim("w1", seq=1).stale, "one of its name may start from the first number"


def test_one_that_slept_is_forgotten_too(q: Probe) -> None:
    for worker in ("k1", "k2", "k1", "sleeper"):  # the first was alone, and is called
        q.claim(worker)
    assert q.zset("park").keys() == {"sleeper"}
    q.leave("sleeper")
    assert q.zset("park") == {}
    assert q.zset("keep").keys() == {"k1", "k2"}


def test_what_it_held_stays_its_own_until_the_lease_ends(q: Probe) -> None:
    job = q.take("a", "w1")
    q.leave("w1")
    assert q.taken("w2") == []
    assert q.settle(job, "complete") == "ok"


def test_a_worker_that_is_asked_to_stop_hears_it_when_it_next_speaks(q: Probe) -> None:
    for worker in ("w1", "w2"):
        assert not q.run(queue_commands.heartbeat(GLOBAL, worker, ABOUT)).stop
    assert q.run(queue_commands.worker_stop(GLOBAL, ["w1", "nobody"])) == ["ok", "gone"]
    assert [w.name for w in q.run(queue_commands.workers(GLOBAL))] == ["w1", "w2"]
    assert q.run(queue_commands.heartbeat(GLOBAL, "w1", ABOUT)).stop
    assert q.run(queue_commands.heartbeat(GLOBAL, "w1", ABOUT)).stop, "until it has stopped"
    assert not q.run(queue_commands.heartbeat(GLOBAL, "w2", ABOUT)).stop
    q.run(queue_commands.heartbeat(GLOBAL, "w1", None))
    assert not q.run(queue_commands.heartbeat(GLOBAL, "w1", ABOUT)).stop
    assert set(q.raw.hkeys(GLOBAL["workers"])) == {b"w2", b"w1"}


def test_a_worker_that_is_asked_to_pause_hears_it_until_it_is_resumed(q: Probe) -> None:
    def beat(worker: str = "w1") -> queue_commands.HeartbeatReply:
        return q.run(queue_commands.heartbeat(GLOBAL, worker, ABOUT))

    assert not beat().pause
    pubsub: Any = q.raw.pubsub()  # type: ignore[no-untyped-call]
    pubsub.subscribe(GLOBAL["workers"])
    pause = queue_commands.worker_pause(GLOBAL, ["w1", "nobody"], paused=True)
    assert q.run(pause) == ["ok", "gone"]
    assert beat()[1:] == (False, True)
    assert not beat("w2").pause
    assert q.run(queue_commands.worker_pause(GLOBAL, ["w1"], paused=False)) == ["ok"]
    assert not beat().pause
    heard = [pubsub.get_message(timeout=90)["data"] for _ in range(3)]
    assert heard == [1, b"w1 pause", b"w1 resume"]
    pubsub.close()
    assert [w.name for w in q.run(queue_commands.workers(GLOBAL))] == ["w1", "w2"]


def test_a_pause_is_not_forgotten_while_the_worker_lives_and_ends_with_it(q: Probe) -> None:
    q.run(queue_commands.heartbeat(GLOBAL, "w1", ABOUT))
    q.run(queue_commands.worker_pause(GLOBAL, ["w1"], paused=True))
    told: Any = q.raw.hget(GLOBAL["workers"], "w1 pause")
    q.raw.hset(GLOBAL["workers"], "w1 pause", int(told) - 3000 * SECOND)
    assert q.run(queue_commands.heartbeat(GLOBAL, "w1", ABOUT)).pause
    again: Any = q.raw.hget(GLOBAL["workers"], "w1 pause")
    assert int(again) >= int(told)
    q.run(queue_commands.heartbeat(GLOBAL, "w1", None))
    assert q.raw.hgetall(GLOBAL["workers"]) == {}
