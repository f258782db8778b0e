"""What travels comes back as it went, or is refused with a reason."""

from __future__ import annotations

import json
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.errors import PayloadError, UsageError
from bide.model.payload.body import (
    MAX_BODY,
    Body,
    decode_body,
    decode_envelope,
    decode_error,
    decode_result,
    encode_body,
    encode_error,
    encode_result,
)
from bide.model.payload.serializers import CODECS, Codec
from bide.model.retry import Retry

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


ALL_CODECS = pytest.mark.parametrize("codec", CODECS)


def travel(*args: Any, codec: Codec = "json", **kwargs: Any) -> Body:
    data = encode_body(Body("app.tasks:send", args, kwargs, codec=codec))
    return decode_body(data, allow_pickle=True)


# -- bodies


@pytest.mark.slow
@ALL_CODECS
@given(args=st.lists(PLAIN), kwargs=st.dictionaries(st.text("abc", min_size=1), PLAIN))
def test_plain_values_come_back_as_they_went(
    codec: Codec, args: list[Any], kwargs: dict[str, Any]
) -> None:
    body = travel(*args, codec=codec, **kwargs)
    assert list(body.args) == args
    assert body.kwargs == kwargs


def policy(attempt: int, error: BaseException) -> float:
    return 1.0


@ALL_CODECS
@pytest.mark.parametrize("retry", [None, Retry(0), Retry(3, "fixed", 2), Retry(9, [1], on=OSError)])
def test_options_travel_with_them(codec: Codec, retry: Retry | None) -> None:
    body = Body(
        "app.tasks:send",
        [1],
        {"a": 2},
        timeout=7.5,
        retry=retry,
        keep=0.0,
        on_crash="fail",
        meta={"tenant": "é\n", "n": [1, None]},
        description="tenant é's",
        on_success="app.tasks:next",
        on_failure="app.tasks:undo",
        codec=codec,
    )
    assert decode_body(encode_body(body), allow_pickle=True) == body


def test_what_is_usual_takes_no_room() -> None:
    assert encode_body(Body("app.tasks:send")) == b'{"task":"app.tasks:send"}'
    assert encode_body(Body("a:b", (1,), {"c": 2})) == b'{"task":"a:b","args":[1],"kwargs":{"c":2}}'
    assert encode_body(Body("a:b", retry=Retry(5))) == b'{"task":"a:b","retry":5}'


def test_a_retry_that_no_worker_could_find_is_refused_as_such() -> None:
    with pytest.raises(UsageError, match="cannot be stored with a job"):
        encode_body(Body("a:b", retry=Retry(5, lambda attempt, error: 1.0)))
    stored = encode_body(Body("a:b", retry=Retry(5, policy)))
    assert decode_body(stored).retry == Retry(5, f"{__name__}:policy")


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
    with pytest.raises(
        PayloadError, match=r"^positional argument 2 of app.tasks:send: holds a NaN"
    ):
        travel(1, wrap(value))
    with pytest.raises(PayloadError, match=r"^argument 'key' of .*NaN or an infinity"):
        travel(1, key=wrap(value), other=None)
    with pytest.raises(PayloadError, match=r"^meta 'tenant' of .*NaN or an infinity"):
        encode_body(Body("app.tasks:send", meta={"tenant": wrap(value)}))
    with pytest.raises(PayloadError, match=r"^meta 'tenant' of .*NaN or an infinity"):
        encode_body(Body("app.tasks:send", meta={"tenant": wrap(value)}, codec="msgpack"))
    with pytest.raises(PayloadError, match=r"result of app.tasks:send: holds a NaN"):
        encode_result("app.tasks:send", wrap(value))


def test_a_none_or_the_word_null_is_not_taken_for_one() -> None:
    assert travel(None, "null", [None, 1.5], key=None).args == [None, "null", [None, 1.5]]


@pytest.mark.parametrize(
    "value",
    [object(), {1, object()}, lambda: 0, 1 + 2j, "\ud800", {("a", object()): 2}],
    ids=["object", "set", "lambda", "complex", "surrogate", "tuple-key"],
)
def test_what_does_not_fit_is_refused_with_a_way_out(value: object) -> None:
    codecs: list[tuple[Codec, str]] = [("json", "JSON"), ("msgpack", "msgpack")]
    for codec, named in codecs:
        with pytest.raises(PayloadError, match=rf"^positional.* fit {named}.*plain values.*an id"):
            travel(value, codec=codec)
        with pytest.raises(PayloadError, match=rf"The result of app.tasks:send: .* fit {named}"):
            encode_result("app.tasks:send", value, codec)


def test_values_nested_without_end_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PayloadError, match="does not fit JSON"):
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


def test_what_is_too_large_is_refused_before_it_is_sent() -> None:
    with pytest.raises(PayloadError, match=r"^The arguments of a:b take 1,000,0\d\d bytes"):
        encode_body(Body("a:b", ("x" * MAX_BODY,)))


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


NUMBER = (
    st.sampled_from(["0", "-0.0", "-1", "-1e-9", "1e13", "1e300", "1e999", "-1e999", "NaN", "true"])
    | st.sampled_from(["Infinity", "3162240000", "3162240000.1", "9" * 40, '"1h"', "5e-324"])
    | st.integers().map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
)
HUNDRED_YEARS = 100 * 366 * 86_400


@pytest.mark.slow
@ALL_CODECS
@pytest.mark.parametrize("field", ["timeout", "keep", "base", "cap", "max_time", "backoff", "max"])
@given(number=NUMBER)
def test_a_number_that_cannot_be_meant_is_no_body(codec: Codec, field: str, number: str) -> None:
    """Other programs write bodies too; what one of them says must not reach a script as it is."""
    whole = {
        "timeout": f'"timeout":{number}',
        "keep": f'"keep":{number}',
        "max": f'"retry":{number}',
        "backoff": f'"retry":[3,[{number}]]',
        "base": f'"retry":[3,"fixed",{number}]',
        "cap": f'"retry":[3,"exponential",1,{number}]',
        "max_time": f'"retry":[3,"exponential",1,1,{number}]',
    }[field]
    data = encode_body(Body("a:b", (1,), codec=codec))
    data = data.replace(b'{"task":"a:b"', b'{"task":"a:b",' + whole.encode(), 1)
    try:
        body = decode_envelope(data).body
    except PayloadError:
        return
    assert body.timeout is None or 0 < body.timeout <= HUNDRED_YEARS
    assert body.keep is None or re.fullmatch(r"\d{1,16}", str(round(body.keep * 1e6)))
    if body.retry is not None:
        retry = body.retry
        delays = retry.backoff if isinstance(retry.backoff, tuple) else ()
        for seconds in (retry.max, *delays, retry.base, retry.cap, retry.max_time or 0):
            assert seconds >= 0
            assert seconds <= HUNDRED_YEARS or seconds is retry.max


@pytest.mark.parametrize("option", ["timeout", "keep"])
@pytest.mark.parametrize("number", ["1e13", "-1", "3162240001"])
def test_which_number_it_was_is_said(option: str, number: str) -> None:
    with pytest.raises(PayloadError, match=rf"not one of bide's: Expected .*\.{option}"):
        decode_envelope(f'{{"task":"a:b","{option}":{number}}}'.encode())


@pytest.mark.parametrize("option", [{"timeout": 1e-6}, {"keep": 0.0}, {"keep": HUNDRED_YEARS}])
def test_what_a_producer_may_say_is_read(option: dict[str, Any]) -> None:
    body = Body("a:b", **option)
    assert decode_body(encode_body(body)) == body


# -- the other codecs


NATIVE = [b"\x00\xff", datetime(2030, 1, 1, tzinfo=UTC), {1: 2}, {"a": [b"", {"b": b"\n"}]}]


@pytest.mark.parametrize("value", [*NATIVE, float("inf")], ids=repr)
def test_msgpack_has_more_types_than_json(value: object) -> None:
    assert travel(value, codec="msgpack", key=value).args == [value]


@pytest.mark.parametrize(
    "value", [*NATIVE, {1, 2}, (1, [2]), 10**30, 1 + 2j, "\ud800", ...], ids=repr
)
def test_pickle_has_all(value: object) -> None:
    body = travel(value, codec="pickle", key=value)
    assert (body.args, body.kwargs) == ((value,), {"key": value})


@ALL_CODECS
def test_arguments_hold_newlines(codec: Codec) -> None:
    assert list(travel("a\nb", "\n", codec=codec, key="\n\n").args) == ["a\nb", "\n"]


@ALL_CODECS
def test_text_that_ends_like_a_signature_is_refused_unless_the_codec_escapes_it(
    codec: Codec,
) -> None:
    text = "a\n\x04 k " + "a" * 64
    if codec == "json":
        assert list(travel(text, codec=codec).args) == [text]
        assert decode_result(encode_result("app.tasks:send", text, codec)) == text
        return
    if codec == "msgpack":  # a pickle ends with a dot
        with pytest.raises(PayloadError, match=r"arguments of .* end like a signature of bide"):
            encode_body(Body("app.tasks:send", (), {"x": text}, codec=codec))
        with pytest.raises(PayloadError, match=r"result of .* ends like a signature of bide"):
            encode_result("app.tasks:send", text, codec)
    assert list(travel(text, codec=codec).args) == [text], "the dict of kwargs follows it"


class Bomb:
    went_off = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (Bomb.go_off, ())

    @staticmethod
    def go_off() -> int:
        Bomb.went_off += 1
        return Bomb.went_off


def test_a_pickle_is_read_only_by_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bomb, "went_off", 0)
    body = encode_body(Body("app.tasks:send", (Bomb(),), timeout=5, codec="pickle"))
    result = encode_result("app.tasks:send", Bomb(), "pickle")
    with pytest.raises(
        PayloadError,
        match=r"app.tasks:send are pickled.*SIGNING_KEYS.*--allow-pickle`.*allow_pickle=",
    ):
        decode_body(body)
    with pytest.raises(PayloadError, match=r'result is pickled.*Queue\(..., serializer="pickle"'):
        decode_result(result)
    envelope = decode_envelope(body)
    assert (envelope.body.task, envelope.body.timeout) == ("app.tasks:send", 5.0)
    assert Bomb.went_off == 0
    assert decode_body(body, allow_pickle=True).args == (1,)
    assert decode_result(result, allow_pickle=True) == 2


@pytest.mark.parametrize("codec", ["msgpack", "pickle"])
@pytest.mark.parametrize(
    "packed", [b"", b"\xc1", b"\x05", b"\x92\x05\x05", b"cno.module\nf\n.", b"."]
)
def test_arguments_that_cannot_be_read_leave_the_task_known(codec: str, packed: bytes) -> None:
    data = b'{"task":"app.tasks:send","retry":2,"codec":"%s"}\n%s' % (codec.encode(), packed)
    assert decode_envelope(data).body == Body("app.tasks:send", retry=Retry(2), codec=codec)  # type: ignore[arg-type]
    with pytest.raises(
        PayloadError, match=rf"arguments of app.tasks:send cannot be read as {codec}"
    ):
        decode_body(data, allow_pickle=True)


def test_a_codec_that_nobody_knows_is_an_error_of_ours() -> None:
    with pytest.raises(PayloadError, match="stored body is not one"):
        decode_body(b'{"task":"a:b","codec":"yaml"}\nx')


@pytest.mark.parametrize("data", [b'{"task":"a:b"}\nx', b'{"task":"a:b","codec":"msgpack"}'])
def test_a_body_is_of_one_form(data: bytes) -> None:
    with pytest.raises(PayloadError, match="stored body is not one"):
        decode_body(data)


@ALL_CODECS
def test_an_argument_that_does_not_fit_is_named(codec: Codec) -> None:
    def who(*args: Any, **kwargs: Any) -> str:
        with pytest.raises(PayloadError) as caught:
            encode_body(Body("app:send", args, kwargs, codec=codec), ("order", "when"))
        return str(caught.value).partition(" of app:send: ")[0]

    with open(__file__) as unfit:
        assert who(unfit) == "argument 'order'"
        assert who(1, [{"a": unfit}]) == "argument 'when'"
        assert who(1, 2, unfit, 4) == "positional argument 3"
        assert who(1, when=unfit) == "argument 'when'"


def test_the_type_that_does_not_fit_is_named_as_well() -> None:
    class Money:
        pass

    with pytest.raises(
        PayloadError, match=r"^argument 'm' of app:send: objects of type .*Money do "
    ):
        encode_body(Body("app:send", (Money(),)), ("m",))


@pytest.mark.parametrize("codec", ["msgpack", "pickle"])
def test_every_codec_has_the_size_limit(codec: Codec) -> None:
    with pytest.raises(PayloadError, match="more than 1,000,000; store the"):
        travel(b"x" * MAX_BODY, codec=codec)
    with pytest.raises(
        PayloadError, match=r"result of a:b takes .* more than 1,000,000; .* return its id"
    ):
        encode_result("a:b", b"x" * MAX_BODY, codec)


@given(st.binary(max_size=200), st.sampled_from(["msgpack", "pickle", "json"]))
def test_any_arguments_are_read_or_an_error_of_ours(packed: bytes, codec: str) -> None:
    with suppress(PayloadError):
        decode_body(b'{"task":"a:b","codec":"%s"}\n%s' % (codec.encode(), packed))


def test_decoding_builds_nothing_but_plain_values() -> None:
    (value,) = travel({"__class__": "os.system", "py/object": "x", "$type": "y"}).args
    assert type(value) is dict


# -- results


@pytest.mark.slow
@ALL_CODECS
@given(result=PLAIN)
def test_a_result_comes_back_as_it_went(codec: Codec, result: Any) -> None:
    data = encode_result("app.tasks:send", result, codec)
    assert decode_result(data, allow_pickle=True) == result
    assert (data == b"") == (result is None)


def test_a_result_has_the_size_limit_of_a_body() -> None:
    with pytest.raises(PayloadError, match=r"result of app.tasks:send takes 1,000,0\d\d bytes"):
        encode_result("app.tasks:send", "x" * MAX_BODY)


@pytest.mark.parametrize(
    "data", [b"{", b"\xff", b'"\xff"', b"[" * 100_000, b"\x01", b"\x01\xc1", b"\x03x"]
)
def test_a_stored_result_that_cannot_be_read_is_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(PayloadError, match="stored result is not one of bide's"):
        decode_result(data)


def test_a_retry_that_is_returned_is_refused() -> None:
    with pytest.raises(
        PayloadError, match=r"result of a:b is a Retry, .* raise RetryLater\(\.\.\.\)"
    ):
        encode_result("a:b", Retry(3))


def test_a_coroutine_that_was_not_awaited_is_refused_with_the_fix() -> None:
    async def send() -> None: ...

    fix = "holds a coroutine; write await before the call that returned it"
    with pytest.raises(PayloadError, match=f"^The result of a:b: {fix}"):
        encode_result("a:b", send())
    with pytest.raises(PayloadError, match=f"^positional argument 1 of a:b: {fix}"):
        encode_body(Body("a:b", (send(),)))


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
