"""A lost reply changes nothing: whatever is lost on the line, each command takes effect once.

"For every n" means: lose the n-th reply (or request) of the operation, connection set-up and
script loading included, and go on until it completes without having had an n-th.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from bide import Queue
from bide.errors import ServerUnavailable
from bide.model.history import read_history
from bide.model.limits import Retention
from bide.model.payload.body import Body, decode_body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import JobNote, Settle
from bide.protocol.keys import keys_of
from tests.chaos.conftest import Connect, Executor
from tests.chaos.verbs import empty_all, enqueue_all, settle_calls
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy

QUEUE = "mail"
KEYS = keys_of(QUEUE)
LEASE_US = 60_000_000


class Line:
    """A client whose line can be made to fail, and one past the proxy for what is not at stake."""

    def __init__(
        self,
        proxy: Proxy,
        direct: redis.Redis,
        bad: Executor,
        good: Executor,
        lose: str,
        width: int,
    ) -> None:
        self.proxy, self.direct, self.bad, self.good = proxy, direct, bad, good
        self._lose = getattr(proxy, lose)
        self._width = width
        self._n = 0

    def each_round(self) -> Iterator[None]:
        """One round per n, each on an empty server which the client has reached before."""
        while True:
            self._n += 1
            self.proxy.behave()
            self.direct.flushall()
            self.bad.run(job_commands.counts(KEYS))
            yield
            if self.proxy.lost == 0:
                return

    def arm(self) -> None:
        """From here on, lose the n-th (and with a wider gap what follows it)."""
        self.direct.script_flush()
        self.proxy.cut()
        self._lose(*range(self._n, self._n + self._width))


@pytest.fixture(params=[("lose_reply", 1), ("lose_reply", 2), ("lose_request", 1)], ids=str)
def line(
    request: pytest.FixtureRequest,
    proxy: Proxy,
    direct: redis.Redis,
    one_url: str,
    connect: Connect,
) -> Line:
    lose, width = request.param
    return Line(proxy, direct, connect(proxy.url), connect(one_url), lose, width)


def jobs(count: int, delay: float = 0) -> list[Prepared]:
    return [enqueue_commands.prepare(Body("app:task", (i,)), delay) for i in range(count)]


def add(client: Executor, prepared: list[Prepared]) -> list[str]:
    return [receipt.id for receipt in enqueue_all(client, KEYS, prepared)]


def take(client: Executor, count: int, worker: str = "w1", seq: int = 1) -> worker_commands.Claim:
    return client.run(worker_commands.claim(KEYS, worker, seq, count, LEASE_US, 0))


def test_an_enqueue_adds_its_job_once(line: Line) -> None:
    rounds = 0
    for _ in line.each_round():
        rounds += 1
        (job,) = jobs(1)
        line.arm()
        (receipt,) = line.bad.run(enqueue_commands.enqueue(KEYS, [job]))
        assert receipt.id == job.id
        assert assert_legal(line.direct, QUEUE).due.keys() == {job.id}
    assert rounds > 3  # connecting, NOSCRIPT, SCRIPT LOAD, and the call itself


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "came", "left"),
    [
        ("uk,f", "created duplicate duplicate", [[0]]),
        ("ur,f", "created replaced replaced", [[2]]),
        ("d60000000,0", "created debounced debounced", [[2]]),
        ("t1,60000000", "created created throttled", [[0], [2]]),
        ("g60000000,0,9", "created batched batched", [[0, 1, 2]]),
        ("g60000000,0,2", "created batched created", [[0, 1], [2]]),
    ],
)
def test_each_call_is_deduplicated_once(
    line: Line, way: str, came: str, left: list[list[int]]
) -> None:
    """A repeat of a first call finds its job; all else comes to the same twice."""
    for _ in line.each_round():
        prepared = [job._replace(constraints=f"k=k f={way}") for job in jobs(3)]
        line.arm()
        receipts = [
            r for job in prepared for r in line.bad.run(enqueue_commands.enqueue(KEYS, [job]))
        ]
        words = [
            "created" if receipt.id == job.id else receipt.result
            for job, receipt in zip(prepared, receipts, strict=True)
        ]
        assert " ".join(words) == came
        holding = assert_legal(line.direct, QUEUE)
        bodies = [decode_body(holding.hashes["jobs"][id]).args for id in sorted(holding.due)]
        found = [args[0] if way[0] == "g" else list(args) for args in bodies]
        assert found == left
        assert {receipt.id for receipt in receipts} == holding.due.keys()


@pytest.mark.slow
def test_many_items_in_several_calls_are_batched_once_each(line: Line) -> None:
    for _ in line.each_round():
        count = 2 * enqueue_commands.DEDUP_CHUNK + 7
        prepared = [job._replace(constraints="k=k f=g60000000,0,1000") for job in jobs(count)]
        line.arm()
        receipts = enqueue_all(line.bad, KEYS, prepared)
        assert {receipt.id for receipt in receipts} == {prepared[0].id}
        (body,) = assert_legal(line.direct, QUEUE).hashes["jobs"].values()
        assert decode_body(body).args == (list(range(count)),)


@pytest.mark.slow
def test_many_jobs_in_several_calls_are_added_once_each(line: Line) -> None:
    rounds = 0
    for _ in line.each_round():
        rounds += 1
        prepared = jobs(2 * enqueue_commands.CHUNK + 7)
        line.arm()
        receipts = enqueue_all(line.bad, KEYS, prepared)
        assert [receipt.id for receipt in receipts] == [job.id for job in prepared]
        assert assert_legal(line.direct, QUEUE).due.keys() == {job.id for job in prepared}
    assert rounds > 5


@pytest.mark.slow
def test_a_claim_returns_exactly_what_it_took(line: Line) -> None:
    for _ in line.each_round():
        add(line.good, jobs(7))
        line.arm()
        claim = take(line.bad, 5)
        holding = assert_legal(line.direct, QUEUE)
        assert len(claim.jobs) == 5
        assert {job.id for job in claim.jobs} == holding.sets["active"].keys()
        for job in claim.jobs:
            assert job.attempt == 1
            assert job.token == holding.records[job.id].token
        rest = take(line.bad, 5, seq=2)
        assert {job.id for job in rest.jobs} == holding.due.keys()


@pytest.mark.slow
def test_a_settle_is_applied_once_and_never_called_lost(line: Line) -> None:
    for _ in line.each_round():
        add(line.good, jobs(5))
        done, again, failed, snoozed, back = take(line.good, 5).jobs
        line.arm()
        verdicts = line.bad.run(
            worker_commands.settle(
                KEYS,
                [
                    Settle(done.id, done.token, "complete", "", b"42"),
                    Settle(
                        again.id, again.token, "retry", "+1000000", b'{"type":"E","message":""}'
                    ),
                    Settle(failed.id, failed.token, "fail", "", b'{"type":"E","message":""}'),
                    Settle(snoozed.id, snoozed.token, "snooze", "+1000000"),
                    Settle(back.id, back.token, "release"),
                ],
            )
        )
        assert verdicts == ["ok"] * 5
        holding = assert_legal(line.direct, QUEUE)
        assert [holding.where(job.id) for job in (done, again, failed, snoozed, back)] == [
            "completed",
            "due",
            "failed",
            "due",
            "due",
        ]
        assert [holding.total(x) for x in ("completed", "retried", "failed")] == [1, 1, 1]
        attempts = {job.id: holding.records[job.id].attempt for job in (again, snoozed, back)}
        assert attempts == {again.id: 1, snoozed.id: 0, back.id: 0}


@pytest.mark.slow
def test_settles_and_a_claim_in_one_round_trip_each_take_effect_once(line: Line) -> None:
    """As a busy worker sends them; a loss in the middle leaves some applied and some not."""
    size = worker_commands.MAX_SETTLES
    for _ in line.each_round():
        add(line.good, jobs(size + 50))
        first = [job for seq in (1, 2) for job in take(line.good, size, seq=seq).jobs]
        second = add(line.good, jobs(20))
        settles = [Settle(job.id, job.token, "complete") for job in first]
        line.arm()
        *verdicts, claim = line.bad.run_many(
            [
                *settle_calls(KEYS, settles),
                worker_commands.claim(KEYS, "w1", 3, 30, LEASE_US, 0),
            ]
        )
        assert [word for reply in verdicts for word in reply] == ["ok"] * (size + 50)
        holding = assert_legal(line.direct, QUEUE)
        assert holding.sets["completed"].keys() == {job.id for job in first}
        assert holding.total("completed") == size + 50
        assert {job.id for job in claim.jobs} == holding.sets["active"].keys() == set(second)


@pytest.mark.slow
def test_leases_are_extended_in_spite_of_losses(line: Line) -> None:
    for _ in line.each_round():
        add(line.good, jobs(3))
        held = take(line.good, 3).jobs
        before = assert_legal(line.direct, QUEUE).sets["active"]
        line.arm()
        tokens = [(job.id, job.token) for job in held]
        assert line.bad.run(worker_commands.extend(KEYS, LEASE_US, tokens)) == ["ok"] * 3
        after = assert_legal(line.direct, QUEUE).sets["active"]
        assert all(after[job.id] > before[job.id] for job in held)


@pytest.mark.slow
def test_jobs_are_cancelled_once(line: Line) -> None:
    for _ in line.each_round():
        ids = add(line.good, jobs(3, delay=60))
        line.arm()
        words = line.bad.run(job_commands.cancel(KEYS, ids))
        assert set(words) <= {"ok", "cancelled"}
        holding = assert_legal(line.direct, QUEUE)
        assert holding.sets["cancelled"].keys() == set(ids)
        assert holding.total("cancelled") == 3


@pytest.mark.slow
def test_a_job_is_promoted_rescheduled_and_deleted_in_spite_of_losses(line: Line) -> None:
    for _ in line.each_round():
        soon, later, never = add(line.good, jobs(3, delay=60))
        line.arm()
        promoted, moved, deleted = line.bad.run_many(
            [
                job_commands.promote(KEYS, [soon]),
                job_commands.reschedule(KEYS, [later], "+7200000000"),
                job_commands.delete(KEYS, [never]),
            ]
        )
        assert deleted == ["ok"]
        due = assert_legal(line.direct, QUEUE).due
        assert due == {soon: promoted[0].due_us, later: moved[0].due_us}
        assert due[later] - due[soon] > 7_100_000_000


@pytest.mark.slow
def test_running_jobs_are_asked_to_stop(line: Line) -> None:
    for _ in line.each_round():
        add(line.good, jobs(3))
        held = take(line.good, 3).jobs
        line.arm()
        assert line.bad.run(job_commands.cancel(KEYS, [job.id for job in held])) == ["asked"] * 3
        holding = assert_legal(line.direct, QUEUE)
        assert holding.asked.keys() == {job.id for job in held}
        settles = [Settle(job.id, job.token, "retry", "+0") for job in held]
        assert line.bad.run(worker_commands.settle(KEYS, settles)) == ["ok"] * 3
        holding = assert_legal(line.direct, QUEUE)
        assert holding.sets["cancelled"].keys() == {job.id for job in held}
        assert holding.total("cancelled") == 3


@pytest.mark.slow
def test_ended_jobs_are_retried_once(line: Line) -> None:
    for _ in line.each_round():
        add(line.good, jobs(2))
        done, failed = take(line.good, 2).jobs
        (unwanted,) = add(line.good, jobs(1))
        line.good.run(job_commands.cancel(KEYS, [unwanted]))
        settles = [Settle(done.id, done.token, "complete"), Settle(failed.id, failed.token, "fail")]
        line.good.run(worker_commands.settle(KEYS, settles))
        line.arm()
        ids = [done.id, failed.id, unwanted]
        moved = line.bad.run(job_commands.retry(KEYS, ids, "+0"))
        assert [m.result for m in moved] == ["ok"] * 3
        assert assert_legal(line.direct, QUEUE).due == {
            m_id: m.due_us for m_id, m in zip(ids, moved, strict=True)
        }


@pytest.mark.slow
def test_what_jobs_say_is_noted_once_or_once_more(line: Line) -> None:
    """The executor repeats as ever; the worker does not repeat notes, so that none is doubled."""
    for _ in line.each_round():
        add(line.good, jobs(1))
        (job,) = take(line.good, 1).jobs
        line.arm()
        said = [
            JobNote(job.id, job.token, "L", b'"hello"'),
            JobNote(job.id, job.token, "P", b'[0.5,""]'),
        ]
        line.bad.run(worker_commands.add_notes(KEYS, said))
        notes = read_history(assert_legal(line.direct, QUEUE).hashes["notes"][job.id])
        assert [text for _, text in notes.logs] in (["hello"], ["hello"] * 2)
        assert notes.progress is not None


@pytest.mark.slow
def test_waiting_is_noted_and_retention_set(line: Line) -> None:
    for _ in line.each_round():
        (id,) = add(line.good, jobs(1))
        line.arm()
        keep = Retention(60, 60, 60, 5)
        state, _ = line.bad.run_many(
            [job_commands.await_end(KEYS, id, 10**7), job_commands.configure(KEYS, keep)]
        )
        assert state == "due"
        holding = assert_legal(line.direct, QUEUE)
        assert holding.waiters.keys() == {id}
        assert holding.meta["retention"] == keep.stored()


@pytest.mark.slow
def test_a_queue_is_purged_in_spite_of_losses(line: Line) -> None:
    for _ in line.each_round():
        add(line.good, jobs(job_commands.SWEEP + 20, delay=60))
        line.arm()
        assert empty_all(line.bad, KEYS) == job_commands.SWEEP + 20
        assert assert_legal(line.direct, QUEUE).hashes["jobs"] == {}


@pytest.mark.slow
def test_a_client_that_never_reached_its_server_says_so_at_once(
    proxy: Proxy, direct: redis.Redis, connect: Connect
) -> None:
    """And what it then repeats with the same job adds nothing."""
    (job,) = jobs(1)
    refusals = 0
    n = 0
    while n == 0 or proxy.lost:
        n += 1
        direct.script_flush()
        proxy.lose_reply(n)
        client = connect(proxy.url)
        try:
            client.run(enqueue_commands.enqueue(KEYS, [job]))
        except ServerUnavailable:
            refusals += 1
            client.run(enqueue_commands.enqueue(KEYS, [job]))
        assert assert_legal(direct, QUEUE).due.keys() == {job.id}
    assert refusals > 0


@pytest.mark.slow
def test_what_an_iterator_gives_is_drawn_and_added_once(
    proxy: Proxy, direct: redis.Redis, one_url: str
) -> None:
    """Whichever reply is lost: what is drawn while that is waited for is not lost with it."""
    n = 0
    lost = 1
    while lost:
        n += 1
        proxy.behave()
        direct.flushall()
        with closing(Queue(QUEUE, url=proxy.url)) as queue:
            queue.counts()
            direct.script_flush()
            proxy.lose_reply(n)
            drawn = [enqueue_commands.prepare(Body("app:task", (i,))) for i in range(250)]
            added = queue.enqueue_many(iter(drawn))
            lost = proxy.lost
        assert [job.id for job in added] == [job.id for job in drawn]
        assert assert_legal(direct, QUEUE).due.keys() == {job.id for job in drawn}
    assert n > 4  # NOSCRIPT, SCRIPT LOAD, and three batches
