"""Whether, and when, a job that raised is due again."""

from __future__ import annotations

import asyncio
import copy
import email.errors
import functools
import http.client
import json
import logging
import pickle
import sys
import types
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.errors import JobTimeout, UsageError
from bide.model.durations import Duration
from bide.model.retry import NO_RETRY, Retry, as_retry

ERROR = ValueError("no")


class Refused(Exception):
    class Twice(Exception):
        pass


class RefusedAgain(Refused):
    pass


def by_attempt(attempt: int, error: BaseException) -> str | None:
    """As users write one: a delay as text, and an end."""
    return f"{attempt}m" if attempt < 3 else None


def after_error(attempt: int, error: BaseException) -> float:
    return float(str(error))


def broken(attempt: int, error: BaseException) -> float:
    raise ZeroDivisionError


def negative(attempt: int, error: BaseException) -> float:
    return -1.0


HERE = {f"{__name__}:{f.__name__}": f for f in (by_attempt, after_error, broken)}


def delays(retry: Retry, attempts: int, resolve: Any = None) -> list[float | None]:
    return [retry.decide(n, ERROR, 0, resolve) for n in range(1, attempts + 1)]


def travel(retry: Retry) -> Retry:
    return Retry.from_wire(json.loads(json.dumps(retry.wire())))


# -- how often


def test_attempts_end_after_so_many_retries() -> None:
    assert [delay is None for delay in delays(Retry(2), 4)] == [False, False, True, True]


def test_no_retry_is_the_default() -> None:
    assert NO_RETRY.decide(1, ERROR) is None
    assert as_retry(None) is NO_RETRY


def test_a_first_wait_above_the_cap_is_refused_where_a_policy_is_given() -> None:
    with pytest.raises(UsageError, match=r"base=7200, cap=3600.*give a cap= that is not shorter"):
        as_retry(Retry(3, base="2h"))
    as_retry(Retry(3, base="2h", cap="2h"))
    as_retry(Retry(3, backoff="fixed", base="2h"))


def test_a_number_is_a_number_of_retries() -> None:
    assert as_retry(5) == Retry(5)
    assert as_retry(Retry(2, base=9)) == Retry(2, base=9)


def test_a_policy_alone_means_three_or_what_its_list_has() -> None:
    assert Retry().max == 3
    assert Retry(backoff="fixed").max == 3
    assert Retry(backoff=[1, 5]).max == 2
    assert Retry(5, backoff=[1, 5]).max == 5
    assert Retry(0, backoff=[1, 5]).decide(1, ERROR) is None


@pytest.mark.parametrize("count", [-1, 1.5, True, "3", [1]])
def test_a_number_of_retries_is_a_whole_number(count: Any) -> None:
    with pytest.raises(UsageError, match=r"Retry\(max=.*0 or more"):
        Retry(count)


# -- how soon


def test_a_fixed_delay_is_the_same_each_time() -> None:
    assert delays(Retry(3, backoff="fixed", base="7s"), 4) == [7, 7, 7, None]


@given(st.integers(1, 10_000), st.floats(0, 1000), st.floats(0, 100_000))
def test_an_exponential_delay_is_drawn_from_nought_to_a_doubling_ceiling(
    attempt: int, base: float, cap: float
) -> None:
    retry = Retry(10_000, base=base, cap=cap)
    delay = retry.decide(attempt, ERROR)
    assert delay is not None
    assert 0 <= delay <= min(retry.cap, retry.base * 2.0 ** min(attempt - 1, 64))


def test_it_is_drawn_anew_each_time() -> None:
    retry = Retry(10, base=60)
    drawn = {retry.decide(3, ERROR) for _ in range(50)}
    assert len(drawn) > 40
    assert max(d for d in drawn if d) > 60, "the third ceiling is four times the base"


def test_a_list_has_a_delay_for_each_and_its_last_repeats() -> None:
    steps: list[Duration] = [1, timedelta(seconds=5), "1m"]
    assert delays(Retry(backoff=steps), 4) == [1, 5, 60, None]
    assert delays(Retry(5, steps), 6) == [1, 5, 60, 60, 60, None]
    assert delays(Retry(1, steps), 2) == [1, None]


def test_a_function_is_asked_and_may_give_up() -> None:
    assert delays(Retry(5, by_attempt), 4) == [60, 120, None, None]
    assert delays(Retry(1, by_attempt), 2) == [60, None], "max bounds it"
    assert Retry(5, after_error).decide(1, ValueError("2.5")) == 2.5


@pytest.mark.parametrize("backoff", [broken, negative, "app.tasks:missing", "nobody:asked"])
def test_a_function_of_no_use_is_logged_and_delays_grow_as_usual(
    backoff: Any, caplog: pytest.LogCaptureFixture
) -> None:
    resolve = HERE.__getitem__ if backoff == "app.tasks:missing" else None
    with caplog.at_level(logging.ERROR, "bide.model.retry"):
        found = delays(Retry(2, backoff, base=8, cap=10), 3, resolve)
    assert found[0] is not None
    assert found[1] is not None
    assert 0 <= found[0] <= 8
    assert 0 <= found[1] <= 10
    assert found[2] is None
    assert getattr(backoff, "__qualname__", backoff) in caplog.text


@pytest.mark.parametrize("value", ["1m", 60, 60.0, timedelta(minutes=1)])
def test_durations_are_what_they_are_everywhere_and_kept_as_seconds(value: Any) -> None:
    retry = Retry(1, [value], base=value, cap=value, max_time=value)
    assert (retry.backoff, retry.base, retry.cap, retry.max_time) == ((60.0,), 60.0, 60.0, 60.0)
    assert isinstance(retry.base, float)


@pytest.mark.parametrize("name", ["base", "cap", "max_time"])
@pytest.mark.parametrize("value", ["soon", [1], -1, float("nan"), float("inf"), 1e12, True])
def test_what_is_no_duration_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"Retry.*{name}"):
        Retry(3, **{name: value})


@pytest.mark.parametrize(
    "backoff", ["linear", "", "app.tasks", ":f", "a:b c", [], (), 5, None, {}, {1, 2}, ValueError]
)
def test_a_backoff_that_cannot_be_meant_is_refused(backoff: Any) -> None:
    with pytest.raises(UsageError, match=r"Retry\(backoff=.*'exponential' or 'fixed', a list"):
        Retry(3, backoff)


@pytest.mark.parametrize("step", [-1, "soon", None, True])
def test_a_step_that_is_no_duration_is_refused(step: Any) -> None:
    with pytest.raises(UsageError, match="Retry backoff"):
        Retry(3, [1, step])


# -- how long


def test_no_attempt_is_due_after_max_time() -> None:
    retry = Retry(9, "fixed", base=10, max_time="1m")
    assert retry.decide(1, ERROR, 0) == 10
    assert retry.decide(5, ERROR, 50) == 10, "due at the last moment"
    assert retry.decide(5, ERROR, 50.001) is None
    assert retry.decide(1, ERROR, 100) is None


# -- after which errors


@pytest.mark.parametrize(
    ("on", "error", "again"),
    [
        (TimeoutError, TimeoutError(), True),
        (TimeoutError, JobTimeout(), True),
        (TimeoutError, ERROR, False),
        (OSError, ConnectionResetError(), True),
        ((OSError, ValueError), ERROR, True),
        ([], ERROR, True),
        (BaseException, KeyboardInterrupt(), True),
        (Exception, KeyboardInterrupt(), False),
        ("TimeoutError", TimeoutError(), True),
        ("builtins.TimeoutError", TimeoutError(), True),
        ("asyncio.TimeoutError", TimeoutError(), True),
        ("asyncio:TimeoutError", TimeoutError(), True),
        (Refused, RefusedAgain(), True),
        (RefusedAgain, Refused(), False),
        (f"{__name__}.Refused", RefusedAgain(), True),
        (f"{__name__}:Refused", Refused(), True),
        (f"{__name__}:Refused.Twice", Refused.Twice(), True),
        (f"{__name__}:Refused.Twice", Refused(), False),
        ("other.Refused", Refused(), False),
        ("app.errors:Bad", Refused(), False),
        ("http.HTTPException", http.client.HTTPException(), True),
        ("http.HTTPException", http.client.BadStatusLine("x"), True),
        ("htt.HTTPException", http.client.HTTPException(), False),
        ("email.MessageError", email.errors.MessageParseError(), True),
        ("email.MessageParseError", email.errors.MessageError(), False),
        (["no.such.Error", ValueError], ERROR, True),
    ],
)
def test_only_these_errors_are_tried_again_and_never_those(
    on: Any, error: BaseException, again: bool
) -> None:
    for retry in (Retry(1, "fixed", on=on), travel(Retry(1, "fixed", on=on))):
        assert retry.decide(1, error) == (1.0 if again else None)
    if on:
        for retry in (Retry(1, never_on=on), travel(Retry(1, never_on=on))):
            assert (retry.decide(1, error) is None) == again


def test_never_wins() -> None:
    retry = Retry(1, on=OSError, never_on=ConnectionError)
    assert retry.decide(1, FileNotFoundError()) is not None
    assert retry.decide(1, ConnectionResetError()) is None


def test_an_error_goes_by_its_name_and_names_are_what_is_kept() -> None:
    assert Retry(1, on=(ValueError, Refused)).on == ("ValueError", f"{__name__}.Refused")
    assert Retry(1, on="app.errors:Bad").on == ("app.errors.Bad",)
    assert Retry(1, never_on="asyncio.CancelledError").never_on == (
        f"{asyncio.CancelledError.__module__}.CancelledError",
    )


def test_a_module_that_is_imported_after_the_policy_may_rename_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = types.ModuleType("imported_later")
    late.Refused = Refused  # type: ignore[attr-defined]
    name = "imported_later.Refused"
    made = Retry(1, on=name), travel(Retry(1, on=name))
    final = Retry(1, never_on=name), travel(Retry(1, never_on=name))
    monkeypatch.setitem(sys.modules, late.__name__, late)
    assert all(retry.decide(1, RefusedAgain()) is not None for retry in made)
    assert all(retry.decide(1, RefusedAgain()) is None for retry in final)


def local_error(name: str = "Local") -> type[Exception]:
    class Local(Exception):
        pass

    Local.__qualname__ = Local.__qualname__.replace("Local", name)
    return Local


def test_an_error_may_be_a_class_inside_of_a_function() -> None:
    local, other = local_error(), local_error("Other")
    for retry in (Retry(1, on=local), travel(Retry(1, on=local))):
        assert retry.decide(1, local()) is not None
        assert retry.decide(1, other()) is None


def test_a_class_whose_name_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Retry\(on='.*Bad Thing'\): give exception classes"):
        Retry(1, on=local_error("Bad Thing"))


def test_naming_an_error_imports_nothing() -> None:
    name = "this.NoSuchError"  # importing `this` prints a poem
    assert "this" not in sys.modules
    for retry in (Retry(1, on=name), travel(Retry(1, on=name))):
        assert retry.decide(1, ERROR) is None
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    "error", [int, 5, None, ValueError(), "", "a b", "a..b", "NoSuchError", ["HTTPError"], "print"]
)
def test_what_names_no_error_is_refused(error: Any) -> None:
    with pytest.raises(UsageError, match=r"Retry\(on=.*(exception|module)"):
        Retry(1, on=error)


# -- as a value


def test_it_is_a_value() -> None:
    retry = Retry(5, [1, 2], on=ValueError)
    assert retry == Retry(5, [1.0, "2s"], on="ValueError")
    assert hash(retry) == hash(Retry(5, (1, 2), on=["ValueError"]))
    assert retry != Retry(5, [1, 2])
    assert retry != object()
    assert repr(retry) == "Retry(max=5, backoff=(1.0, 2.0), on=('ValueError',))"
    assert copy.deepcopy(retry) == pickle.loads(pickle.dumps(retry)) == retry
    with pytest.raises(AttributeError, match="immutable"):
        retry.max = 7  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable"):
        del retry.max


# -- as it is stored


@pytest.mark.parametrize(
    ("retry", "stored"),
    [
        (Retry(5), "5"),
        (Retry(0), "0"),
        (Retry(), "3"),
        (Retry(5, "fixed", 2), '[5,"fixed",2.0]'),
        (Retry(backoff=[1, 5, "1m"]), "[3,[1.0,5.0,60.0]]"),
        (Retry(5, max_time="1h"), "[5,null,null,null,3600.0]"),
        (Retry(5, on=OSError), '[5,null,null,null,null,["OSError"]]'),
        (Retry(5, by_attempt), f'[5,"{__name__}:by_attempt"]'),
    ],
)
def test_it_takes_little_room(retry: Retry, stored: str) -> None:
    assert json.dumps(retry.wire(), separators=(",", ":")) == stored


NAMES = st.sampled_from(["OSError", "httpx.HTTPError", "app.errors:Bad", "asyncio.TimeoutError"])


@given(
    st.builds(
        Retry,
        st.none() | st.integers(0, 1000),
        st.sampled_from(["exponential", "fixed", "app.tasks:delays"])
        | st.lists(st.floats(0, 1e6), min_size=1),
        st.floats(0, 1e6),
        st.floats(0, 1e6),
        st.none() | st.floats(0, 1e6),
        st.lists(NAMES),
        st.lists(NAMES),
    )
)
def test_a_retry_travels_unchanged(retry: Retry) -> None:
    assert travel(retry) == retry


def test_a_function_travels_by_name_and_is_looked_up_by_whoever_decides() -> None:
    retry = travel(Retry(5, by_attempt))
    assert retry.backoff == f"{__name__}:by_attempt"
    assert delays(retry, 3, HERE.__getitem__) == [60, 120, None]
    assert delays(Retry(5, f"{__name__}:by_attempt"), 2, HERE.__getitem__) == [60, 120]


def nested() -> Callable[[int, BaseException], float]:
    return lambda attempt, error: 1.0


class AsyncWaiter:
    def wait(self, attempt: int, error: BaseException) -> float:
        return 1.0


@pytest.mark.parametrize("backoff", [nested(), functools.partial(negative), AsyncWaiter().wait])
def test_a_function_without_a_name_serves_a_task_but_no_body(backoff: Any) -> None:
    retry = Retry(1, backoff)
    assert retry.decide(2, ERROR) is None
    with pytest.raises(UsageError, match=r"cannot be stored with a job.*top level of a module"):
        retry.wire()


def test_a_function_of_the_program_itself_has_no_name_either() -> None:
    def delay(attempt: int, error: BaseException) -> float:
        return 1.0

    delay.__module__, delay.__qualname__ = "__main__", "delay"
    with pytest.raises(UsageError, match="cannot be stored with a job"):
        Retry(1, delay).wire()


def test_what_a_later_version_added_is_passed_over() -> None:
    stored = [5, "fixed", 2, None, None, None, None, {"new": 1}, 7]
    assert Retry.from_wire(stored) == Retry(5, "fixed", 2)


@pytest.mark.parametrize(
    "stored", [-1, [-1], [], ["5"], None, "5", {}, [5, "linear"], [5, None, "x"], [None, [1, 2]]]
)
def test_what_is_no_policy_is_refused(stored: Any) -> None:
    with pytest.raises(UsageError):
        Retry.from_wire(stored)
