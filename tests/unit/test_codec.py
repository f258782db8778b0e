"""What travels is JSON that comes back as it went, or is refused with a reason."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.codec import (
    MAX_BODY,
    Body,
    decode_body,
    decode_error,
    decode_result,
    encode_body,
    encode_error,
    encode_result,
)
from bide.errors import PayloadError
from bide.retry import Retry

WHOLE = st.integers(-(2**63), 2**64 - 1)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | WHOLE
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=20,
)


def travel(*args: Any, **kwargs: Any) -> Body:
    return decode_body(encode_body(Body("app.tasks:send", args, kwargs)))


# -- bodies


@given(st.lists(PLAIN), st.dictionaries(st.text("abc", min_size=1), PLAIN))
def test_plain_values_come_back_as_they_went(args: list[Any], kwargs: dict[str, Any]) -> None:
    body = travel(*args, **kwargs)
    assert list(body.args) == args
    assert body.kwargs == kwargs


def test_options_travel_with_them() -> None:
    body = Body("app.tasks:send", [1], {"a": 2}, timeout=7.5, retry=Retry(3, "fixed", 2))
    assert decode_body(encode_body(body)) == body


def test_what_is_usual_takes_no_room() -> None:
    assert encode_body(Body("app.tasks:send")) == b'{"task":"app.tasks:send"}'


@pytest.mark.parametrize(
    "value", [2**53 + 1, 9007199254740993, 2**63 - 1, 2**64 - 1, -(2**63), 0.1, 1e308, 5e-324]
)
def test_numbers_keep_every_digit(value: float) -> None:
    (again,) = travel(value).args
    assert again == value
    assert type(again) is type(value)


@given(st.integers())
def test_a_whole_number_of_any_size_keeps_its_digits_or_is_refused(value: int) -> None:
    try:
        assert travel(value).args == [value]
    except PayloadError:
        assert not -(2**63) <= value < 2**64


@pytest.mark.parametrize("value", [[], {}, [[]], {"a": {}}, "", "\x00", "\U0001f600", [None]])
def test_what_lua_or_c_would_mangle_is_kept(value: object) -> None:
    assert travel(value).args == [value]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"a": [1, {"b": v}]}])
def test_nan_and_infinity_are_refused_wherever_they_are(value: float, wrap: Any) -> None:
    with pytest.raises(PayloadError, match=r"arguments of app.tasks:send hold a NaN"):
        travel(wrap(value))
    with pytest.raises(PayloadError, match="NaN or an infinity"):
        travel(key=wrap(value))
    with pytest.raises(PayloadError, match=r"result of app.tasks:send hold"):
        encode_result("app.tasks:send", wrap(value))


def test_a_none_or_the_word_null_is_not_taken_for_one() -> None:
    assert travel(None, "null", [None, 1.5], key=None).args == [None, "null", [None, 1.5]]


@pytest.mark.parametrize(
    "value",
    [object(), {1, object()}, lambda: 0, 1 + 2j, "\ud800", {("a", 1): 2}],
    ids=["object", "set", "lambda", "complex", "surrogate", "tuple-key"],
)
def test_what_does_not_fit_json_is_refused_with_a_way_out(value: object) -> None:
    with pytest.raises(PayloadError, match=r"arguments of app.tasks:send do not fit.*plain values"):
        travel(value)
    with pytest.raises(PayloadError, match=r"result of app.tasks:send does not fit JSON"):
        encode_result("app.tasks:send", value)


def test_values_nested_without_end_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PayloadError, match="do not fit JSON"):
        travel(endless)


@dataclass
class Order:
    id: uuid.UUID
    placed: datetime


def test_what_json_has_a_usual_form_for_travels_in_it() -> None:
    order = Order(uuid.UUID(int=7), datetime(2030, 1, 1, tzinfo=UTC))
    assert travel(order).args == [{"id": str(order.id), "placed": "2030-01-01T00:00:00Z"}]


@pytest.mark.parametrize("size", [MAX_BODY - 1000, MAX_BODY + 1])
def test_a_body_has_a_size_limit(size: int) -> None:
    if size < MAX_BODY:
        assert len(travel("x" * size).args[0]) == size
        return
    with pytest.raises(PayloadError, match=r"1,000,0\d\d bytes, more than 1,000,000; store the"):
        travel("x" * size)


def test_the_limit_counts_bytes_not_characters() -> None:
    with pytest.raises(PayloadError, match="more than 1,000,000"):
        travel("ß" * (MAX_BODY // 2))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"task":5}',
        b'{"task":"a:b","args":5}',
        b'{"task":"a:b","timeout":"soon"}',
        b'{"task":"a:b","retry":[-1]}',
        b'{"task":"a\xff"}',
        b"\x80\x04\x95",
        b"[" * 100_000,
    ],
)
def test_what_is_no_body_is_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(PayloadError, match="stored body is not one of bide's"):
        decode_body(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_an_error_of_ours(data: bytes) -> None:
    with suppress(PayloadError):
        decode_body(data)


def test_decoding_builds_nothing_but_plain_values() -> None:
    (value,) = travel({"__class__": "os.system", "py/object": "x", "$type": "y"}).args
    assert type(value) is dict


# -- results


@given(PLAIN)
def test_a_result_comes_back_as_it_went(result: Any) -> None:
    data = encode_result("app.tasks:send", result)
    assert decode_result(data) == result
    assert (data == b"") == (result is None)


def test_a_result_has_the_size_limit_of_a_body() -> None:
    with pytest.raises(PayloadError, match=r"result of app.tasks:send take 1,000,0\d\d bytes"):
        encode_result("app.tasks:send", "x" * MAX_BODY)


@pytest.mark.parametrize("data", [b"{", b"\xff", b'"\xff"', b"[" * 100_000])
def test_a_stored_result_that_cannot_be_read_is_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(PayloadError, match="stored result is not one of bide's"):
        decode_result(data)


def test_no_result_is_none() -> None:
    assert decode_result(None) is None
    assert decode_result(b"") is None


# -- errors


class Refused(Exception):
    pass


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class NoText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_error_is_its_type_its_message_and_where_it_came_from() -> None:
    info = decode_error(encode_error(raised(ValueError("no such order"))))
    assert info is not None
    assert (info.type, info.message) == ("ValueError", "no such order")
    assert "in raised" in info.traceback
    assert info.traceback.endswith("ValueError: no such order\n")


def test_a_type_of_ones_own_is_named_with_its_module() -> None:
    info = decode_error(encode_error(Refused("x")))
    assert info is not None
    assert info.type == f"{__name__}.Refused"


@pytest.mark.parametrize("kind", [BrokenText, NoText])
def test_a_broken_text_does_not_lose_the_outcome(kind: type[Exception]) -> None:
    info = decode_error(encode_error(raised(kind())))
    assert info is not None
    assert info.type.endswith(kind.__name__)
    assert "its __str__ raised" in info.message


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), ExceptionGroup("g", [ValueError()])]
)
def test_whatever_was_raised_is_described(error: BaseException) -> None:
    info = decode_error(encode_error(raised(error)))
    assert info is not None
    assert info.type == type(error).__name__


def test_lone_surrogates_are_replaced() -> None:
    info = decode_error(encode_error(raised(OSError("no file \udcff"))))
    assert info is not None
    assert info.message == "no file ?"


def test_a_long_story_is_cut_and_keeps_its_end() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        else:
            raise ValueError("x" * 100_000)

    with pytest.raises(ValueError, match=r"^x+$") as caught:
        deep(100)
    data = encode_error(caught.value)
    assert len(data) < 30_000
    info = decode_error(data)
    assert info is not None
    assert len(info.message) <= 8_000
    assert info.traceback.startswith("...\n")


def test_nothing_in_a_stored_error_is_rebuilt() -> None:
    info = decode_error(b'{"type":"builtins.SystemExit","message":"m","traceback":"t"}')
    assert info is not None
    assert not isinstance(info, BaseException)
    assert json.loads(encode_error(ValueError("m")))["type"] == "ValueError"


@pytest.mark.parametrize("data", [b"{", b"\xff", b"5", b'{"type":1,"message":"m"}'])
def test_an_error_that_cannot_be_read_says_so(data: bytes) -> None:
    info = decode_error(data)
    assert info is not None
    assert info.type == "unreadable"


def test_no_error_is_none() -> None:
    assert decode_error(None) is None
    assert decode_error(b"") is None
