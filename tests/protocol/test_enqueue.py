"""Enqueue: a job is in one due set, at its due time, with its body; an id that exists stays."""

from __future__ import annotations

import pytest

from bide.errors import ScriptBug
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands.enqueue import Prepared, Receipt
from tests.support.probe import BODY, SECOND, Probe


def test_a_job_is_due_at_the_servers_time_and_waits(q: Probe) -> None:
    before = q.now
    (receipt,) = q.add("a")
    assert receipt.created
    assert before <= receipt.due_us <= q.now
    holding = q.holding()
    assert holding.sets["due:5"] == {"a": receipt.due_us}
    assert holding.hashes["jobs"] == {"a": BODY}
    assert holding.hashes["run"] == {}


def test_a_delay_is_added_to_the_servers_clock(q: Probe) -> None:
    q.move(3600)
    word, now, *job = q.reply(
        enqueue_commands.enqueue(q.keys, [Prepared("a", "+30000000", 5, BODY)])
    )
    assert (word, job) == (b"ok", [now + 30 * SECOND])
    assert q.holding().due == {"a": now + 30 * SECOND}


def test_a_moment_is_taken_to_the_microsecond(q: Probe) -> None:
    at = q.now + 3600 * SECOND + 1
    (receipt,) = q.add("a", when=f"={at}")
    assert receipt.due_us == at
    assert q.holding().due == {"a": at}


def test_a_moment_that_has_passed_means_now(q: Probe) -> None:
    word, now, *job = q.reply(enqueue_commands.enqueue(q.keys, [Prepared("a", "=5", 5, BODY)]))
    assert (word, job) == (b"ok", [now])
    assert q.holding().due == {"a": now}


@pytest.mark.parametrize("lasts", [1, 2, 3])
def test_jobs_that_are_due_alike_are_due_together(q: Probe, lasts: int) -> None:
    """A score may be written as it came, or as that of the job before was: see `due_time.lua`."""
    future, far = q.now + 3600 * SECOND + 1, 7_258_118_399_999_999
    whens = ["+0", "+1", f"={future}", "=5", "=0", f"={far}", "+0", "=0000000000000009"]
    whens += ["+3162240000000000"]
    each = [when for when in whens for _ in range(lasts)]
    jobs = [Prepared(f"j{i:02}", when, 5 - i % 2, BODY) for i, when in enumerate(each)]
    known = jobs[::4]
    there = q.add_many(*(job._replace(when=f"={future + 7}") for job in known))
    word, now, *due = q.reply(enqueue_commands.enqueue(q.keys, jobs))
    assert word == b"ok"
    meant = [now, now + 1, future, now, now, far, now, now, now + 3_162_240_000_000_000]
    times = [at for at in meant for _ in range(lasts)]
    added = {job.id: at for job, at in zip(jobs, times, strict=True)}
    added |= {job.id: 0 for job in known}
    assert due == [added[job.id] for job in jobs]
    assert q.holding().due == added | {job.id: job.due_us for job in there}


def test_every_priority_has_its_own_set(q: Probe) -> None:
    q.add_many(*(Prepared(f"job-{p}", "+0", p, BODY) for p in range(10)))
    sets = q.holding().sets
    assert {f"due:{p}": [f"job-{p}"] for p in range(10)} == {
        name: list(ids) for name, ids in sets.items() if ids
    }


def test_many_jobs_in_one_call_each_with_its_own_time_and_body(q: Probe) -> None:
    jobs = [Prepared(f"j{i:03}", f"+{i}", i % 10, BODY + b" " * i) for i in range(500)]
    receipts = q.add_many(*jobs)
    assert [r.id for r in receipts] == [job.id for job in jobs]
    assert all(r.created for r in receipts)
    first = receipts[0].due_us
    assert [r.due_us - first for r in receipts] == list(range(500))
    holding = q.holding()
    assert holding.due == {r.id: r.due_us for r in receipts}
    assert holding.hashes["jobs"] == {job.id: job.body for job in jobs}


def test_any_number_is_sent_in_calls_and_round_trips_of_bounded_size(q: Probe) -> None:
    count = enqueue_commands.CHUNK * enqueue_commands.TRIP + enqueue_commands.CHUNK + 1
    jobs = [Prepared(f"j{i:05}", "+0", 5, BODY) for i in range(count)]
    trips = list(enqueue_commands.enqueue_many(q.keys, jobs))
    assert [len(trip) for trip in trips] == [enqueue_commands.TRIP, 2]
    sizes = [len(command.args) // 4 for trip in trips for command in trip]
    assert sizes == [enqueue_commands.CHUNK] * (enqueue_commands.TRIP + 1) + [1]
    receipts = [r for trip in trips for reply in q.executor.run_many(trip) for r in reply]
    assert [r.id for r in receipts] == [job.id for job in jobs]
    assert q.raw.zcard(q.keys.names["due"][4]) == count


def test_large_bodies_make_smaller_calls(q: Probe) -> None:
    large = BODY + b" " * 900_000
    jobs = [Prepared(f"j{i}", "+0", 5, large) for i in range(5)]
    trips = list(enqueue_commands.enqueue_many(q.keys, jobs))
    sizes = [[len(command.args) // 4 for command in trip] for trip in trips]
    assert sizes == [[2], [2], [1]]
    for trip in trips:
        q.executor.run_many(trip)
    assert len(q.holding().due) == 5


def test_no_jobs_are_no_call(q: Probe) -> None:
    assert list(enqueue_commands.enqueue_many(q.keys, [])) == []


def test_a_body_is_stored_byte_for_byte(q: Probe) -> None:
    body = b'{"task":"app.tasks:send","args":[9007199254740993,[],{},1.0,"\\u0000\xc3\xa9"]}'
    q.add_many(Prepared("a", "+0", 5, body))
    assert q.holding().hashes["jobs"] == {"a": body}
    (job,) = q.claim().jobs
    assert job.body == body


def test_an_id_that_exists_changes_nothing(q: Probe) -> None:
    q.add("a", when="+5000000", priority=3)
    before = q.holding()
    (receipt,) = q.add_many(Prepared("a", "+0", 9, BODY + b" "))
    assert receipt == Receipt("a", 0, "duplicate")
    assert q.holding() == before


@pytest.mark.parametrize("state", ["active", "completed", "failed", "cancelled"])
def test_an_id_exists_in_every_state_until_its_retention_ends(q: Probe, state: str) -> None:
    if state == "cancelled":
        q.add("a")
        q.cancel("a")
    else:
        job = q.take("a")
        if state != "active":
            q.settle(job, "complete" if state == "completed" else "fail")
    before = q.holding()
    assert before.where("a") == state
    assert q.add("a") == [Receipt("a", 0, "duplicate")]
    assert q.holding() == before


def test_twice_in_one_call_is_once(q: Probe) -> None:
    first, second = q.add_many(
        Prepared("a", "+0", 5, BODY), Prepared("a", "+1000000", 9, BODY + b" ")
    )
    assert first.created
    assert second == Receipt("a", 0, "duplicate")
    holding = q.holding()
    assert holding.due == {"a": first.due_us}
    assert holding.hashes["jobs"] == {"a": BODY}


@pytest.mark.parametrize(
    "bad",
    [
        Prepared("", "+0", 5, BODY),
        Prepared("a b", "+0", 5, BODY),
        Prepared("a{b}", "+0", 5, BODY),
        Prepared("a\n", "+0", 5, BODY),
        Prepared("a", "0", 5, BODY),
        Prepared("a", "-1", 5, BODY),
        Prepared("a", "+1.5", 5, BODY),
        Prepared("a", "=1e15", 5, BODY),
        Prepared("a", "+99999999999999999", 5, BODY),
        Prepared("a", "+0", 10, BODY),
        Prepared("a", "+0", -1, BODY),
    ],
)
def test_what_no_operation_would_send_is_refused_before_anything_is_written(
    q: Probe, bad: Prepared
) -> None:
    with pytest.raises(ScriptBug, match="BADARG enqueue"):
        q.add_many(Prepared("good", "+0", 5, BODY), bad)
    assert q.raw.keys() == []


def test_an_id_is_of_anything_but_white_space_control_characters_and_braces(q: Probe) -> None:
    command = enqueue_commands.enqueue(q.keys, [Prepared("a", "+0", 5, BODY)])
    refused = set()
    for byte in range(256):
        try:
            q.run(command._replace(args=[bytes((byte,)), *command.args[1:]]))
        except ScriptBug:
            refused.add(byte)
    assert refused == {*range(33), *b"{}", 127}
    q.raw.flushdb()


def test_arguments_that_are_cut_short_are_refused(q: Probe) -> None:
    whole = enqueue_commands.enqueue(q.keys, [Prepared("a", "+0", 5, BODY)])
    with pytest.raises(ScriptBug, match="BADARG enqueue rest"):
        q.run(whole._replace(args=whole.args[:-1]))
    assert q.raw.keys() == []
