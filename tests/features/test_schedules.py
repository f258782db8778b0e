"""Schedules as their users see them: both queues, decorators, the worker, signatures."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from bide import (
    AsyncQueue,
    Queue,
    Schedule,
    ScheduleNotFound,
    Schedules,
    State,
    Unique,
    UsageError,
    batch,
    testing,
)
from bide.model.durations import from_us
from bide.model.payload.signing import Keyring, Seal
from bide.protocol.commands import schedules as ops
from bide.protocol.keys import keys_of
from bide.worker.heartbeat import ScheduleRefills
from tests.features import scheduled
from tests.support import jobs
from tests.support.workers import at_work, burst, eventually

NINE = "0 9 * * *"


@pytest.fixture
def mail(one_url: str) -> Iterator[Queue]:
    with closing(Queue("mail", url=one_url)) as queue:
        yield queue


# -- the facades


def test_a_schedule_says_all_that_was_said_of_it(mail: Queue) -> None:
    start, end = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
    schedule = mail.schedules.upsert(
        *("report", jobs.add, (1,), {"b": 2}),
        cron=" 0 9 * *  1-5",
        tz="Europe/Paris",
        start=start,
        end=end,
        limit=5,
        missed="all",
        jitter="30s",
        priority=8,
    )
    assert schedule == mail.schedules.fetch("report")
    assert (schedule.name, schedule.task) == ("report", "tests.support.jobs:add")
    assert (schedule.cron, schedule.tz, schedule.every) == ("0 9 * * 1-5", "Europe/Paris", None)
    assert (schedule.start, schedule.end, schedule.limit) == (start, end, 5)
    assert (schedule.missed, schedule.jitter, schedule.priority) == ("all", 30.0, 8)
    assert (schedule.paused, schedule.over, schedule.fired, schedule.last) == (
        False,
        False,
        0,
        None,
    )
    assert schedule.next == datetime(2030, 1, 1, 8, tzinfo=UTC)
    assert schedule.when == "0 9 * * 1-5 Europe/Paris"
    assert len(mail.schedules.next("report", 50)) == 5
    assert mail.schedules.next("report", 2)[1] == datetime(2030, 1, 2, 8, tzinfo=UTC)
    assert mail.counts().schedules == 1


def test_intervals_and_moments(mail: Queue) -> None:
    every = mail.schedules.upsert("e", jobs.add, (1,), every=timedelta(seconds=90))
    assert (every.every, every.when) == (90.0, "every 90s")
    first, second = every.upcoming(2)
    assert second - first == timedelta(seconds=90)
    moments = [datetime(2030, 1, day, tzinfo=UTC) for day in (3, 1, 1)]
    at = mail.schedules.upsert("a", jobs.add, (1,), at=moments)
    assert at.at == (moments[1], moments[0])
    assert (at.when, at.upcoming(9)) == ("at 2 moments", [*at.at])
    assert (at.cron, at.tz, at.every) == (None, None, None)
    assert [one.name for one in mail.schedules.all()] == ["a", "e"]


def test_pausing_resuming_and_removing(mail: Queue) -> None:
    mail.schedules.upsert("e", jobs.add, (1,), every=90)
    assert mail.schedules.pause("e").paused
    assert mail.schedules.next("e") == []
    assert mail.schedules.resume("e").next is not None
    assert mail.schedules.delete("e")
    assert not mail.schedules.delete("e")
    for verb in ("fetch", "next", "run", "pause", "resume"):
        with pytest.raises(ScheduleNotFound, match="Queue mail has no schedule 'e'"):
            getattr(mail.schedules, verb)("e")


@pytest.mark.anyio
async def test_the_awaited_queue_does_the_same(one_url: str) -> None:
    queue = AsyncQueue("mail", url=one_url)
    schedules = queue.schedules
    schedule = await schedules.upsert("report", jobs.add, (1,), cron=NINE)
    assert isinstance(schedule, Schedule)
    assert await schedules.fetch("report") == schedule
    assert await schedules.all() == [schedule]
    assert await schedules.next("report", 1) == [schedule.next]
    job = await schedules.run("report")
    await job.refresh()
    assert (job.state, job.schedule, job.schedule_time) == (State.WAITING, "report", None)
    assert (await schedules.pause("report")).paused
    assert not (await schedules.resume("report")).paused
    assert await schedules.delete("report")
    with pytest.raises(ScheduleNotFound):
        await schedules.fetch("report")
    await queue.close()


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "Give one of cron=, every= and at="),
    ({"cron": NINE, "every": 5}, "Give one of"),
    ({"cron": "x"}, "is not a cron expression"),
    ({"cron": ""}, "is not a cron expression"),
    ({"cron": NINE, "tz": "Mars/Base"}, "is not a time zone"),
    ({"every": 5, "tz": "UTC"}, "tz= goes with cron="),
    ({"every": 0.001}, "an interval has 10ms or more"),
    ({"every": 0}, "an interval has 10ms or more"),
    ({"every": "often"}, "is not a duration"),
    ({"at": []}, "must be a list of aware datetimes"),
    ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, "must be a list"),
    ({"at": [datetime(2030, 1, 1)]}, "has no time zone"),
    ({"at": [datetime(2030, 1, 1, tzinfo=UTC)] * 101}, "enqueue a job for each"),
    ({"every": 5, "start": datetime(2030, 1, 1)}, "has no time zone"),
    ({"every": 5, "end": datetime(2030, 1, 1)}, "has no time zone"),
    (
        {
            "every": 5,
            "start": datetime(2100, 1, 2, tzinfo=UTC),
            "end": datetime(2100, 1, 1, tzinfo=UTC),
        },
        "would never fire",
    ),
    ({"every": 5, "limit": 0}, "limit must be"),
    ({"every": 5, "limit": True}, "limit must be"),
    ({"every": 5, "limit": 10**30}, "limit must be"),
    ({"every": 5, "missed": "some"}, "missed must be"),
    ({"every": 5, "jitter": -1}, "must not be negative"),
    ({"every": 5, "delay": 5}, "cannot have delay=: its times decide"),
    ({"every": 5, "job_id": "x"}, "cannot have job_id=: the id of each"),
    ({"every": 5, "depends_on": "x"}, "cannot have depends_on=: their parents do not"),
    ({"every": 5, "run_if": "failed"}, "cannot have run_if=: they have no parents"),
    ({"every": 5, "durability": "fsync"}, "cannot have durability=: workers create them"),
    ({"every": 5, "more": 1}, "There is no option 'more'"),
    ({"every": 5, "group": "a b"}, "group holds a brace, a space|a space"),
    ({"every": 5, "group_concurrency": 2}, "is said of a group"),
    ({"every": 5, "unique": "yes"}, "unique='yes' is"),
    ({"every": 5, "unique": batch(1)}, "creates each job separately"),
    ({"every": 5, "priority": 11}, "priority must be"),
    ({"every": 5, "name": "a b"}, "holds a brace, a space"),
    ({"every": 5, "name": "x" * 101}, "100 bytes at most"),
    ({"every": 5, "args": (1, 2, 3, 4)}, "jobs:add"),
]


@pytest.mark.parametrize(
    ("given", "why"), BAD, ids=[f"{i}-{why}" for i, (_, why) in enumerate(BAD)]
)
def test_what_cannot_be_meant_is_refused(mail: Queue, given: dict[str, Any], why: str) -> None:
    name = given.pop("name", "x") if "name" in given else "x"
    with pytest.raises(UsageError, match=why):
        mail.schedules.upsert(name, jobs.add, given.get("args", (1,)), **{
            key: value for key, value in given.items() if key != "args"
        })  # fmt: skip
    assert mail.schedules.all() == []


def test_counts_of_times_are_bounded(mail: Queue) -> None:
    schedule = mail.schedules.upsert("e", jobs.add, (1,), every=90)
    for count in (0, 1_001, True, "5"):
        with pytest.raises(UsageError, match="count must be"):
            schedule.upcoming(count)  # type: ignore[arg-type]


# -- decorators


def test_a_task_may_have_several_schedules_of_different_names() -> None:
    assert scheduled.report.name == "tests.features.scheduled:report"
    queue = Queue("decorators")

    @queue.task(name="decorated")
    def decorated() -> None: ...

    once = queue.every(5)
    assert once(decorated) is decorated
    with pytest.raises(UsageError, match=r"has a schedule 'decorated' already; give each a name"):
        queue.cron(NINE)(decorated)
    queue.cron(NINE, name="other")(decorated)
    with pytest.raises(UsageError, match="has a schedule 'other' already"):
        queue.every(9, name="other")(scheduled.report)


def test_a_mistake_shows_where_it_is_made() -> None:
    queue = Queue("decorators")
    with pytest.raises(UsageError, match="is not a cron expression"):
        queue.cron("x")
    with pytest.raises(UsageError, match="is not a time zone"):
        AsyncQueue("decorators").cron(NINE, tz="x")
    with pytest.raises(UsageError, match="There is no option 'more'"):
        queue.every(5, more=5)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="cannot have delay="):
        queue.every(5, delay=5)  # type: ignore[call-arg]


# -- the worker


@pytest.mark.slow
def test_a_worker_sets_what_its_modules_declare_and_fires_it(
    one_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bide")
    with closing(Queue("declared", url=one_url)) as queue:
        with at_work(queue):
            found = {one.name: one for one in queue.schedules.all()}
            assert set(found) == {"tests.features.scheduled:beat", "morning", "evening"}
            jobs.wait_seen(3)
        beat = found["tests.features.scheduled:beat"]
        assert "schedule morning of queue declared is set, next at " in caplog.text
        first = int(jobs.seen[0][0].rpartition("@")[2])  # it may have fired before it was read
        for n, (id, name, time, due) in enumerate(jobs.seen):
            assert (id, name) == (f"{beat.name}@{first + n * 50_000}", beat.name)
            assert time == due == from_us(first + n * 50_000)
        eventually(lambda: queue.counts().completed == 3)
        job = queue.jobs("completed")[0]
        assert (job.result, job.description, job.priority) == ("1", "a beat", 7)
        assert (job.schedule, job.schedule_time) == (beat.name, job.due)
        caplog.clear()
        with at_work(queue):
            assert "is set" not in caplog.text, "what is as before is left alone"
            assert queue.schedules.fetch(beat.name).over


def test_a_schedule_whose_code_has_gone_fails_and_says_so(mail: Queue) -> None:
    mail.schedules.upsert("gone", "tests.support.jobs:no_such", every="20ms", limit=1)
    with at_work(mail):
        eventually(lambda: mail.upcoming())
        (job,) = mail.upcoming()
        assert job.error is not None
        assert job.error.type == "bide.TaskNotFound"
        assert "no_such" in job.error.message
        assert job.schedule == "gone"


def test_times_have_groups_and_keys_in_a_worker(mail: Queue) -> None:
    jobs.seen.clear()
    jobs.gate.clear()
    more: dict[str, Any] = {"every": "20ms", "missed": "all", "limit": 5}
    mail.schedules.upsert("one", jobs.wait_thread, group="g", unique=Unique(), **more)
    mail.schedules.upsert("two", jobs.add, (2,), group="g", **more)
    mail.schedules.upsert("three", jobs.add, (3,), group="g", group_concurrency=1, **more)
    with at_work(mail, concurrency=8):
        try:
            eventually(lambda: all(one.fired == 5 for one in mail.schedules.all()))
            assert mail.counts().active == 1, "of one group"
        finally:
            jobs.gate.set()
        eventually(lambda: (now := mail.counts()).completed and not now.waiting + now.active)
    ran = [job.id.partition("@")[0] for job in mail.jobs("completed", count=50)]
    assert (ran.count("two"), ran.count("three")) == (5, 5)
    assert 1 <= ran.count("one") <= 5, "those that waited are one"


def test_an_unread_time_zone_is_said_once_and_holds_nobody_up(
    mail: Queue, direct: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a machine that has none of the zones that the client had."""
    mail.schedules.upsert("far", jobs.add, (1,), cron="* * * * *", tz="Europe/Paris")
    key = keys_of("mail")["schedule"]
    record: Any = direct.hget(key, "far")
    head, _, rest = record.partition(b":")
    direct.hset(key, "far", head + b":\n" + rest.partition(b"\n")[2].replace(b"Paris", b"Atlan"))
    direct.zadd(keys_of("mail")["schedules"], {"far": 1})
    mail.enqueue(jobs.add, 1)
    with at_work(mail):
        unknown = "gets no more times: tz='Europe/Atlan' is not a time zone"
        eventually(lambda: unknown in caplog.text)
        eventually(lambda: mail.counts().completed == 1)
    assert caplog.text.count("gets no more times") == 1


def test_a_worker_sends_more_times_when_few_are_left(mail: Queue, direct: redis.Redis) -> None:
    schedule = mail.schedules.upsert("often", jobs.add, (1,), cron="0 0 1 * *")
    key = keys_of("mail")["schedule"]
    record: Any = direct.hget(key, "often")
    head, _, rest = record.partition(b":")
    now_us = mail.counts().now_us
    body = rest.partition(b"\n")[2]
    direct.hset(key, "often", head + b": %d %d\n" % (now_us, schedule.times[0]) + body)
    direct.zadd(keys_of("mail")["schedules"], {"often": now_us})
    with at_work(mail):
        eventually(lambda: len(mail.schedules.fetch("often").times) == 16)
        jobs.wait_seen(1)
    again = mail.schedules.fetch("often")
    assert again.times == schedule.times
    assert (again.fired, again.version) == (1, schedule.version)


@pytest.mark.anyio
async def test_each_is_sent_once_at_a_time() -> None:
    asked: list[Any] = []

    class Client:
        async def run(self, command: Any) -> Any:
            asked.append(command.args)
            return ops.SchedulePage("0", 1, [])

        async def run_many(self, commands: Any) -> Any:
            return []

    refills = ScheduleRefills(Client())  # type: ignore[arg-type]
    refills.send(keys_of("mail"), ["a", "b", "a"])
    refills.send(keys_of("mail"), ["b"])
    await refills.close()
    assert len(asked) == 2
    refills.send(keys_of("mail"), ["b"])
    await refills.close()
    assert len(asked) == 3


@pytest.mark.anyio
async def test_what_cannot_be_sent_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Client:
        async def run(self, command: Any) -> Any:
            raise UsageError("No zone.")

    refills = ScheduleRefills(Client())  # type: ignore[arg-type]
    for _ in range(3):
        refills.send(keys_of("mail"), ["a"])
        await refills.close()
    assert caplog.messages == ["schedule a of queue mail gets no more times: No zone."]


# -- signatures


def test_what_a_schedule_makes_is_signed_for_the_schedule(
    one_url: str, direct: redis.Redis, signing: str
) -> None:
    keys = keys_of("mail")
    with closing(Queue("mail", url=one_url)) as mail:
        mail.schedules.upsert("a", jobs.add, (1,), every="20ms", limit=1)
        mail.schedules.upsert("b", jobs.add, (2,), at=[datetime(2100, 1, 1, tzinfo=UTC)])
        with at_work(mail):
            eventually(lambda: mail.counts().completed == 1)
        other: Any = direct.hget(keys["scheduled"], "b")
        plain = other.partition(b"\n\x04")[0]
        job = mail.enqueue(jobs.add, 3, delay="1h")
        signed: Any = direct.hget(keys["jobs"], job.id)
        forged = {
            "a": other,
            "c": signed,
            "d": plain,
            "e": Seal(Keyring(signing), keys_of("other")).sign("schedule", "e", plain),
            "f": Seal(Keyring(signing), keys).sign("job", "f", plain),
        }
        for name, body in forged.items():
            mail.schedules.upsert(name, jobs.add, (1,), every="1h")
            direct.hset(keys["scheduled"], name, body)
        runs = [mail.schedules.run(name) for name in (*forged, "b")]
        burst(mail)
        for one in runs:
            one.refresh()
        assert [one.state for one in runs] == [State.FAILED] * len(forged) + [State.COMPLETED]
        assert all(one.error and one.error.type == "bide.BadSignature" for one in runs[:-1])
        assert mail.schedules.upsert("b", jobs.add, (2,), at=mail.schedules.fetch("b").at)


def test_what_may_stand_in_another_place_is_signed_for_that(one_url: str, signing: str) -> None:
    latest = Unique(key="k", on_conflict="replace")
    with closing(Queue("mail", url=one_url)) as mail:
        mail.schedules.upsert("s", jobs.add, (1,), every="1h", unique=latest)
        by_time = mail.schedules.run("s")
        call = mail.enqueue_call(jobs.add, (2,), unique=latest)
        assert (call.id, call.enqueue_result) == (by_time.id, "replaced")
        burst(mail)
        assert by_time.refresh().result == 2
        call = mail.enqueue_call(jobs.add, (2,), unique=latest)
        by_time = mail.schedules.run("s")
        assert (by_time.id, by_time.enqueue_result) == (call.id, "replaced")
        burst(mail)
        assert by_time.refresh().result == 1


# -- with bide.testing


def test_a_test_bed_moves_on_to_each_time_of_a_schedule() -> None:
    with testing.start() as bed:
        queue = Queue("mail")
        queue.schedules.upsert("hourly", jobs.add, (1,), every="1h")
        queue.schedules.upsert("often", jobs.add, (2,), cron="*/10 * * * *", missed="all")
        assert bed.run() == []
        ran = bed.run(until="5h")
        assert sum(job.id.startswith("hourly@") for job in ran) == 5
        often = [job.id for job in ran if job.id.startswith("often@")]
        assert len(often) in (29, 30, 31)
        assert len(set(often)) == len(often)
        assert isinstance(queue.schedules, Schedules)


def test_eager_mode_has_no_schedules() -> None:
    with testing.eager(), pytest.raises(UsageError, match="only that could schedule;"):
        Queue("mail").schedules.upsert("x", jobs.add, (1,), every=5)
