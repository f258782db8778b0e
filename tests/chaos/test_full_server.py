"""A server that has reached its maxmemory: nothing more comes in, and all that is in gets out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from bide import DurabilityUnavailable, Queue, ServerFull, ServerReadOnly
from bide.client import blocking
from bide.embedded import Server
from bide.model.limits import Retention
from bide.model.payload.body import Body, encode_item
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from tests.conftest import BINARIES, SERVERS
from tests.support.console import bide, said
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal, hold
from tests.support.worker_pool import JOBS, WorkerPool

KEYS = keys_of("mail")
LEASE_US = 60_000_000
BIG = "x" * 2_000
MAX_REFUSALS = 5


class Tank:
    """A server with room for a little, and a queue on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.direct = redis.Redis.from_url(url)
        self.client = blocking.Client(url)
        self.queue = Queue("mail", url=url)
        self.queue.counts()

    def close(self) -> None:
        self.queue.close()
        self.client.close()
        self.direct.close()

    def fill(self, task: str = f"{JOBS}:padded") -> set[str]:
        """Enqueue until the server refuses; the ids that it has acknowledged."""
        room = self.direct.info("memory")["used_memory"] + 1_500_000
        self.direct.config_set("maxmemory", room)
        ids: set[str] = set()
        refused = 0
        while refused < MAX_REFUSALS:  # one may pass and the next not: buffers count as memory
            assert len(ids) < 10_000, "it should have been full long ago"
            jobs = [self.queue.prepare(task, [BIG]) for _ in range(20)]
            try:
                ids |= {job.id for job in self.queue.enqueue_many(jobs)}
            except ServerFull:
                refused += 1
        used = self.direct.info("memory")["used_memory"]
        self.direct.config_set("maxmemory", used - 200_000)
        return ids


@pytest.fixture(params=SERVERS)
def tank(request: pytest.FixtureRequest, tmp_server: Callable[..., Server]) -> Iterator[Tank]:
    tank = Tank(tmp_server(binary=BINARIES[request.param]).url)
    yield tank
    tank.close()


def prepared(count: int) -> list[enqueue_commands.Prepared]:
    return [enqueue_commands.prepare(Body(f"{JOBS}:padded", (BIG,))) for _ in range(count)]


def test_an_enqueue_is_refused_whole_and_changes_nothing(tank: Tank) -> None:
    ids = tank.fill()
    before = assert_legal(tank.direct, "mail")
    assert before.due.keys() == ids
    for count in (1, 20, enqueue_commands.CHUNK, 2 * enqueue_commands.CHUNK + 7):
        with pytest.raises(ServerFull, match="maxmemory"):
            tank.queue.enqueue_many(prepared(count))
        assert hold(tank.direct, "mail") == before


@pytest.mark.parametrize("way", ["uk,f", "ur,f", "d60000000,0", "t1,60000000", "g60000000,0,99"])
def test_a_call_that_would_be_deduplicated_is_refused_whole_too(tank: Tank, way: str) -> None:
    policy = f"k=k f={way}"
    (first,) = [job._replace(constraints=policy) for job in prepared(1)]
    tank.client.run(enqueue_commands.enqueue(KEYS, [first]))
    tank.fill()
    before = hold(tank.direct, "mail")
    others = [job._replace(constraints=policy) for job in prepared(3)]
    new = [job._replace(constraints=policy.replace("k=k", "k=new")) for job in prepared(1)]
    for calls in (new, [*others, *new]) if way == "uk,f" else (others, new, [*others, *new]):
        with pytest.raises(ServerFull, match="maxmemory"):
            tank.client.run(enqueue_commands.enqueue(KEYS, calls))
        assert hold(tank.direct, "mail") == before


def test_what_was_taken_can_be_settled_in_every_way(tank: Tank) -> None:
    tank.fill()
    run = tank.client.run
    claim = run(worker_commands.claim(KEYS, "w", 1, 50, LEASE_US, 0))
    assert len(claim.jobs) == 50
    tokens = [(job.id, job.token) for job in claim.jobs]
    assert run(worker_commands.extend(KEYS, LEASE_US, tokens)) == ["ok"] * 50
    error = b'{"type":"ValueError","message":"' + b"x" * 2_000 + b'"}'
    outcomes: list[tuple[worker_commands.Outcome, str, bytes]] = [
        ("complete", "", b'"' + b"x" * 5_000 + b'"'),
        ("fail", "", error),
        ("retry", "+60000000", error),
        ("snooze", "+60000000", b""),
        ("release", "", b""),
    ]
    for i, (outcome, when, data) in enumerate(outcomes):
        batch = claim.jobs[i * 10 : i * 10 + 10]
        settles = [Settle(job.id, job.token, outcome, when, data) for job in batch]
        assert run(worker_commands.settle(KEYS, settles)) == ["ok"] * 10
        assert_legal(tank.direct, "mail")
    holding = assert_legal(tank.direct, "mail")
    assert holding.sets["active"] == {}
    assert [holding.total(x) for x in ("completed", "failed", "retried")] == [10, 10, 10]


def test_data_can_be_popped(tank: Tank) -> None:
    data = [enqueue_commands.Prepared(f"a-{n:02}", "+0", 9, encode_item(n)) for n in range(20)]
    tank.client.run(enqueue_commands.enqueue(KEYS, data))
    tank.fill()
    popped = tank.client.run(worker_commands.pop(KEYS, "c", 1, 20, 0))
    assert popped.bodies == [encode_item(n) for n in range(20)]
    before = assert_legal(tank.direct, "mail")
    popped = tank.client.run(worker_commands.pop(KEYS, "c", 2, 5, 0))
    assert (popped.bodies, popped.refused, popped.not_data) == ([], 0, True), "only jobs are left"
    holding = assert_legal(tank.direct, "mail")
    assert holding.total("completed") == 20
    assert holding.due == before.due


def test_what_waits_can_be_moved_cancelled_deleted_and_purged(tank: Tank) -> None:
    first, second, third, *_ = sorted(tank.fill())
    run = tank.client.run
    assert run(job_commands.reschedule(KEYS, [first], "+60000000"))[0].result == "ok"
    assert run(job_commands.promote(KEYS, [first]))[0].result == "ok"
    assert tank.queue.cancel(second)
    assert tank.queue.fetch(third).delete()
    tank.queue.pause()
    tank.queue.resume()
    holding = assert_legal(tank.direct, "mail")
    assert holding.where(second) == "cancelled"
    assert holding.where(third) is None
    assert tank.queue.purge() == len(holding.due)
    assert assert_legal(tank.direct, "mail").ids == {second}


def test_what_runs_can_be_asked_to_stop_and_what_has_ended_retried(tank: Tank) -> None:
    tank.fill()
    run = tank.client.run
    jobs = run(worker_commands.claim(KEYS, "w", 1, 30, LEASE_US, 0)).jobs
    ids = [job.id for job in jobs]
    asked = ids[:10]
    assert tank.queue.cancel_many(asked) == ["asked"] * 10
    assert [run(job_commands.await_end(KEYS, id, LEASE_US)) for id in ids] == ["active"] * 30
    settles = [Settle(job.id, job.token, "fail", keep="+60000000") for job in jobs[10:]]
    settles += [Settle(job.id, job.token, "retry", "+60000000") for job in jobs[:10]]
    assert run(worker_commands.settle(KEYS, settles)) == ["ok"] * 30
    assert assert_legal(tank.direct, "mail").sets["cancelled"].keys() == set(asked)
    tank.queue.configure(retention=Retention(count=5))
    assert tank.queue.retry_many(ids) == ["ok"] * 30
    holding = assert_legal(tank.direct, "mail")
    assert set(ids) <= holding.due.keys()
    assert holding.waiters == {}


@pytest.mark.slow
def test_what_jobs_say_of_themselves_is_refused_and_they_run_on(
    tank: Tank, worker_pool: WorkerPool
) -> None:
    """Nobody's job fails because its log lines had no room."""
    ids = tank.fill(f"{JOBS}:talks")
    worker = worker_pool.worker(tank.url, "-q", "mail", "--burst")
    assert worker.wait() == 0
    assert assert_legal(tank.direct, "mail").sets["completed"].keys() == ids


def test_expired_leases_are_reclaimed(tank: Tank) -> None:
    tank.fill()
    run = tank.client.run
    dead = run(worker_commands.claim(KEYS, "dead", 1, 10, 1, 0)).jobs
    assert len(dead) == 10
    again = run(worker_commands.claim(KEYS, "w", 1, 500, LEASE_US, 0)).jobs
    assert {job.id for job in dead} <= {job.id for job in again}
    assert assert_legal(tank.direct, "mail").total("reclaimed") == 10


@pytest.mark.slow
def test_a_worker_starts_and_drains_the_backlog_and_then_there_is_room(
    tank: Tank, worker_pool: WorkerPool
) -> None:
    ids = tank.fill()
    worker = worker_pool.worker(tank.url, "-q", "mail", "--burst")
    assert worker.wait() == 0
    assert worker_pool.ledger.count("done") == dict.fromkeys(ids, 1)
    holding = assert_legal(tank.direct, "mail")
    assert holding.sets["completed"].keys() == ids
    for id in ids:
        tank.queue.fetch(id).delete()
    job = tank.queue.enqueue(f"{JOBS}:padded", BIG)
    assert job.created
    assert assert_legal(tank.direct, "mail").due.keys() == {job.id}


@pytest.mark.slow
def test_a_retry_that_a_full_server_must_take_is_taken(tank: Tank, worker_pool: WorkerPool) -> None:
    """It adds to a set, and records an error: but a place was given up first."""
    ids = tank.fill(f"{JOBS}:padded_fails")
    worker = worker_pool.worker(tank.url, "-q", "mail", "--burst")
    assert worker.wait() == 0
    assert assert_legal(tank.direct, "mail").sets["failed"].keys() == ids


# -- a server that would rather forget


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_worker_refuses_a_server_that_drops_jobs(
    tank: Tank, worker_pool: WorkerPool, policy: str
) -> None:
    job = tank.queue.enqueue(f"{JOBS}:quick")
    tank.direct.config_set("maxmemory-policy", policy)
    before = hold(tank.direct, "mail")
    worker = worker_pool.worker(tank.url, "-q", "mail", "--burst")
    assert worker.wait() == 2
    worker.says(f"(maxmemory-policy {policy}); run `CONFIG SET maxmemory-policy noeviction`")
    assert hold(tank.direct, "mail") == before
    assert worker_pool.ledger.lines() == []
    worker = worker_pool.worker(tank.url, "-q", "mail", "--burst", "--allow-eviction")
    assert worker.wait() == 0
    assert worker_pool.ledger.count("done") == {job.id: 1}


@pytest.mark.slow
def test_one_that_does_not_say_is_served(tank: Tank, worker_pool: WorkerPool) -> None:
    """INFO is denied where a user has few permissions; `bide doctor` says so."""
    permissions = {"keys": ["*"], "channels": ["*"], "commands": ["+@all", "-info"]}
    tank.direct.acl_setuser("shop", enabled=True, passwords=["+x"], **permissions)  # type: ignore[arg-type]
    tank.queue.enqueue(f"{JOBS}:quick")
    url = f"{tank.url}&username=shop&password=x"
    worker = worker_pool.worker(url, "-q", "mail", "--burst")
    assert worker.wait() == 0
    worker.says("INFO is denied")
    assert len(worker_pool.ledger.lines("done")) == 1


def test_what_is_to_be_confirmed_is_refused_like_all_else(tank: Tank) -> None:
    """Also its repeat: a full server adds nothing, and so confirms nothing."""
    tank.direct.config_set("appendonly", "yes")
    tank.fill()
    before = hold(tank.direct, "mail")
    with pytest.raises((ServerFull, DurabilityUnavailable)):
        tank.queue.enqueue(f"{JOBS}:padded", BIG, durability="fsync")
    assert hold(tank.direct, "mail") == before


# -- a server that cannot write to its disk


class Disk:
    """What keeps the server from saving: something of another kind stands where its file is to be.

    Other than permissions, this stops root, too.
    """

    def __init__(self, direct: redis.Redis) -> None:
        self._direct = direct
        directory = Path(str(direct.config_get("dir")["dir"]))
        self._file = directory / str(direct.config_get("dbfilename")["dbfilename"])
        direct.config_set("save", "3600 1")
        direct.config_set("stop-writes-on-bgsave-error", "yes")

    def spoil(self) -> None:
        self._file.mkdir()
        self._save("err")

    def mend(self) -> None:
        self._file.rmdir()
        self._save("ok")

    def _save(self, word: str) -> None:
        self._direct.bgsave()
        eventually(lambda: self._direct.info("persistence")["rdb_last_bgsave_status"] == word)


@pytest.fixture
def disk(tank: Tank) -> Disk:
    return Disk(tank.direct)


def test_one_that_cannot_save_refuses_changes_and_says_why(tank: Tank, disk: Disk) -> None:
    job = tank.queue.enqueue(f"{JOBS}:quick", delay=60)
    disk.spoil()
    before = hold(tank.direct, "mail")
    for change in (lambda: tank.queue.enqueue(f"{JOBS}:quick"), job.promote, tank.queue.pause):
        with pytest.raises(ServerReadOnly, match=r"cannot write to its disk.* make room there"):
            change()
    assert job.refresh().state == "delayed"
    assert hold(tank.direct, "mail") == before
    disk.mend()
    job.promote()


@pytest.mark.parametrize("denied", ["", "-time -config"])
def test_doctor_has_its_whole_table_where_a_disk_is_full(
    tank: Tank, disk: Disk, tmp_path: Path, denied: str
) -> None:
    permissions = f"on >pw ~* &* +@all {denied}".split()
    tank.direct.execute_command("ACL", "SETUSER", "looker", *permissions)  # type: ignore[no-untyped-call]
    disk.spoil()
    shown = said(bide(tmp_path, "doctor", url=f"{tank.url}&username=looker&password=pw"), 1)
    assert "fail  persistence   the last snapshot failed; the server may refuse all writes" in shown
    assert "ok    scripts" in shown
    if denied:  # then PING is what is left to measure with, which such a server refuses
        assert "note  round trip    not known: the server refuses PING (MISCONF)" in shown
    disk.mend()


@pytest.mark.slow
def test_a_worker_waits_until_the_server_can_save(
    tank: Tank, disk: Disk, worker_pool: WorkerPool
) -> None:
    """A job that ended meanwhile is settled then, and does not run again.

    The lease lasts for longer than it takes to start another worker on a busy machine.
    """
    job = tank.queue.enqueue(f"{JOBS}:held", "gate")
    busy = worker_pool.worker(tank.url, "-q", "mail", "--lease", "10m")
    worker_pool.ledger.wait("begun", 1)
    disk.spoil()
    worker_pool.open_gate("gate")
    busy.says("make room there, or see in its log what it lacks. Trying again until it works.")
    new = worker_pool.worker(tank.url, "-q", "mail")
    new.says(" serves mail")
    new.says("make room there, or see in its log what it lacks. Trying again until it works.")
    disk.mend()
    eventually(lambda: job.refresh().state == "completed")
    for worker in (busy, new):
        worker.terminate()
        assert worker.wait() == 0
    assert worker_pool.ledger.count("done") == {job.id: 1}
