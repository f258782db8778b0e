"""Cron expressions: which moments they name, minute by minute, whatever the clocks do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bide.errors import UsageError
from bide.model.schedule import LONGEST, Cron, Timing, cron_of, timing_of, zone_of

ZONES = ("Europe/Paris", "America/New_York", "Australia/Lord_Howe", "UTC")
MINUTE = timedelta(minutes=1)


def us(at: datetime) -> int:
    return round(at.timestamp()) * 1_000_000


def times(text: str, zone: str, after: str, count: int) -> list[str]:
    """The next times, as the wall clock shows them."""
    tz = ZoneInfo(zone)
    start = datetime.fromisoformat(after).replace(tzinfo=tz)
    found = islice(Cron(text, zone).after(us(start)), count)
    return [f"{datetime.fromtimestamp(at / 1e6, tz):%d %H:%M %z}" for at in found]


# -- a table by hand


def test_in_spring_a_time_of_day_that_is_skipped_fires_as_soon_as_the_clock_goes_on() -> None:
    assert times("30 2 * * *", "Europe/Paris", "2025-03-29T00:00", 3) == [
        "29 02:30 +0100",
        "30 03:00 +0200",
        "31 02:30 +0200",
    ]
    assert times("0,20,40 2 * * *", "America/New_York", "2025-03-09T00:00", 2) == [
        "09 03:00 -0400",
        "10 02:00 -0400",
    ]
    assert times("15 2 * * *", "Australia/Lord_Howe", "2025-10-05T00:00", 2) == [
        "05 02:30 +1100",
        "06 02:15 +1100",
    ]


def test_in_autumn_a_time_of_day_fires_once() -> None:
    assert times("30 2 * * *", "Europe/Paris", "2025-10-25T12:00", 2) == [
        "26 02:30 +0200",
        "27 02:30 +0100",
    ]
    assert times("45 1 * * *", "Australia/Lord_Howe", "2025-04-05T12:00", 2) == [
        "06 01:45 +1100",
        "07 01:45 +1030",
    ]


def test_what_goes_along_with_the_clock_is_skipped_and_doubled_with_it() -> None:
    assert times("*/30 * * * *", "Europe/Paris", "2025-03-30T01:15", 3) == [
        "30 01:30 +0100",
        "30 03:00 +0200",
        "30 03:30 +0200",
    ]
    assert times("*/20 2 * * *", "Europe/Paris", "2025-03-30T00:00", 1) == ["31 02:00 +0200"]
    assert times("*/30 * * * *", "Europe/Paris", "2025-10-26T01:45", 5) == [
        "26 02:00 +0200",
        "26 02:30 +0200",
        "26 02:00 +0100",
        "26 02:30 +0100",
        "26 03:00 +0100",
    ]
    assert times("*/15 2 * * *", "Australia/Lord_Howe", "2025-04-05T12:00", 4) == [
        "06 02:00 +1030",
        "06 02:15 +1030",
        "06 02:30 +1030",
        "06 02:45 +1030",
    ]


@pytest.mark.parametrize(
    ("text", "after", "wanted"),
    [
        ("0 9 * * 1-5", "2026-01-02T10:00", ["05 09:00 +0000", "06 09:00 +0000"]),
        ("0 0 29 2 *", "2025-01-01T00:00", ["29 00:00 +0000", "29 00:00 +0000"]),
        ("0 12 13 * FRI", "2026-02-10T00:00", ["13 12:00 +0000", "20 12:00 +0000"]),
        ("0 12 */13 * TUE", "2026-01-02T00:00", ["27 12:00 +0000", "14 12:00 +0000"]),
        ("0 0 L * *", "2026-02-01T00:00", ["28 00:00 +0000", "31 00:00 +0000"]),
        ("@daily", "2026-02-01T00:00", ["02 00:00 +0000", "03 00:00 +0000"]),
        ("@Hourly", "2026-02-01T00:00", ["01 01:00 +0000", "01 02:00 +0000"]),
        ("  5   0 1 1 *\t", "2026-02-01T00:00", ["01 00:05 +0000", "01 00:05 +0000"]),
    ],
)
def test_expressions(text: str, after: str, wanted: list[str]) -> None:
    assert times(text, "UTC", after, 2) == wanted


# -- what is refused


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"),
        *("* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "1,,2 * * * *", "-1 * * * *"),
        *("* * * * MON#6", "@often", "¹ * * * *", "* * LW/ * L/2", "\x00 * * * *"),
    ],
)
def test_what_is_no_expression_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a cron expression .*; write five fields") as info:
        Cron(text)
    assert "\n" not in str(info.value)


def test_one_that_never_fires_is_refused() -> None:
    with pytest.raises(UsageError, match=r"never fires; is there such a day\?"):
        Cron("0 0 */31 * MON#2")


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 4,6,9,11 *"])
def test_a_day_that_no_month_has_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="day-of-month"):
        Cron(text)


@pytest.mark.parametrize("text", ["1" * (LONGEST + 1), None, 5, b"* * * * *", ["* * * * *"]])
def test_what_is_no_short_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be text of 200 characters at most"):
        Cron(text)
    with pytest.raises(UsageError, match="must be text of 200 characters at most"):
        cron_of(text, "UTC")


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "", "../x", "x" * 65, "\x00", None, 5, []])
def test_a_zone_that_nobody_knows_is_refused(zone: str) -> None:
    with pytest.raises(UsageError, match="is not a time zone that this machine knows"):
        zone_of(zone)
    with pytest.raises(UsageError, match="is not a time zone that this machine knows"):
        cron_of("* * * * *", zone)


@pytest.mark.parametrize(
    "text", ["*/90 * * * *", "0 */25 * * *", "0 0 1/32 * *", "0 0 1 */13 *", "0 0 * * 1,*/8"]
)
def test_a_step_beyond_its_field_is_refused_in_a_new_schedule(text: str) -> None:
    with pytest.raises(UsageError, match=r"write a longer interval as every=") as info:
        timing_of(cron=text)
    assert text in str(info.value)
    assert Timing(cron=text, tz="UTC").ahead(0, 0, each=True)[0], "a stored one fires as before"


@pytest.mark.parametrize("text", ["*/60 */24 */31 */12 */7", "@hourly"])
def test_a_step_of_a_whole_field_is_accepted(text: str) -> None:
    assert timing_of(cron=text).cron == text


@pytest.mark.parametrize("zone", ["localtime", "posixrules", "Factory", "right/Europe/Paris"])
def test_a_zone_that_depends_on_the_machine_is_refused_in_a_new_schedule(zone: str) -> None:
    with pytest.raises(UsageError, match="does not have the same times on each machine"):
        timing_of(cron="0 9 * * *", tz=zone)


# -- every minute of some days, as Debian's cron would look at them


class Field(NamedTuple):
    text: str
    values: frozenset[int]

    @property
    def is_star(self) -> bool:
        return self.text.startswith("*")


def field(low: int, high: int) -> st.SearchStrategy[Field]:
    every = frozenset(range(low, high + 1))
    number = st.integers(low, high)
    steps = st.integers(1, high - low)
    pairs = st.tuples(number, number).map(sorted)
    return st.one_of(
        st.just(Field("*", every)),
        steps.map(lambda n: Field(f"*/{n}", frozenset(sorted(every)[::n]))),
        number.map(lambda n: Field(str(n), frozenset([n]))),
        st.sets(number, min_size=1, max_size=4).map(
            lambda some: Field(",".join(map(str, some)), frozenset(some))
        ),
        pairs.map(lambda p: Field(f"{p[0]}-{p[1]}", frozenset(range(p[0], p[1] + 1)))),
    )


ANY_DAY = Field("*", frozenset(range(1, 32)))
ANY_MONTH = Field("*", frozenset(range(1, 13)))
ANY_WEEKDAY = Field("*", frozenset(range(8)))
Fields = tuple[Field, Field, Field, Field, Field]


def is_day(wall: datetime, fields: Fields) -> bool:
    _, _, days, months, weekdays = fields
    dom = wall.day in days.values
    dow = not weekdays.values.isdisjoint({wall.isoweekday(), wall.isoweekday() % 7})
    both = days.is_star or weekdays.is_star
    return wall.month in months.values and ((dom and dow) if both else (dom or dow))


def fits(wall: datetime, fields: Fields) -> bool:
    return (
        wall.minute in fields[0].values and wall.hour in fields[1].values and is_day(wall, fields)
    )


def brute(fields: Fields, zone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """Look at the wall clock once a minute."""
    tz = ZoneInfo(zone)
    along = fields[0].is_star or fields[1].is_star
    shown: set[datetime] = set()
    now = after - timedelta(hours=4)
    before: datetime | None = None
    while now <= until:
        wall = now.astimezone(tz).replace(tzinfo=None, fold=0)
        if along:
            hit = fits(wall, fields)
        else:
            skipped = []
            if before is not None and before < wall - MINUTE:
                missing = round((wall - before) / MINUTE) - 1
                skipped = [before + MINUTE * n for n in range(1, missing + 1)]
            hit = wall not in shown and (
                fits(wall, fields) or any(fits(gone, fields) for gone in skipped)
            )
            shown.add(wall)
        before = wall
        if hit and now > after:
            yield now
        now += MINUTE


CHANGES = [
    datetime(2025, 3, 30, tzinfo=UTC),
    datetime(2025, 10, 26, tzinfo=UTC),
    datetime(2025, 3, 9, tzinfo=UTC),
    datetime(2025, 11, 2, tzinfo=UTC),
    datetime(2025, 10, 4, tzinfo=UTC),
    datetime(2025, 4, 5, tzinfo=UTC),
    datetime(2028, 2, 28, tzinfo=UTC),
    datetime(2025, 12, 31, tzinfo=UTC),
]
DAYS = st.one_of(st.just(ANY_DAY), field(1, 31))
WEEKDAYS = st.one_of(st.just(ANY_WEEKDAY), field(0, 7))
FIELDS = st.tuples(field(0, 59), field(0, 23), DAYS, st.just(ANY_MONTH), WEEKDAYS)


def stars(minute: str, hour: str) -> Fields:
    m = Field(minute, frozenset(range(60)[:: int(minute[2:] or 1)]))
    return m, Field(hour, frozenset([int(hour)])), ANY_DAY, ANY_MONTH, ANY_WEEKDAY


@pytest.mark.slow
@settings(max_examples=200)
@given(fields=FIELDS, zone=st.sampled_from(ZONES), change=st.sampled_from(CHANGES))
@example(fields=stars("*/10", "2"), zone="Australia/Lord_Howe", change=CHANGES[5])
@example(fields=stars("*/10", "1"), zone="Australia/Lord_Howe", change=CHANGES[5])
@example(fields=stars("*/10", "2"), zone="Australia/Lord_Howe", change=CHANGES[4])
def test_no_time_is_lost_or_doubled(fields: Fields, zone: str, change: datetime) -> None:
    text = " ".join(one.text for one in fields)
    after, until = change - timedelta(days=1), change + timedelta(days=2)
    wanted = list(brute(fields, zone, after, until))
    try:
        cron = Cron(text, zone)
    except UsageError:
        assert not wanted
        return
    found = []
    for at_us in cron.after(us(after)):
        if at_us > us(until):
            break
        found.append(datetime.fromtimestamp(at_us / 1e6, UTC))
    assert found == wanted
    # From whichever moment one asks, and from behind.
    for at, following in list(pairwise(found))[:: len(found) // 8 + 1]:
        assert next(cron.after(us(at))) == us(following)
        assert next(cron.after(us(at) - 1)) == us(at)
    last = cron.latest(us(after), us(until))
    assert last == (us(found[-1]) if found else None)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("hour", range(4))
def test_for_years_a_time_of_day_fires_once_a_day(zone: str, hour: int) -> None:
    tz = ZoneInfo(zone)
    start = datetime(2019, 12, 31, 12, tzinfo=tz)
    found = islice(Cron(f"30 {hour} * * *", zone).after(us(start)), 3650)
    days = [datetime.fromtimestamp(at / 1e6, tz).date() for at in found]
    assert days == [start.date() + timedelta(days=n) for n in range(1, 3651)]


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_for_years_each_hour_of_the_clock_fires(zone: str) -> None:
    """As many as there are hours, but for zones whose clock is put back by half of one."""
    tz = ZoneInfo(zone)
    start = datetime(2020, 1, 1, tzinfo=tz)
    found = list(islice(Cron("0 * * * *", zone).after(us(start)), 24 * 366 * 3))
    gaps = {(b - a) / 3_600e6 for a, b in pairwise(found)}
    assert gaps <= ({1.0} if "Lord_Howe" not in zone else {1.0, 1.5})
    assert len(set(found)) == len(found)
    minutes = {datetime.fromtimestamp(at / 1e6, tz).minute for at in found}
    assert minutes == {0}


@pytest.mark.parametrize(("after", "until"), [(0, 10), (59_000_000, 59_999_999)])
def test_from_behind_there_may_be_none(after: int, until: int) -> None:
    assert Cron("* * * * *").latest(after, until) is None


@pytest.mark.parametrize("years", [0.0001, 0.1, 3])
@pytest.mark.parametrize("text", ["* * * * *", "0 5 * * *", "0 0 29 2 *"])
def test_from_behind_a_year_of_minutes_is_not_walked(text: str, years: float) -> None:
    until = us(datetime(2026, 5, 17, 12, 30, 15, tzinfo=UTC))
    after = until - round(years * 366 * 86_400e6)
    last = Cron(text).latest(after, until)
    if last is not None:
        assert after < last <= until
        assert next(Cron(text).after(last)) > until
    else:
        assert next(Cron(text).after(after)) > until
