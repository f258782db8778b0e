"""A server at its `maxmemory`: work that was taken can end, and new work is refused whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from bide.errors import ServerFull
from bide.model.limits import Declared
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.queues import WorkerReport
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from tests.support.probe import BODY, LEASE, SECOND, Probe

GLOBAL = keys_of(None)
ABOUT = WorkerReport("host", 42, ["mail"], "auto", 100, 1_700_000_000_000_000, "0.1")
ERROR = b'{"type":"E","message":""}'


class Memory:
    def __init__(self, raw: redis.Redis) -> None:
        self._raw = raw

    def fill(self) -> None:
        self._raw.config_set("maxmemory", "1")

    def free(self) -> None:
        """Make room: also before looking, since a full server refuses MULTI."""
        self._raw.config_set("maxmemory", "0")


@pytest.fixture
def memory(q: Probe) -> Iterator[Memory]:
    memory = Memory(q.raw)
    yield memory
    memory.free()


def test_enqueue_is_refused_whole(q: Probe, memory: Memory) -> None:
    memory.fill()
    before = q.raw.keys()
    with pytest.raises(ServerFull, match="refused to take more"):
        q.add("a", "b")
    assert q.raw.keys() == before == []


def test_what_was_refused_can_be_enqueued_once_there_is_room(q: Probe, memory: Memory) -> None:
    memory.fill()
    with pytest.raises(ServerFull):
        q.add("a")
    memory.free()
    assert q.add("a")[0].created


def test_a_backlog_drains_to_its_end(q: Probe, memory: Memory) -> None:
    q.add(*"abcdef")
    memory.fill()
    a, b, c, d, e, f = q.claim().jobs
    assert q.extend(a, b) == ["ok", "ok"]
    assert (
        q.settle_many(
            Settle(a.id, a.token, "complete", "", b"1"),
            Settle(b.id, b.token, "fail", "", ERROR),
            Settle(c.id, c.token, "retry", "+0", ERROR),
            Settle(d.id, d.token, "snooze", "+0"),
            Settle(e.id, e.token, "release"),
            Settle(f.id, f.token, "cancel"),
        )
        == ["ok"] * 6
    )
    memory.free()
    places = ["completed", "failed", "due", "due", "due", "cancelled"]
    assert [q.where(id) for id in "abcdef"] == places
    memory.fill()
    for job in q.claim().jobs:
        assert q.settle(job, "complete", data=b"2") == "ok"
    assert q.zset("completed").keys() == {"a", "c", "d", "e"}


def test_what_ends_is_told_and_what_was_refused_is_not(q: Probe, memory: Memory) -> None:
    q.add("a", "b")
    memory.fill()
    q.listen()
    with pytest.raises(ServerFull):
        q.add("c")
    for job in q.claim().jobs:
        assert q.settle(job, "complete") == "ok"
    assert q.cancel("c") == ["gone"]
    memory.free()
    told = [event.kind for event in q.told()]
    assert told == ["active", "active", "completed", "completed", "drained"]


def test_expired_leases_are_reclaimed_and_poison_fails(q: Probe, memory: Memory) -> None:
    q.add("a")
    memory.fill()
    for _ in range(5):
        assert q.taken("doomed") == ["a"]
        q.leave("doomed")
        memory.free()  # the test's own clock adds
        q.move(LEASE + 1)
        memory.fill()
        q.claim("undertaker", 0)
    memory.free()
    assert q.where("a") == "failed"


def test_a_claim_may_be_the_first_a_queue_has_seen(q: Probe, memory: Memory) -> None:
    memory.fill()
    claim = q.claim("w1")
    assert claim.until_us > claim.now_us
    assert q.zset("keep").keys() == {"w1"}
    assert q.claim("w1", seq=1).jobs == []


def test_jobs_can_be_taken_back_moved_and_deleted(q: Probe, memory: Memory) -> None:
    q.add("a", "b", "c", "d")
    memory.fill()
    assert q.cancel("a") == ["ok"]
    assert q.run(job_commands.delete(q.keys, ["b"])) == ["ok"]
    assert q.reschedule("c", f"+{SECOND}").result == "ok"
    assert q.promote("c").result == "ok"
    assert q.run(job_commands.purge(q.keys, "this")).aside == 2
    assert not q.run(job_commands.purge(q.keys, None)).more


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(queue_commands.register_queues(GLOBAL, ["mail"]), id="queue_register"),
        pytest.param(queue_commands.heartbeat(GLOBAL, "w1", ABOUT), id="heartbeat"),
        pytest.param(queue_commands.heartbeat(GLOBAL, "w1", None), id="farewell"),
        pytest.param(job_commands.pause(keys_of("mail")), id="pause"),
        pytest.param(job_commands.resume(keys_of("mail")), id="resume"),
        pytest.param(worker_commands.worker_leave(keys_of("mail"), "w1"), id="worker_leave"),
        pytest.param(job_commands.counts(keys_of("mail")), id="counts"),
        pytest.param(queue_commands.worker_start(keys_of("mail")), id="worker_start"),
        pytest.param(queue_commands.queues(GLOBAL), id="queues"),
        pytest.param(queue_commands.workers(GLOBAL), id="workers"),
    ],
)
def test_a_worker_can_start_and_stop_and_people_can_look_and_pause(
    q: Probe, memory: Memory, command: Command[object]
) -> None:
    memory.fill()
    q.run(command)


def test_less_can_be_kept_so_that_there_is_room(q: Probe, memory: Memory) -> None:
    memory.fill()
    q.configure(count=5)
    memory.free()
    assert q.run(job_commands.counts(q.keys)).retention.count == 5


def test_limits_can_be_set_on_a_full_server(q: Probe, memory: Memory) -> None:
    memory.fill()
    q.limit(rate="1/s", concurrency=1)
    memory.free()
    assert q.limits.rate == "1/s"


def test_settings_can_be_declared_on_a_full_server(q: Probe, memory: Memory) -> None:
    memory.fill()
    q.run(job_commands.declare(q.keys, Declared("1 1000000 1"), True))
    memory.free()
    assert q.limits.rate == "1/s"


def test_others_in_the_same_round_trip_are_not_refused(q: Probe, memory: Memory) -> None:
    job = q.take("a")
    memory.fill()
    refused, verdicts = q.executor.attempt_many(
        [
            enqueue_commands.enqueue(q.keys, [Prepared("b", "+0", 5, BODY)]),
            worker_commands.settle(q.keys, [Settle(job.id, job.token, "complete")]),
        ]
    )
    assert isinstance(refused, ServerFull)
    assert verdicts == ["ok"]
    memory.free()
    assert q.where("a") == "completed"


@pytest.mark.parametrize("most", [1, 2])
def test_an_item_that_fills_its_batch_is_refused_too(q: Probe, memory: Memory, most: int) -> None:
    body = encode_body(Body("app.tasks:index", (1,)))

    def item(id: str) -> Prepared:
        return Prepared(id, "+0", 5, body, constraints=f"k=k f=g{SECOND},0,{most}")

    if most == 2:
        q.add_many(item("a"))
    memory.fill()
    with pytest.raises(ServerFull):
        q.add_many(item("b"))
    memory.free()
    before = q.holding().hashes["jobs"]
    assert before.keys() == ({"a"} if most == 2 else set())
    (receipt,) = q.add_many(item("b"))
    assert receipt.result == ("batched" if most == 2 else "created")
