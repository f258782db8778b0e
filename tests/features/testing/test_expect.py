"""What is enqueued: assertions, and what they say when they fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import bide
from bide import PayloadError, State, UsageError
from bide.testing import TestBed
from tests.features.testing import shop

NAME = "tests.features.testing.shop"


def test_a_task_was_enqueued(bed: TestBed) -> None:
    with pytest.raises(AssertionError, match="Nothing is enqueued"):
        bed.assert_enqueued(shop.send)
    job = shop.send.enqueue(1)
    assert bed.assert_enqueued(shop.send).id == job.id
    bed.assert_enqueued(f"{NAME}:send")
    bed.assert_enqueued(shop.send.function)
    bed.assert_not_enqueued(shop.note)


def test_with_its_arguments(bed: TestBed) -> None:
    shop.send.enqueue(1, text="hi")
    bed.assert_enqueued(shop.send, 1, text="hi")
    bed.assert_enqueued(shop.send, to=1, text="hi")
    bed.assert_enqueued(shop.send, 1, "hi")
    bed.assert_not_enqueued(shop.send, 2, "hi")
    bed.assert_not_enqueued(shop.send, 1)
    with pytest.raises(AssertionError):
        bed.assert_not_enqueued(shop.send, 1, "hi")


@pytest.mark.parametrize("queue", [shop.mail, shop.packed, shop.pickled])
def test_arguments_compare_as_they_travel(bed: TestBed, queue: bide.Queue) -> None:
    order = shop.Order(1, datetime(2030, 1, 1, tzinfo=UTC))
    shop.ship.options(queue=queue).enqueue(order)
    bed.assert_enqueued(shop.ship, shop.Order(1, datetime(2030, 1, 1, tzinfo=UTC)))
    bed.assert_not_enqueued(shop.ship, shop.Order(2, datetime(2030, 1, 1, tzinfo=UTC)))


def test_a_method_compares_with_its_object(bed: TestBed) -> None:
    shop.pickled.enqueue(Sender("a").send, 1)
    bed.assert_enqueued(Sender("a").send, 1)
    bed.assert_not_enqueued(Sender("b").send, 1)


class Sender:
    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sender) and self.name == other.name

    __hash__ = None  # type: ignore[assignment]

    def send(self, to: int) -> None: ...


def test_when_it_is_due(bed: TestBed) -> None:
    moment = datetime.now(UTC) + timedelta(days=3)
    shop.send.later("30m").enqueue(1)
    shop.send.later(moment).enqueue(2)
    bed.assert_enqueued(shop.send, 1, delay="30m")
    bed.assert_enqueued(shop.send, 1, delay=1800)
    bed.assert_not_enqueued(shop.send, 1, delay="31m")
    bed.assert_not_enqueued(shop.send, 1, delay="29m")
    bed.assert_enqueued(shop.send, 1, delay="31m", within="1m")
    bed.assert_enqueued(shop.send, 2, at=moment)
    bed.assert_not_enqueued(shop.send, 2, at=moment + timedelta(seconds=2))
    bed.assert_not_enqueued(shop.send, delay=0)
    bed.advance("10m")
    bed.assert_enqueued(shop.send, 1, delay="20m")
    shop.remind.enqueue(3)
    bed.assert_enqueued(shop.remind, delay="24h")


def test_the_time_that_a_test_takes_is_no_lateness(bed: TestBed) -> None:
    shop.send.later("30m").enqueue(1)
    bed._opened_at -= 20  # as if the machine were that slow
    bed._store.advance(20_000_000)
    bed.assert_enqueued(shop.send, 1, delay="30m")


def test_where_and_how_many(bed: TestBed) -> None:
    for _ in range(2):
        shop.send.enqueue(1)
    shop.send.options(queue=shop.low).enqueue(1)
    bed.assert_enqueued(shop.send, 1, count=3)
    bed.assert_enqueued(shop.send, 1, queue=shop.mail, count=2)
    bed.assert_enqueued(shop.send, queue="low", count=1)
    bed.assert_not_enqueued(shop.send, queue=shop.events)
    with pytest.raises(AssertionError, match=r"3 jobs are .*send.* where there should be 2"):
        bed.assert_enqueued(shop.send, 1, count=2)
    with pytest.raises(AssertionError, match=r"1 job is .* where there should be 4"):
        bed.assert_enqueued(shop.send, queue=shop.low, count=4)


def test_what_has_run_is_enqueued_no_more(bed: TestBed) -> None:
    shop.send.enqueue(1)
    shop.stumble.enqueue(1)
    bed.run()
    bed.assert_not_enqueued(shop.send)
    assert [job.state for job in bed.enqueued()] == [State.DELAYED], "it will be retried"


def test_all_that_is_enqueued_can_be_listed(bed: TestBed) -> None:
    shop.send.later("2h").enqueue(3)
    shop.note_low.later("1h").enqueue("x")
    shop.send.enqueue(1)
    jobs = bed.enqueued()
    assert [job.call for job in jobs] == [
        f"{NAME}:send(1)",
        f"{NAME}:note_low('x')",
        f"{NAME}:send(3)",
    ]
    assert [job.state for job in jobs] == [State.WAITING, State.DELAYED, State.DELAYED]
    assert [(job.queue, job.priority, job.args) for job in bed.enqueued(shop.note_low)] == [
        ("low", 9, ("x",))
    ]


@pytest.mark.slow
def test_however_many_there_are(bed: TestBed) -> None:
    jobs = [shop.note.prepare(str(i)) for i in range(1_500)]
    jobs += [shop.note.later("1h").prepare(str(i)) for i in range(1_000)]
    shop.mail.enqueue_many(jobs)
    assert [job.args[0] for job in bed.enqueued()] == [
        *map(str, range(1_500)),
        *map(str, range(1_000)),
    ]
    bed.assert_enqueued(shop.note, "999", count=2)


def test_a_failure_shows_what_there_is_instead(bed: TestBed) -> None:
    shop.send.later("20m").enqueue(2)
    shop.note_low.enqueue("x")
    with pytest.raises(AssertionError) as info:
        bed.assert_enqueued(shop.send, 1, text="hi", delay="30m", queue="mail")
    assert str(info.value).splitlines() == [
        f"No job {NAME}:send(1, text='hi'), due in 30m, on mail, is enqueued.",
        "Enqueued:",
        f"  {NAME}:note_low('x'), waiting, due now, on low",
        f"  {NAME}:send(2), delayed, due in 20m, on mail",
    ]
    with pytest.raises(AssertionError) as info:
        bed.assert_not_enqueued(shop.send)
    assert str(info.value).startswith(f"{NAME}:send(...) is enqueued (1 delayed).\n")


def test_of_very_many_it_shows_the_first(bed: TestBed) -> None:
    shop.mail.enqueue_many([shop.note.prepare(str(i)) for i in range(30)])
    with pytest.raises(AssertionError, match=r"note.'19'.*\n  and 10 more$"):
        bed.assert_enqueued(shop.send)


# -- misuse


def test_arguments_that_no_job_can_have(bed: TestBed) -> None:
    with pytest.raises(UsageError, match=r"send.*'nobody'"):
        bed.assert_not_enqueued(shop.send, nobody=1)
    shop.note.enqueue("x")
    with pytest.raises(PayloadError, match="argument 'what'"):
        bed.assert_not_enqueued(shop.note, object())


def test_a_count_of_none_is_another_assertion(bed: TestBed) -> None:
    with pytest.raises(UsageError, match="none is asserted by assert_not_enqueued"):
        bed.assert_enqueued(shop.send, 1, count=0)


def test_either_a_delay_or_a_moment(bed: TestBed) -> None:
    with pytest.raises(UsageError, match="not both"):
        bed.assert_enqueued(shop.send, 1, delay=3, at=bed.now())
    with pytest.raises(UsageError, match="has no time zone"):
        bed.assert_enqueued(shop.send, 1, at=datetime(2040, 1, 1))
    with pytest.raises(UsageError, match="is not a task's name"):
        bed.enqueued("app.send")


def test_a_name_that_its_module_does_not_have_proves_nothing(bed: TestBed) -> None:
    with pytest.raises(UsageError, match=f"The module '{NAME}' has no function 'sned'"):
        bed.assert_not_enqueued(f"{NAME}:sned")
    bed.assert_not_enqueued(f"{NAME}:send")
    bed.assert_not_enqueued("not.imported:send")
    bed.assert_not_enqueued("a_name")
    shop.mail.enqueue(f"{NAME}:sned")
    with pytest.raises(AssertionError, match="sned"):
        bed.assert_not_enqueued(f"{NAME}:sned")


def test_a_count_is_a_whole_number(bed: TestBed) -> None:
    with pytest.raises(UsageError, match="count must be 1 or more, not '1'"):
        bed.assert_enqueued(shop.send, count="1")  # type: ignore[arg-type]


def test_a_moment_that_has_passed_is_no_end_of_a_run(bed: TestBed) -> None:
    with pytest.raises(UsageError, match=r"until=2020.* has passed: it is .* on the bed's clock"):
        bed.run(until=datetime(2020, 1, 1, tzinfo=UTC))
    assert bed.run(until=bed.now()) == []
