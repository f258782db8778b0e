"""Durations and moments as users write them, in whole microseconds."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.errors import UsageError
from bide.model.durations import LONGEST_US, at_to_us, delay_to_us, describe, from_us, to_us

UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}


@pytest.mark.parametrize(
    ("duration", "us"),
    [
        (0, 0),
        (30, 30_000_000),
        (0.25, 250_000),
        (1e-6, 1),
        (timedelta(minutes=30), 1_800_000_000),
        (timedelta(microseconds=1), 1),
        ("30", 30_000_000),
        ("0.5", 500_000),
        ("30s", 30_000_000),
        ("30m", 1_800_000_000),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("1 h 30 m", 5_400_000_000),
        ("1.5h", 5_400_000_000),
        (" 2d ", 172_800_000_000),
        ("1w", 604_800_000_000),
        ("250ms", 250_000),
        ("1s5ms7us", 1_005_007),
        ("0s", 0),
    ],
)
def test_a_duration_in_microseconds(duration: Any, us: int) -> None:
    assert to_us(duration) == us
    assert type(to_us(duration)) is int


NEGATIVE = (-1, -0.001, -1e-9, "-5", "- 5m", "-1h30m", timedelta(microseconds=-1), -timedelta(1))


@pytest.mark.parametrize("duration", NEGATIVE)
def test_negative_is_refused(duration: Any) -> None:
    with pytest.raises(UsageError, match=r"lease must not be negative, but is .*; give 0 or more"):
        to_us(duration, "lease")


@pytest.mark.parametrize("delay", [*NEGATIVE, -1e300, 0, 0.0, "0s"])
def test_a_delay_that_has_passed_means_now(delay: Any) -> None:
    assert delay_to_us(delay) == 0
    assert type(delay_to_us(delay)) is int


@pytest.mark.parametrize("delay", [0.25, "1h30m", timedelta(minutes=30), 7])
def test_a_delay_ahead_is_a_duration(delay: Any) -> None:
    assert delay_to_us(delay) == to_us(delay)


@pytest.mark.parametrize("delay", ["-soon", "--5", "-", "5s-1s", float("-inf"), float("nan"), None])
def test_a_delay_that_is_no_duration_is_refused(delay: Any) -> None:
    with pytest.raises(UsageError, match=r"^delay(=| must be)"):
        delay_to_us(delay)


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused(duration: float) -> None:
    with pytest.raises(UsageError, match="finite number of seconds"):
        to_us(duration)


@pytest.mark.parametrize(
    "duration",
    [LONGEST_US / 1e6 + 1, 1e300, 1e303, 10**400, timedelta(days=365 * 200), "101000w", "9" * 400],
)
def test_over_a_hundred_years_is_taken_for_a_mistake(duration: Any) -> None:
    with pytest.raises(UsageError, match=r"over a hundred years; is the unit seconds\?"):
        to_us(duration)


def test_a_hundred_years_are_not() -> None:
    assert to_us(LONGEST_US // 1_000_000) == LONGEST_US
    assert to_us(timedelta(days=100 * 366)) == LONGEST_US


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "5 minutes",
        "1h30",
        "1 30",
        "1 10s",
        "1. 5s",
        "1 m s",
        "m",
        "1e3",
        "1,5s",
        "+5s",
        "5x",
        "1_000",
        "0x10",
        "5s-1s",
    ],
)
def test_text_that_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a duration.*'250ms', '30s', '1h30m', '2d'"):
        to_us(text)


@pytest.mark.parametrize("text", ["6M", "1H30m", " 2D ", "-5S", "250MS"])
def test_a_capital_unit_is_refused_since_m_are_minutes(text: str) -> None:
    with pytest.raises(UsageError, match=r"has a unit in capitals; the units .* m \(minutes\)"):
        to_us(text)


@pytest.mark.parametrize("value", [True, False, None, b"5", Decimal(5), [5], datetime(2030, 1, 1)])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=rf"seconds, a timedelta or text.*{type(value).__name__}"):
        to_us(value)


def test_an_error_names_the_argument() -> None:
    with pytest.raises(UsageError, match=r"^timeout must not be negative"):
        to_us(-1, "timeout")
    with pytest.raises(UsageError, match=r"^lease='x' is not"):
        to_us("x", "lease")


@given(st.integers(0, LONGEST_US))
def test_no_microsecond_is_lost(us: int) -> None:
    assert to_us(timedelta(microseconds=us)) == us
    assert to_us(f"{us}us") == us
    if us < 2**52:  # seconds as a float carry so much
        assert to_us(us / 1_000_000) == us


@given(st.dictionaries(st.sampled_from(list(UNITS)), st.integers(0, 400), min_size=1))
def test_parts_add_up(parts: dict[str, int]) -> None:
    text = "".join(f"{count}{unit}" for unit, count in parts.items())
    assert to_us(text) == sum(count * UNITS[unit] for unit, count in parts.items()) * 1_000_000


@pytest.mark.slow
@given(st.text() | st.floats() | st.integers() | st.timedeltas() | st.booleans() | st.none())
def test_anything_is_a_duration_or_a_usage_error(value: Any) -> None:
    with suppress(UsageError):
        assert 0 <= to_us(value) <= LONGEST_US


# -- moments


def test_a_moment_in_microseconds() -> None:
    assert at_to_us(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert at_to_us(datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)) == 1_893_456_000_000_001


def test_a_time_zone_is_what_makes_it_a_moment() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert at_to_us(datetime(2030, 1, 1, 9, tzinfo=tokyo)) == at_to_us(
        datetime(2030, 1, 1, tzinfo=UTC)
    )


def test_a_naive_datetime_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match=r"2030-01-01T12:00:00 has no time zone.*astimezone\(\)"):
        at_to_us(datetime(2030, 1, 1, 12))


def test_a_time_zone_that_says_nothing_is_no_time_zone() -> None:
    class Mute(tzinfo):
        def utcoffset(self, at: datetime | None) -> None:
            return None

        def dst(self, at: datetime | None) -> None:
            return None

        def tzname(self, at: datetime | None) -> str:
            return "?"

    with pytest.raises(UsageError, match="has no time zone"):
        at_to_us(datetime(2030, 1, 1, tzinfo=Mute()))


@pytest.mark.parametrize("year", [1, 1969, 2200, 9999])
def test_a_moment_far_from_now_is_taken_for_a_mistake(year: int) -> None:
    with pytest.raises(UsageError, match="outside the years 1970 to 2199"):
        at_to_us(datetime(year, 6, 1, tzinfo=UTC))


@pytest.mark.parametrize("value", [1_700_000_000, "2030-01-01", None, timedelta(1)])
def test_only_a_datetime_is_a_moment(value: Any) -> None:
    with pytest.raises(UsageError, match=rf"aware datetime, not {type(value).__name__}"):
        at_to_us(value)


@given(
    st.datetimes(
        datetime(1970, 1, 2),
        datetime(2199, 12, 30),
        timezones=st.timezones() | st.just(UTC),
    )
)
def test_moments_come_back_as_they_were(at: datetime) -> None:
    again = from_us(at_to_us(at))
    assert again == at.astimezone(UTC)
    assert again.utcoffset() == timedelta(0)


@given(st.integers(0, 7_258_118_399_999_999))
def test_so_do_microseconds(us: int) -> None:
    assert at_to_us(from_us(us)) == us


# -- for people


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0us"),
        (0.00025, "250us"),
        (0.0041, "4.1ms"),
        (0.25, "250ms"),
        (0.9994, "999ms"),
        (0.9996, "1s"),
        (1, "1s"),
        (12.54, "12.5s"),
        (119.4, "119s"),
        (120, "2m"),
        (5400, "1h30m"),
        (5401, "1h30m"),
        (90_000, "1d1h"),
        (-12.5, "-12.5s"),
        (-0.0041, "-4.1ms"),
    ],
)
def test_a_duration_as_people_read_it(seconds: float, text: str) -> None:
    assert describe(seconds) == text


@given(st.floats(0, 1e9))
def test_what_is_described_can_be_read_back(seconds: float) -> None:
    text = describe(seconds)
    assert "e" not in text
    assert to_us(text) / 1e6 == pytest.approx(seconds, rel=0.05, abs=1e-6)


def test_a_moment_as_a_delay_is_told_its_argument() -> None:
    with pytest.raises(UsageError, match=r"not datetime; a moment is given as at=\.$"):
        delay_to_us(datetime.now(UTC))  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", ["2030-12-01", 1_900_000_000.5])
def test_what_is_not_a_moment_is_told_how_to_write_one(odd: Any) -> None:
    with pytest.raises(
        UsageError, match=r"aware datetime, not \w+; write for example datetime\.now"
    ):
        at_to_us(odd)
