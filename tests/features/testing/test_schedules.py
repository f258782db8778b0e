"""Schedules in tests: those that decorators declare, and those that a program sets."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import bide
from bide import ScheduleNotFound, State, UsageError
from bide.model.schedule import Missed
from bide.queue.schedules import declared
from bide.testing import TestBed, isolated_registry
from tests.features.testing import shop

NAME = __name__
HOUR = timedelta(hours=1)


def report() -> None:
    shop.done.append(bide.current_job().schedule_time)


def look(currency: str) -> None:
    shop.done.append(currency)


async def beat() -> None:
    shop.done.append("beat")


def no_schedule() -> None: ...


@pytest.fixture(autouse=True)
def declare() -> None:
    """Three schedules of two queues; the registry is isolated."""
    shop.mail.cron("0 9 * * 1-5", tz="Europe/Paris")(report)
    shop.mail.every("90s", name="look", args=["EUR"])(look)
    shop.events.every("1h")(beat)


def test_a_declared_schedule_that_has_no_more_times_is_over(bed: TestBed) -> None:
    end = bed.now() + timedelta(minutes=1)
    yearly = f"0 0 {(end - timedelta(days=2)):%d %m} *"
    shop.mail.cron(yearly, end=end)(no_schedule)
    shop.mail.every("1h", end=end, name="hourly")(no_schedule)
    foreseen = bed.schedules(no_schedule)
    assert [schedule.over for schedule in foreseen] == [True, True]
    assert [schedule.over for schedule in bed.set_schedules(no_schedule)] == [True, True]


# -- running them


def test_no_schedule_fires_unless_the_test_sets_it(bed: TestBed) -> None:
    assert bed.run(until="7d") == []
    assert shop.mail.schedules.all() == []


def test_moving_the_clock_past_its_time_fires_it(bed: TestBed) -> None:
    (schedule,) = bed.set_schedules(report)
    assert schedule.next is not None
    bed.run(until=schedule.next - timedelta(seconds=1))
    assert shop.done == []
    (job,) = bed.run(until=schedule.next)
    assert shop.done == [schedule.next] == [job.schedule_time]
    assert (job.schedule, job.lateness) == (f"{NAME}:report", 0)


def test_all_of_them_fire_each_at_its_times(bed: TestBed) -> None:
    names = [schedule.name for schedule in bed.set_schedules()]
    assert set(names) >= {"look", f"{NAME}:beat", f"{NAME}:report"}
    assert names == sorted(names)
    bed.run(until="61m")
    assert shop.done.count("EUR") == 40
    assert shop.done.count("beat") == 1


@pytest.mark.anyio
async def test_also_under_an_event_loop(bed: TestBed) -> None:
    bed.set_schedules(beat)
    assert len(await bed.arun(until="150m")) == 2
    assert shop.done == ["beat", "beat"]


def test_setting_them_again_changes_nothing(bed: TestBed) -> None:
    bed.set_schedules(look)
    bed.run(until="91s")
    bed.set_schedules(look)
    bed.run(until="90s")
    assert shop.done == ["EUR", "EUR"]
    assert shop.mail.schedules.fetch("look").fired == 2


def test_a_cron_expression_is_sent_more_of_its_times(bed: TestBed) -> None:
    shop.low.cron("0 * * * *", name="hourly", args=["x"])(look)
    bed.set_schedules(look)
    shop.mail.schedules.delete("look")
    assert len(bed.run(until="3d")) == 72


@pytest.mark.parametrize(("missed", "count"), [("once", 1), ("all", 72), ("skip", 0)])
def test_a_jump_of_the_clock_fires_what_workers_would_make_up_for(
    bed: TestBed, missed: Missed, count: int
) -> None:
    shop.mail.schedules.upsert("hourly", look, ["x"], cron="0 * * * *", missed=missed)
    until = shop.mail.schedules.next("hourly", 72)[-1] + timedelta(minutes=2)
    bed.advance(until - bed.now())
    assert len(bed.enqueued(look)) == count
    assert shop.done == [], "the clock moves, and no job runs"
    if count:
        bed.assert_enqueued(look, "x", at=until - timedelta(minutes=2))
    bed.run()
    assert len(shop.done) == count


def test_advance_fires_what_has_come_due(bed: TestBed) -> None:
    bed.set_schedules(look)
    bed.advance("80s")
    bed.assert_not_enqueued(look)
    bed.advance("11s")
    assert bed.assert_enqueued(look, "EUR").state is State.WAITING


def test_a_schedule_that_the_program_sets_fires_as_well(bed: TestBed) -> None:
    shop.mail.schedules.upsert("customer-42", look, ["USD"], every="1h")
    bed.run(until="2h")
    assert shop.done == ["USD", "USD"]


# -- asserting them


def test_a_declared_schedule_is_there(bed: TestBed) -> None:
    schedule = bed.assert_scheduled(report, cron="0 9 * * 1-5", tz="Europe/Paris")
    assert [at.weekday() < 5 for at in schedule.upcoming(7)] == [True] * 7
    assert schedule.next is not None
    assert schedule.next > bed.now()
    bed.assert_scheduled(report, [], {})
    bed.assert_scheduled(look, ["EUR"], every="90s", name="look", queue=shop.mail)
    bed.assert_scheduled(look, kwargs={"currency": "EUR"}, every=90)
    bed.assert_scheduled(f"{NAME}:look")
    bed.assert_scheduled(beat, every="1h", queue="events")
    with pytest.raises(ScheduleNotFound):
        shop.mail.schedules.fetch("look")  # looking sets nothing


@pytest.mark.parametrize(
    "look_for",
    [
        lambda bed: bed.assert_not_scheduled(no_schedule),
        lambda bed: bed.assert_not_scheduled(report, cron="0 8 * * 1-5"),
        lambda bed: bed.assert_not_scheduled(report, cron="0 9 * * 1-5", tz="UTC"),
        lambda bed: bed.assert_not_scheduled(report, every="1d"),
        lambda bed: bed.assert_not_scheduled(look, ["USD"]),
        lambda bed: bed.assert_not_scheduled(look, name="other"),
        lambda bed: bed.assert_not_scheduled(look, queue="low"),
    ],
)
def test_what_differs_is_not(bed: TestBed, look_for: Callable[[TestBed], None]) -> None:
    look_for(bed)


def test_a_stored_schedule_is_there_until_it_is_removed(bed: TestBed, signing: str) -> None:
    moments = [datetime(2035, 3, day, tzinfo=UTC) for day in (1, 8)]
    shop.mail.schedules.upsert("customer-42", look, ["USD"], at=moments)
    shop.pickled.schedules.upsert("signed", look, ["GBP"], every="1h", unique=bide.Unique())
    bed.assert_scheduled(look, ["USD"], at=moments, name="customer-42")
    bed.assert_scheduled(look, ["GBP"], queue=shop.pickled)
    assert [one.name for one in bed.schedules(look)] == ["customer-42", "look", "signed"]
    shop.mail.schedules.delete("customer-42")
    bed.assert_not_scheduled(look, ["USD"])


def test_one_that_is_declared_and_set_is_one(bed: TestBed) -> None:
    before = bed.schedules(look)
    bed.set_schedules(look)
    bed.run(until="90s")
    (after,) = bed.schedules(look)
    assert [(one.name, one.timing) for one in before] == [(after.name, after.timing)]
    assert (before[0].fired, after.fired) == (0, 1)


def test_a_failure_shows_what_there_is(bed: TestBed) -> None:
    shop.low.schedules.upsert("stored", look, ["USD"], every="2h")
    shop.low.schedules.pause("stored")
    with pytest.raises(AssertionError) as info:
        bed.assert_scheduled(look, ["GBP"], every="1h", name="x", queue="low")
    head, schedules, *lines = re.sub(
        r"next in [\d.]+s", "next in 90s", str(info.value)
    ).splitlines()
    assert head == f"No schedule of {NAME}:look('GBP'), every 1h, named 'x', on low, is there."
    assert schedules == "Schedules:"
    assert f"  look: {NAME}:look('EUR'), every 90s, next in 90s, on mail, declared" in lines
    assert f"  stored: {NAME}:look('USD'), every 2h, paused, on low, stored" in lines
    with pytest.raises(AssertionError, match=r"A schedule of .*:look\(\.\.\.\) is there\.\nSched"):
        bed.assert_not_scheduled(look)


def test_without_any_it_says_so(bed: TestBed) -> None:
    with isolated_registry():
        for plan in declared():
            _forget(plan.queue.name, plan.name)
        with pytest.raises(AssertionError, match=r"\nNo schedule is declared or stored\.$"):
            bed.assert_scheduled(look)
        with pytest.raises(UsageError, match=r"import the module that has the @queue\.cron"):
            bed.set_schedules()
    assert bed.schedules(look)


def _forget(queue: str, name: str) -> None:
    from bide.queue.schedules import _declared

    del _declared[queue, name]


def test_what_is_declared_inside_of_an_isolated_registry_is_forgotten() -> None:
    before = declared()
    for _ in range(2):
        with isolated_registry():
            shop.low.every("1h")(no_schedule)
            assert len(declared("low")) == len(declared()) - len(before)
    assert declared() == before


# -- misuse


def test_a_task_without_a_schedule_cannot_be_set(bed: TestBed) -> None:
    with pytest.raises(
        UsageError, match=r"declares a schedule of .*:no_schedule \(declared: .*beat"
    ):
        bed.set_schedules(look, no_schedule)


def test_what_no_schedule_can_be(bed: TestBed) -> None:
    with pytest.raises(UsageError, match=r"write args=\['EUR'\]"):
        bed.assert_scheduled(look, "EUR")
    with pytest.raises(UsageError, match="Give one of cron=, every= and at="):
        bed.assert_scheduled(look, cron="* * * * *", every="1h")
    with pytest.raises(UsageError, match="is not a cron expression"):
        bed.assert_scheduled(look, cron="0 0 30 2 *")
    with pytest.raises(UsageError, match="takes 1 argument"):
        bed.assert_scheduled(look, ["EUR", 2])
