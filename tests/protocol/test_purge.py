"""Empty: all delayed and waiting jobs are set aside at once, then deleted in bounded pieces."""

from __future__ import annotations

import asyncio

from bide import AsyncQueue, Queue
from bide.model.ids import new_id
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.jobs import PurgeReply
from bide.protocol.scripts import load
from tests.support.probe import BODY, LEASE, SECOND, Executor, Probe


def fill(q: Probe, count: int, priority: int = 5) -> list[str]:
    ids = [f"j{i:04}" for i in range(count)]
    for i in range(0, count, 500):
        q.add_many(*(Prepared(id, "+0", priority, BODY) for id in ids[i : i + 500]))
    return ids


def assert_only(q: Probe, *ids: str) -> None:
    holding = q.holding()
    assert holding.ids == set(ids)
    for values in holding.hashes.values():
        assert values.keys() <= set(ids)
    assert not any(values for name, values in holding.sets.items() if name.startswith("trash"))
    assert "trash" not in holding.meta


def begin(q: Probe, name: str | None = None) -> PurgeReply:
    return q.run(job_commands.purge(q.keys, name or new_id()))


def go_on(q: Probe) -> PurgeReply:
    return q.run(job_commands.purge(q.keys, None))


def test_delayed_and_waiting_jobs_of_every_priority_and_suspects(q: Probe) -> None:
    q.add("s")
    for _ in range(2):
        q.claim("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    for priority in range(10):
        q.add(f"w{priority}", priority=priority)
        q.add(f"d{priority}", when=f"+{SECOND}", priority=priority)
    assert begin(q) == PurgeReply(21, True)
    assert go_on(q) == PurgeReply(0, False)
    assert_only(q)


def test_jobs_that_run_or_have_ended_are_left_alone(q: Probe) -> None:
    q.settle(q.take("completed"), "complete", data=b"1")
    q.settle(q.take("failed"), "fail")
    q.add("cancelled")
    q.cancel("cancelled")
    job = q.take("active")
    q.add("waiting")
    assert begin(q) == PurgeReply(1, True)
    assert go_on(q) == PurgeReply(0, False)
    assert_only(q, "completed", "failed", "cancelled", "active")
    assert q.settle(job, "complete") == "ok"


def test_what_a_retry_left_is_deleted_as_well(q: Probe) -> None:
    q.settle(q.take("a"), "retry", "+0", b'{"type":"E","message":""}')
    begin(q)
    go_on(q)
    assert_only(q)


def test_they_are_gone_at_once_for_everyone(q: Probe) -> None:
    ids = fill(q, 3)
    begin(q)
    assert q.taken() == []
    assert q.fetch(ids[0]) is None
    counts = q.run(job_commands.counts(q.keys))
    assert (counts.waiting, counts.next_due_us) == (0, 0)
    assert q.run(job_commands.listing(q.keys, "waiting", 0, 10)) == []


def test_a_job_set_aside_cannot_be_changed_any_more(q: Probe) -> None:
    fill(q, 3)
    begin(q)
    assert q.cancel("j0000") == ["gone"]
    assert q.promote("j0000").result == "gone"
    assert q.reschedule("j0000", "+0").result == "gone"
    assert q.run(job_commands.delete(q.keys, ["j0000"])) == ["gone"]


def test_setting_aside_renames_and_deletes_nothing(q: Probe) -> None:
    fill(q, 700, priority=8)
    assert begin(q) == PurgeReply(700, True)
    holding = q.holding()
    assert len(holding.sets["trash:8"]) == 700
    assert len(holding.hashes["jobs"]) == 700


def test_each_step_deletes_a_bounded_number(q: Probe) -> None:
    fill(q, 1100)
    begin(q)
    left = []
    while go_on(q).more:
        left.append(q.raw.hlen(q.keys["jobs"]))
    assert left == [600, 100]
    assert_only(q)


def test_a_trash_whose_caller_died_is_swept_by_claims(q: Probe) -> None:
    fill(q, 250)
    begin(q)
    left = []
    for _ in range(3):
        q.claim("w1")
        left.append(q.raw.hlen(q.keys["jobs"]))
    assert left == [150, 50, 0]
    assert "trash" not in q.holding().meta
    assert_only(q)


def test_purging_again_sweeps_what_was_left_before_it_sets_more_aside(q: Probe) -> None:
    """Setting aside twice would overwrite the first trash, and keep its bodies for ever."""
    fill(q, 600)
    begin(q)
    q.add("new")
    assert begin(q) == PurgeReply(0, True, busy=True)
    assert list(q.holding().due) == ["new"]
    assert begin(q) == PurgeReply(1, True)
    assert go_on(q) == PurgeReply(0, False)
    assert_only(q)


def test_a_repeat_sets_nothing_more_aside(q: Probe) -> None:
    """Its reply was lost; what was enqueued since was not meant."""
    fill(q, 3)
    assert begin(q, "this") == PurgeReply(3, True)
    q.add("new")
    assert begin(q, "this") == PurgeReply(3, True)
    assert list(q.holding().due) == ["new"]
    go_on(q)
    assert_only(q, "new")


def test_not_even_after_the_trash_was_swept_by_a_claim(q: Probe) -> None:
    fill(q, 3)
    begin(q, "this")
    q.claim("w1")
    q.add("new", when="+60000000")
    assert begin(q, "this").aside == 3
    assert list(q.holding().due) == ["new"]


def test_jobs_enqueued_meanwhile_are_kept(q: Probe) -> None:
    fill(q, 600)
    begin(q)
    q.add("new")
    while go_on(q).more:
        pass
    assert_only(q, "new")
    assert q.taken() == ["new"]


def test_the_id_of_a_job_set_aside_can_be_used_at_once(q: Probe) -> None:
    q.settle(q.take("a"), "retry", "+0", b'{"type":"E","message":""}')
    begin(q)
    body = BODY + b" "
    (receipt,) = q.add_many(Prepared("a", "+0", 9, body))
    assert receipt.created
    hashes = q.holding().hashes
    assert {name: held for name, held in hashes.items() if held} == {"jobs": {"a": body}}
    while go_on(q).more:
        pass
    assert_only(q, "a")
    (job,) = q.claim().jobs
    assert (job.body, job.attempt) == (body, 1)


def test_a_call_without_the_keys_of_the_trash_adds_nothing_while_one_is_left(q: Probe) -> None:
    q.add("a")
    begin(q)
    before = q.holding()
    brief = enqueue_commands.enqueue(q.keys, [Prepared("a", "+0", 5, BODY)])
    assert len(brief.keys) < len(q.keys.of(load("enqueue").keys))
    assert q.reply(brief) == [b"keys"]
    assert q.holding() == before
    assert [receipt.created for receipt in q.run(brief)] == [True]


def test_an_id_that_was_not_set_aside_still_exists(q: Probe) -> None:
    q.take("active")
    fill(q, 1)
    begin(q)
    assert not q.add("active")[0].created


def test_the_outcome_of_an_attempt_before_it_may_still_be_repeated(q: Probe) -> None:
    job = q.take("a")
    q.settle(job, "retry", "+0")
    begin(q)
    assert q.settle(job, "retry", "+0") == "ok"
    go_on(q)
    assert q.settle(job, "retry", "+0") == "gone"


def test_an_empty_queue_is_purged_without_a_trace(q: Probe) -> None:
    assert begin(q) == PurgeReply(0, False)
    assert q.raw.keys() == []


def test_the_facades_purge_in_as_many_steps_as_it_takes(
    q: Probe, kind: str, executor: Executor
) -> None:
    fill(q, 600)
    begin(q)
    q.add("a", "b")

    async def awaited() -> int:
        queue = AsyncQueue(q.queue, url=executor.url)
        try:
            return await queue.purge()
        finally:
            await queue.close()

    if kind == "aio":
        assert asyncio.run(awaited()) == 2
    else:
        queue = Queue(q.queue, url=executor.url)
        assert queue.purge() == 2
        queue.close()
    assert_only(q)
