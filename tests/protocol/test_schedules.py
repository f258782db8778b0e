"""Schedules: each time is fired once, by whichever claim comes first, never before it has come."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bide.errors import ScriptBug, UsageError
from bide.model.durations import from_us
from bide.model.payload.body import Body, encode_body, of_schedule
from bide.model.schedule import AHEAD, Schedule, Timing, time_of
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands.schedules import Draft, Set
from bide.protocol.commands.worker import Claim
from tests.support.probe import BODY, SECOND, Probe

NAME = "tick"


@pytest.fixture
def q(q: Probe) -> Probe:
    """At the start of a minute: within a test, no expression is due before the clock is moved."""
    move_to(q, (q.now // (60 * SECOND) + 1) * 60 * SECOND + SECOND)
    return q


def draft(name: str = NAME, **other: Any) -> Draft:
    timing = {
        key: other.pop(key)
        for key in ("cron", "tz", "every_us", "at_us", "start_us", "end_us", "limit")
        if key in other
    }
    if not timing.keys() & {"cron", "at_us"}:
        timing.setdefault("every_us", 10 * SECOND)
    if "cron" in timing:
        timing.setdefault("tz", "UTC")
    values = {
        "missed": "once", "jitter_us": 0, "priority": 5, "task": "app.tasks:send",
        "body": of_schedule(BODY, name), **other,
    }  # fmt: skip
    return Draft(name=name, timing=Timing(**timing), **values)


def attempt(q: Probe, given: Draft) -> Set:
    return q.run(schedule_commands.set_schedule(q.keys, given))


def put(q: Probe, **other: Any) -> Schedule:
    schedule = attempt(q, draft(**other)).schedule
    assert schedule is not None
    return schedule


def read(q: Probe, name: str = NAME) -> Schedule:
    (schedule,) = q.run(schedule_commands.read_schedules(q.keys, [name])).schedules
    return schedule


def refill(q: Probe, name: str = NAME) -> bool:
    page = q.run(schedule_commands.read_schedules(q.keys, [name]))
    (command,) = schedule_commands.refills(q.keys, page)
    return q.run(command)


def move_to(q: Probe, at_us: int) -> None:
    q.move((at_us - q.now) / SECOND)


def claim(q: Probe, count: int = 10) -> Claim:
    """A claim whose jobs are completed at once: they are not to be in the way later."""
    got = q.claim(count=count)
    for job in got.jobs:
        q.settle(job, "complete")
    return got


def fired(q: Probe, count: int = 10) -> list[int]:
    """The times of the jobs that a claim brings."""
    return [int(job.id.rpartition("@")[2]) for job in claim(q, count).jobs]


def due_of(q: Probe) -> dict[str, int]:
    found: Any = q.raw.zrange(q.keys.names["due"][4], 0, -1, withscores=True)
    return {id.decode(): int(at) for id, at in found}


# -- setting


def test_a_schedule_is_a_record_a_body_and_a_time(q: Probe) -> None:
    schedule = put(q)
    (at,) = schedule.times
    assert q.zset("schedules") == {NAME: at}
    assert at == schedule.version + 10 * SECOND
    assert q.raw.hget(q.keys["scheduled"], NAME) == of_schedule(BODY, NAME)
    assert q.holding().meta["scheduled"] == "1"
    assert read(q) == schedule


def test_one_that_is_set_again_is_not_touched(q: Probe) -> None:
    schedule = put(q)
    q.hear()
    q.move(3)
    reply = attempt(q, draft())
    assert (reply.is_changed, reply.schedule) == (False, schedule)
    assert q.wakeups() == 0


def test_another_job_at_the_same_times_keeps_them(q: Probe) -> None:
    schedule = put(q)
    q.move(11)
    claim(q)
    fired = read(q)
    q.move(3)
    again = put(q, task="app.tasks:other", body=of_schedule(BODY, "x"), priority=7, missed="all")
    assert again == fired._replace(task="app.tasks:other", priority=7, missed="all")
    assert again.fired == 1
    assert again.version == schedule.version
    assert q.raw.hget(q.keys["scheduled"], NAME) == of_schedule(BODY, "x")
    assert put(q, jitter_us=5, missed="all").jitter_us == 5
    assert not attempt(q, draft(jitter_us=5, missed="all")).is_changed
    assert attempt(q, draft(jitter_us=5, missed="all", body=b"{}")).is_changed


def test_other_times_begin_anew(q: Probe) -> None:
    first = put(q)
    q.move(11)
    claim(q)
    before = q.now
    second = put(q, every_us=20 * SECOND)
    assert second.version > first.version
    assert second.fired == 0
    assert second.last_us == first.times[0], "what was fired, is known yet"
    assert before + 20 * SECOND <= second.times[0] <= q.now + 20 * SECOND


def test_what_has_passed_when_it_is_set_is_not_made_up_for(q: Probe) -> None:
    now = q.now
    start = now - 25 * SECOND
    assert put(q, start_us=start).times == (start + 30 * SECOND,)
    assert put(q, name="at", at_us=(now - SECOND, now + 60 * SECOND)).times == (now + 60 * SECOND,)
    assert q.taken() == []


def test_nothing_fires_before_its_start(q: Probe) -> None:
    start = q.now + 100 * SECOND
    assert put(q, start_us=start, every_us=3 * SECOND).times == (start,)
    cron = put(q, name="cron", cron="* * * * *", start_us=start)
    assert start <= cron.times[0] < start + 60 * SECOND
    q.move(99)
    assert q.taken() == []
    move_to(q, start)
    assert q.taken() == [f"tick@{start}"]


def test_a_repeated_time_is_not_fired_again_after_the_clock_was_set_back(q: Probe) -> None:
    at = q.now + 60 * SECOND
    put(q, at_us=(at,))
    q.move(61)
    assert q.taken() == [f"tick@{at}"]
    q.run(job_commands.delete(q.keys, []))
    q.move(-61)
    again = put(q, at_us=(at, at + SECOND))
    assert again.times == (at + SECOND,)
    q.legal = False  # the clock was set back under a lease


def test_a_new_one_that_is_the_earliest_wakes_a_sleeper(q: Probe) -> None:
    q.claim()
    assert q.hear() is None
    put(q, every_us=SECOND)
    assert q.wakeups() == 1


def test_a_delay_queue_has_no_schedules(q: Probe) -> None:
    q.raw.hset(q.keys["meta"], "kind", "data")
    with pytest.raises(UsageError, match="is a delay queue"):
        put(q)
    assert q.zset("schedules") == {}


def test_a_queue_has_so_many_at_most(q: Probe) -> None:
    with q.raw.pipeline() as pipe:
        for i in range(0, 100_000, 10_000):
            pipe.hset(q.keys["schedule"], mapping={f"n{i + j}": "x" for j in range(10_000)})
        pipe.execute()
    with pytest.raises(UsageError, match="has the maximum number of schedules"):
        put(q)
    q.raw.delete(q.keys["schedule"])
    put(q)


ODD: list[tuple[str, dict[int, Any]]] = [
    ("the name", {0: "a b"}),
    ("a long name", {0: "x" * 101}),
    ("the kind", {1: "often", 3: 0}),
    ("the priority", {2: 10}),
    ("half a priority", {2: "1.5"}),
    ("an interval of every", {3: 0}),
    ("an interval of cron", {1: "cron"}),
    ("jitter", {4: -1}),
    ("missed", {5: "never"}),
    ("limit", {6: "1e300"}),
    ("start", {7: "nan"}),
    ("end", {8: "1e16"}),
    ("times", {9: "5 4"}),
    ("times that are none", {9: "5 x"}),
    ("too many times", {9: " ".join(map(str, range(1, 200)))}),
    ("timing", {11: "{}\n{}"}),
    ("a long timing", {11: "x" * 9000}),
    ("task", {12: "a\nb"}),
    ("constraints", {13: "x=5"}),
]


@pytest.mark.parametrize(("what", "odd"), ODD, ids=[what for what, _ in ODD])
def test_what_cannot_be_meant_is_refused_whole(q: Probe, what: str, odd: dict[int, Any]) -> None:
    command = schedule_commands.set_schedule(q.keys, draft())
    args = [odd.get(i, arg) for i, arg in enumerate(command.args)]
    with pytest.raises(ScriptBug, match="BADARG schedule_set"):
        q.run(command._replace(args=args))
    assert q.raw.exists(q.keys["schedule"], q.keys["scheduled"], q.keys["schedules"]) == 0


def edit(q: Probe, known: Schedule, jitter_us: int = 0, **timing: Any) -> str:
    wish = Timing(**timing)
    return q.run(
        schedule_commands.edit_schedule(q.keys, known, wish, known.missed, jitter_us)
    ).result


def test_an_edit_changes_when_it_fires_and_nothing_of_its_jobs(q: Probe) -> None:
    known = put(q, priority=8, constraints="x=+5000000")
    q.run(schedule_commands.pause_schedule(q.keys, NAME, True))
    assert edit(q, known, cron="30 6 * * *", tz="UTC") == "ok"
    now = read(q)
    assert (now.when, len(now.times), now.paused) == ("30 6 * * * UTC", AHEAD, True)
    assert (now.task, now.priority) == (known.task, 8)
    assert now.version > known.version
    assert q.raw.hget(q.keys["scheduled"], NAME) == of_schedule(BODY, NAME)
    record: Any = q.raw.hget(q.keys["schedule"], NAME)
    assert record.endswith(b"x=+5000000")


def test_an_edit_that_is_repeated_changes_nothing(q: Probe) -> None:
    known = put(q)
    for word in ("ok", "same"):
        assert edit(q, known, 7, every_us=5 * SECOND) == word
        once = read(q)
    q.move(1)
    assert edit(q, known, 7, every_us=5 * SECOND) == "same"
    assert read(q) == once


@pytest.mark.parametrize(
    "change", [{"every_us": 20 * SECOND}, {"jitter_us": SECOND}, {"missed": "all"}], ids=str
)
def test_an_edit_does_not_write_over_what_another_has_changed(
    q: Probe, change: dict[str, Any]
) -> None:
    known = put(q)
    put(q, **change)
    theirs = read(q)
    assert edit(q, known, every_us=5 * SECOND) == "stale"
    assert edit(q, known, cron="* * * * *", tz="UTC") == "stale"
    assert read(q) == theirs
    assert edit(q, theirs, every_us=5 * SECOND) == "ok"


def test_an_edit_makes_no_schedule(q: Probe) -> None:
    known = put(q)
    q.run(schedule_commands.remove_schedules(q.keys, [NAME]))
    assert edit(q, known, every_us=5 * SECOND) == "gone"
    assert q.raw.exists(q.keys["schedule"], q.keys["scheduled"], q.keys["schedules"]) == 0


# -- firing


def test_a_time_is_fired_when_it_has_come_and_not_before(q: Probe) -> None:
    at = put(q).times[0]
    move_to(q, at - SECOND // 10)
    assert q.taken() == []
    q.move(0.1)
    got = q.claim()
    (job,) = got.jobs
    assert (job.id, job.due_us, job.body) == (f"tick@{at}", at, of_schedule(BODY, NAME))
    schedule = read(q)
    assert schedule.times == (at + 10 * SECOND,)
    assert (schedule.fired, schedule.last_us, schedule.seen_us) == (1, at, at)
    assert q.taken() == []


def test_one_that_is_looked_at_too_early_does_not_fire(q: Probe) -> None:
    schedule = put(q)
    q.raw.zadd(q.keys["schedules"], {NAME: 1})
    assert q.taken() == []
    assert read(q) == schedule
    assert q.zset("schedules") == {NAME: schedule.times[0]}


def test_the_next_time_is_a_deadline(q: Probe) -> None:
    at = put(q, every_us=SECOND).times[0]
    got = q.claim()
    assert got.deadline_us == at
    assert got.until_us == at


def test_a_claim_for_no_jobs_fires_too(q: Probe) -> None:
    at = put(q).times[0]
    q.move(11)
    assert q.claim(count=0).jobs == []
    assert q.where(f"tick@{at}") == "due"


def test_a_repeated_claim_fires_nothing_and_returns_the_same(q: Probe) -> None:
    put(q)
    q.move(11)
    first = q.claim("w1", seq=1)
    q.move(10)
    assert q.claim("w1", seq=1).jobs == first.jobs
    assert read(q).fired == 1


def test_jobs_are_in_the_set_of_their_priority(q: Probe) -> None:
    put(q, priority=9)
    q.add("first", priority=8)
    q.move(11)
    assert [id.partition("@")[0] for id in q.taken()] == ["tick", "first"]


def test_an_id_that_exists_is_not_added_twice(q: Probe) -> None:
    at = put(q).times[0]
    q.add(f"tick@{at}", when="+3600000000")
    q.move(11)
    assert q.taken() == []
    assert read(q).fired == 1


def test_what_was_missed_is_made_up_for_once(q: Probe) -> None:
    at = put(q).times[0]
    q.move(125)
    assert fired(q) == [at + 110 * SECOND]
    assert read(q).times == (at + 120 * SECOND,)


def test_or_each_time_of_it(q: Probe) -> None:
    at = put(q, missed="all").times[0]
    q.move(125)
    assert fired(q, 50) == [at + n * 10 * SECOND for n in range(12)]


def test_or_not_at_all_if_it_is_more_than_a_minute_old(q: Probe) -> None:
    at = put(q, missed="skip", every_us=3600 * SECOND).times[0]
    move_to(q, at + 59 * SECOND)
    assert fired(q) == [at]
    move_to(q, at + 3600 * SECOND + 61 * SECOND)
    assert q.taken() == []
    schedule = read(q)
    assert (schedule.fired, schedule.times) == (1, (at + 7200 * SECOND,))


def test_a_long_list_of_missed_times_is_fired_in_pieces(q: Probe) -> None:
    put(q, missed="all", every_us=SECOND)
    q.move(51)
    got = q.claim(count=100)
    assert len(got.jobs) == 20
    assert got.more
    assert len(q.claim(count=100).jobs) == 20
    assert len(q.claim(count=100).jobs) == 11


def test_many_schedules_are_fired_in_pieces(q: Probe) -> None:
    for n in range(25):
        put(q, name=f"n{n}")
    q.move(11)
    got = q.claim(count=100)
    assert (len(got.jobs), got.more) == (20, True)
    got = q.claim(count=100)
    assert (len(got.jobs), got.more) == (5, False)


def test_a_claim_adds_some_megabytes_of_bodies_at_most(q: Probe) -> None:
    put(q, missed="all", every_us=SECOND, body=encode_body(Body("a:b", ["x" * 900_000])))
    q.move(11)
    got = q.claim(count=0)
    assert got.more
    assert q.raw.hlen(q.keys["jobs"]) == 2
    assert q.holding().meta["large"] == "1"


def test_it_ends(q: Probe) -> None:
    now = q.now
    put(q, end_us=now + 25 * SECOND)
    q.move(3600)
    (at,) = fired(q)
    assert now + 10 * SECOND < at <= now + 25 * SECOND
    assert read(q).over
    assert q.zset("schedules") == {}
    assert not attempt(q, draft(end_us=now + 25 * SECOND)).is_changed, "and does not begin again"


def test_it_fires_as_often_as_it_may(q: Probe) -> None:
    put(q, limit=3, missed="all")
    q.move(3600)
    assert len(q.taken()) == 3
    assert read(q).over
    q.move(3600)
    assert q.taken() == []
    assert not attempt(q, draft(limit=3, missed="all")).is_changed


def test_a_list_of_moments(q: Probe) -> None:
    now = q.now
    moments = tuple(now + n * SECOND for n in (5, 10, 500))
    put(q, at_us=moments, missed="all")
    q.move(11)
    assert fired(q) == [*moments[:2]]
    q.move(500)
    assert fired(q) == [moments[2]]
    assert read(q).over


def test_jitter_is_later_never_earlier_and_the_same_whoever_asks(q: Probe) -> None:
    put(q, missed="all", jitter_us=60 * SECOND, every_us=SECOND)
    q.move(21)
    q.claim(count=0)
    late = {id: due - int(id[5:]) for id, due in due_of(q).items()}
    assert len(late) == 20
    assert all(0 <= us < 60 * SECOND for us in late.values())
    assert max(late.values()) - min(late.values()) > 20 * SECOND
    assert len(set(late.values())) == 20


def test_its_jobs_may_expire(q: Probe) -> None:
    given = draft(every_us=60 * SECOND, constraints=f"x=+{30 * SECOND}")
    schedule = attempt(q, given).schedule
    assert schedule is not None
    assert not attempt(q, given).is_changed
    move_to(q, schedule.times[0])
    q.claim(count=0)
    (id,) = due_of(q)
    q.move(31)
    assert q.taken() == []
    assert q.where(id) == "cancelled"
    assert q.run(schedule_commands.run_schedule(q.keys, NAME, "tick@now")) is not None
    q.move(31)
    q.claim()
    assert q.where("tick@now") == "cancelled"
    assert attempt(q, given._replace(constraints="")).is_changed
    move_to(q, read(q).times[0])
    assert len(fired(q)) == 1


def test_events_say_that_a_job_was_added(q: Probe) -> None:
    at = put(q).times[0]
    q.listen()
    q.move(11)
    claim(q)
    event = q.told()[0]
    assert (event.kind, event.verb, event.job_id) == ("added", "fire", f"tick@{at}")
    assert event.due == from_us(at)


def test_while_the_queue_is_paused_nothing_fires_and_nobody_spins(q: Probe) -> None:
    put(q)
    q.run(job_commands.pause(q.keys))
    q.move(25)
    q.hear()
    got = q.claim()
    assert (got.jobs, got.more, got.deadline_us) == ([], False, 0)
    assert q.raw.hlen(q.keys["jobs"]) == 0
    q.run(job_commands.resume(q.keys))
    assert len(q.taken()) == 1


def test_a_record_that_cannot_be_read_holds_nobody_up(q: Probe) -> None:
    put(q, name="a")
    put(q)
    q.raw.hset(q.keys["schedule"], "a", "x")
    q.move(11)
    assert len(q.taken()) == 1
    assert list(q.zset("schedules")) == [NAME]
    q.legal = False


def test_a_body_that_is_lost_holds_nobody_up(q: Probe) -> None:
    put(q, name="a")
    put(q)
    q.raw.hdel(q.keys["scheduled"], "a")
    q.move(11)
    assert len(q.taken()) == 1
    assert list(q.zset("schedules")) == [NAME]
    q.legal = False


def test_an_purged_queue_keeps_its_schedules(q: Probe) -> None:
    put(q)
    q.move(11)
    q.claim(count=0)
    assert q.run(job_commands.purge(q.keys, "this")).aside == 1
    q.move(10)
    assert len(q.taken()) == 1


def test_counts_say_how_many_there_are_and_when_the_first_fires(q: Probe) -> None:
    counts = q.run(job_commands.counts(q.keys))
    assert (counts.schedules, counts.next_fire_us) == (0, 0)
    at = put(q).times[0]
    put(q, name="later", every_us=60 * SECOND)
    counts = q.run(job_commands.counts(q.keys))
    assert (counts.schedules, counts.next_fire_us) == (2, at)


def test_one_with_a_long_backlog_leaves_the_others_their_times(q: Probe) -> None:
    put(q, missed="all", every_us=SECOND)
    put(q, name="report", missed="skip", every_us=60 * SECOND)
    q.move(6 * 3600)
    for _ in range(600):  # one slot, and jobs of a second
        claim(q, 1)
        q.move(1)
    report = read(q, "report")
    assert 9 <= report.fired <= 11
    assert read(q).times[0] < q.now, "and the backlog is not over"


def test_a_large_body_has_its_share_too(q: Probe) -> None:
    body = of_schedule(encode_body(Body("app.tasks:send", ("x" * 900_000,))), NAME)
    put(q, missed="all", every_us=SECOND, body=body)
    put(q, name="report", missed="skip", every_us=60 * SECOND)
    q.move(3600)
    q.claim(count=0)
    q.move(60)
    q.claim(count=0)
    assert read(q, "report").fired >= 1


# -- cron: clients send the times


def test_the_times_of_an_expression_are_sent_by_clients(q: Probe) -> None:
    word, now_us, after_us = q.reply(
        schedule_commands.set_schedule(q.keys, draft(cron="* * * * *"))
    )
    assert word == b"times"
    assert after_us == now_us
    assert q.raw.exists(q.keys["schedule"]) == 0
    before = q.now
    schedule = put(q, cron="* * * * *")
    assert len(schedule.times) == AHEAD
    assert all(at % (60 * SECOND) == 0 for at in schedule.times)
    assert before < schedule.times[0] <= q.now + 60 * SECOND


def test_a_claim_says_when_few_are_left_and_more_are_sent(q: Probe) -> None:
    schedule = put(q, cron="* * * * *")
    for n, at in enumerate(schedule.times[:9], 1):
        move_to(q, at)
        got = claim(q)
        assert [job.id for job in got.jobs] == [f"tick@{at}"]
        assert list(got.thin) == ([NAME] if AHEAD - n < 8 else [])
    assert refill(q)
    filled = read(q)
    assert len(filled.times) == AHEAD
    assert filled.times[:7] == schedule.times[9:]
    assert filled.version == schedule.version
    move_to(q, filled.times[0])
    assert list(q.claim().thin) == []


def test_a_list_that_has_run_out_is_asked_for_again_and_again(q: Probe) -> None:
    schedule = put(q, cron="* * * * *")
    for at in schedule.times:
        move_to(q, at)
        assert fired(q) == [at]
    assert read(q).times == ()
    for _ in range(3):
        assert q.claim().deadline_us - q.now <= SECOND
        q.move(1)
        assert list(q.claim().thin) == [NAME]
    assert refill(q)
    q.move(60)
    assert fired(q) == [schedule.times[-1] + 60 * SECOND]


def test_of_a_list_that_was_missed_whole_the_last_is_known_only_when_more_are_sent(
    q: Probe,
) -> None:
    schedule = put(q, cron="* * * * *")
    q.move(10 * 3600)
    got = q.claim()
    assert (got.jobs, list(got.thin)) == ([], [NAME])
    q.hear()
    assert refill(q)
    assert q.wakeups() == 1
    (at,) = fired(q)
    assert at == q.now // (60 * SECOND) * 60 * SECOND
    assert read(q).fired == 1
    assert at > schedule.times[-1]


def test_each_of_a_list_that_was_missed_whole(q: Probe) -> None:
    schedule = put(q, cron="* * * * *", missed="all")
    q.move(3600)
    found: list[int] = []
    for _ in range(8):
        got = claim(q, 100)
        found += [int(job.id[5:]) for job in got.jobs]
        if got.thin:
            refill(q)
    first = schedule.times[0]
    assert found == [first + n * 60 * SECOND for n in range(len(found))]
    assert len(found) in (59, 60, 61)


def test_a_refill_that_was_meant_for_other_times_is_dropped(q: Probe) -> None:
    put(q, cron="* * * * *")
    (late,) = schedule_commands.refills(
        q.keys, q.run(schedule_commands.read_schedules(q.keys, [NAME]))
    )
    put(q, cron="*/5 * * * *")
    before = read(q)
    assert not q.run(late)
    assert read(q) == before
    q.run(schedule_commands.remove_schedules(q.keys, [NAME]))
    assert not q.run(late)
    assert q.zset("schedules") == {}


def test_a_refill_brings_nothing_back_that_was_fired(q: Probe) -> None:
    schedule = put(q, cron="* * * * *")
    (late,) = schedule_commands.refills(
        q.keys, q.run(schedule_commands.read_schedules(q.keys, [NAME]))
    )
    move_to(q, schedule.times[0])
    assert len(q.taken()) == 1
    assert q.run(late)
    assert read(q).times == schedule.times[1:]
    assert q.taken() == []


def test_a_refill_does_not_begin_again_what_is_over(q: Probe) -> None:
    schedule = put(q, cron="* * * * *", limit=1)
    (late,) = schedule_commands.refills(
        q.keys, q.run(schedule_commands.read_schedules(q.keys, [NAME]))
    )
    move_to(q, schedule.times[0])
    assert len(q.taken()) == 1
    assert q.run(late)
    assert read(q).over
    assert q.zset("schedules") == {}


def test_an_expression_ends(q: Probe) -> None:
    schedule = put(q, cron="* * * * *", end_us=q.now + 150 * SECOND)
    assert len(schedule.times) in (2, 3)
    assert schedule.closed
    q.move(3600)
    assert fired(q) == [schedule.times[-1]]
    assert read(q).over
    far = q.now + 7200 * SECOND
    put(q, name="far", cron="* * * * *", end_us=far)
    move_to(q, far + 600 * SECOND)
    assert list(q.claim().thin) == ["far"]
    assert refill(q, "far")
    assert far - 60 * SECOND < fired(q)[0] <= far, "the last of those before the end"
    assert put(q, name="late", cron="* * * * *", end_us=q.now - SECOND).over


# -- pausing, running now, removing


def pause(q: Probe, paused: bool) -> Schedule | None:
    return q.run(schedule_commands.pause_schedule(q.keys, NAME, paused))


@pytest.mark.parametrize("missed", ["once", "all", "skip"])
def test_what_was_paused_has_not_been_missed(q: Probe, missed: str) -> None:
    at = put(q, missed=missed).times[0]
    paused = pause(q, True)
    assert paused is not None
    assert paused.paused
    assert paused.next is None
    assert q.zset("schedules") == {}
    q.move(25)
    assert q.taken() == []
    q.hear()
    pause(q, False)
    q.claim()
    assert q.raw.hlen(q.keys["jobs"]) == 0
    assert read(q).times == (at + 20 * SECOND,)
    q.move(10)
    assert len(q.taken()) == 1


def test_twice_is_once(q: Probe) -> None:
    at = put(q).times[0]
    q.move(11)
    pause(q, False)
    assert fired(q) == [at], "it was not paused, so this has been missed"
    pause(q, True)
    before = read(q)
    assert pause(q, True) == before


def test_resuming_wakes_whoever_is_to_keep_the_time(q: Probe) -> None:
    put(q, every_us=SECOND)
    pause(q, True)
    q.hear()
    q.claim()
    q.hear()
    pause(q, False)
    assert q.wakeups() == 1


def test_an_expression_that_was_paused_for_long_is_sent_new_times(q: Probe) -> None:
    put(q, cron="* * * * *")
    pause(q, True)
    q.move(3600)
    pause(q, False)
    before = q.now
    assert list(q.claim().thin) == [NAME]
    assert refill(q)
    assert before < read(q).times[0] <= q.now + 60 * SECOND
    assert q.taken() == []


def test_setting_a_paused_one_leaves_it_paused(q: Probe) -> None:
    put(q)
    pause(q, True)
    assert put(q, every_us=SECOND).paused
    assert q.zset("schedules") == {}


def test_a_paused_one_is_run_now_all_the_same(q: Probe) -> None:
    put(q, priority=7)
    pause(q, True)
    before = read(q)
    assert q.run(schedule_commands.run_schedule(q.keys, NAME, "tick@now")) is not None
    again = q.run(schedule_commands.run_schedule(q.keys, NAME, "tick@now"))
    assert again is not None
    assert again.result == "duplicate"
    (job,) = q.claim().jobs
    assert (job.id, job.body) == ("tick@now", of_schedule(BODY, NAME))
    assert time_of(job.id, NAME) is None
    assert q.record("tick@now").priority == 7
    assert read(q) == before


def test_running_now_wakes_a_worker_and_tells_listeners(q: Probe) -> None:
    put(q)
    q.listen()
    q.claim()
    q.hear()
    q.run(schedule_commands.run_schedule(q.keys, NAME, "tick@now"))
    assert q.wakeups() == 1
    assert [(event.kind, event.verb) for event in q.told()] == [("added", "fire")]


@pytest.mark.parametrize("id", ["tock@1", "tick@a b", "tick@" + "x" * 130])
def test_a_job_of_a_schedule_bears_its_name(q: Probe, id: str) -> None:
    put(q)
    with pytest.raises(ScriptBug, match="BADARG schedule_run"):
        q.run(schedule_commands.run_schedule(q.keys, NAME, id))


def test_what_is_not_there_is_gone(q: Probe) -> None:
    assert pause(q, True) is None
    assert q.run(schedule_commands.run_schedule(q.keys, NAME, "tick@1")) is None
    assert q.run(schedule_commands.remove_schedules(q.keys, [NAME])) == ["gone"]
    assert q.run(schedule_commands.read_schedules(q.keys, [NAME])).schedules == []


def test_removing_leaves_no_trace_of_it_and_the_jobs(q: Probe) -> None:
    put(q)
    put(q, name="other")
    q.move(11)
    q.claim(count=0)
    assert q.run(schedule_commands.remove_schedules(q.keys, [NAME, "x"])) == ["ok", "gone"]
    assert list(q.zset("schedules")) == ["other"]
    assert q.holding().meta["scheduled"] == "1"
    assert q.run(schedule_commands.remove_schedules(q.keys, ["other"])) == ["ok"]
    assert q.raw.exists(*(q.keys[name] for name in ("schedules", "schedule", "scheduled"))) == 0
    assert "scheduled" not in q.holding().meta
    assert len(q.taken()) == 2


def test_all_are_read_in_pages(q: Probe) -> None:
    for n in range(450):
        put(q, name=f"n{n}")
    found: set[str] = set()
    cursor, pages = "0", 0
    while cursor != "0" or not pages:
        page = q.run(schedule_commands.read_page(q.keys, cursor))
        found |= {schedule.name for schedule in page.schedules}
        cursor, pages = page.cursor, pages + 1
        assert len(page.schedules) < 2 * schedule_commands.PAGE
    assert len(found) == 450
    assert pages > 1


# -- the rules of a time zone change


def changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, this machine has the rules of another zone under the name."""
    monkeypatch.setattr("bide.model.schedule.zone_of", lambda name: ZoneInfo("Asia/Tokyo"))


def test_setting_it_again_corrects_times_that_are_no_longer_right(
    q: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"cron": "0 9 1 * *", "tz": "Europe/Paris"}
    before = put(q, **options)
    again = attempt(q, draft(**options))
    assert (again.is_changed, again.schedule) == (False, before)
    changed(monkeypatch)
    corrected = attempt(q, draft(**options))
    assert corrected.is_changed
    now = read(q)
    assert corrected.schedule == now
    assert now.version == before.version
    assert now.times != before.times
    assert {at // SECOND % 86_400 for at in now.times} == {0}, "nine in Tokyo"
    assert not attempt(q, draft(**options)).is_changed


def test_one_that_is_paused_or_over_stays_as_it_is(
    q: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"cron": "0 9 1 * *", "tz": "Europe/Paris"}
    put(q, **options)
    pause(q, True)
    changed(monkeypatch)
    assert not attempt(q, draft(**options)).is_changed
