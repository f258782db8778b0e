"""When a job that raised is due again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.errors import UsageError
from bide.retry import NO_RETRY, Retry, as_retry


def test_attempts_end_after_so_many_retries() -> None:
    retry = Retry(2)
    assert [retry.delay(attempt) is None for attempt in (1, 2, 3, 4)] == [False, False, True, True]


def test_no_retry_is_the_default() -> None:
    assert NO_RETRY.delay(1) is None
    assert as_retry(None) is NO_RETRY


def test_a_number_is_a_number_of_retries() -> None:
    assert as_retry(5) == Retry(5)
    assert as_retry(Retry(2, base=9)) == Retry(2, base=9)


def test_a_fixed_delay_is_the_same_each_time() -> None:
    retry = Retry(5, backoff="fixed", base=7)
    assert [retry.delay(attempt) for attempt in (1, 2, 5)] == [7, 7, 7]


@given(st.integers(1, 10_000), st.floats(0, 1000), st.floats(0, 100_000))
def test_an_exponential_delay_is_drawn_from_nought_to_a_doubling_ceiling(
    attempt: int, base: float, cap: float
) -> None:
    delay = Retry(10_000, base=base, cap=cap).delay(attempt)
    assert delay is not None
    assert 0 <= delay <= min(cap, base * 2.0 ** min(attempt - 1, 64))


def test_it_is_drawn_anew_each_time() -> None:
    retry = Retry(10, base=60)
    drawn = {retry.delay(3) for _ in range(50)}
    assert len(drawn) > 40
    assert max(d for d in drawn if d) > 60, "the third ceiling is four times the base"


@pytest.mark.parametrize("count", [-1, 1.5, True, "3", None])
def test_a_number_of_retries_is_a_whole_number(count: Any) -> None:
    with pytest.raises(UsageError, match=r"Retry\(max=.*0 or more"):
        Retry(count)


@pytest.mark.parametrize("name", ["base", "cap"])
@pytest.mark.parametrize("value", ["1m", None, [1], -1, float("nan"), float("inf"), 1e12, True])
def test_delays_are_seconds(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"Retry.*{name}"):
        Retry(3, **{name: value})


def test_a_backoff_has_one_of_two_names() -> None:
    with pytest.raises(UsageError, match="'exponential' or 'fixed'"):
        Retry(3, backoff="linear")  # type: ignore[arg-type]


def test_what_was_stored_by_another_is_checked_as_well() -> None:
    assert msgspec.json.decode(b'[5,"fixed",2]', type=Retry) == Retry(5, "fixed", 2)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b"[-1]", type=Retry)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'[5,"fixed","1m"]', type=Retry)


@given(
    st.builds(
        Retry,
        st.integers(0, 1000),
        st.sampled_from(["exponential", "fixed"]),
        st.floats(0, 1e6),
        st.floats(0, 1e6),
    )
)
def test_a_retry_travels_unchanged(retry: Retry) -> None:
    assert msgspec.json.decode(msgspec.json.encode(retry), type=Retry) == retry
