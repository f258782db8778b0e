"""Bodies of a later release: what may be passed over, what must be left, what is a mistake."""

from __future__ import annotations

import pytest

from bide.errors import PayloadError, PayloadTooNew
from bide.model.payload.body import Body, decode_body, decode_envelope, encode_body


def test_what_this_release_writes_says_nothing_of_it() -> None:
    assert b"needs" not in encode_body(Body("a:f"))
    assert decode_body(b'{"task":"a:f","needs":1}') == Body("a:f")


@pytest.mark.parametrize(
    "fields",
    [
        '"needs":2',
        '"needs":2,"mode":"bold"',
        '"mode":{"deep":[1]},"needs":3',
        '"needs":2,"timeout":"another type"',
        '"needs":2,"retry":{"strange":1}',
        '"needs":2,"_hint":1',
    ],
)
def test_what_needs_more_is_left_to_who_knows_more(fields: str) -> None:
    with pytest.raises(PayloadTooNew, match="needs a newer bide"):
        decode_envelope(b'{"task":"a:f",' + fields.encode() + b"}")


@pytest.mark.parametrize("hint", ["1", "null", '{"a":[{}]}', '"x"'])
def test_a_hint_is_passed_over(hint: str) -> None:
    body = decode_body(b'{"task":"a:f","_hint":' + hint.encode() + b',"args":[1],"_b":0}')
    assert body == Body("a:f", [1])


def test_so_it_is_beside_arguments_of_another_encoding() -> None:
    head, newline, packed = encode_body(Body("a:f", (1,), codec="msgpack")).partition(b"\n")
    body = decode_body(head[:-1] + b',"_hint":1}' + newline + packed)
    assert list(body.args) == [1]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ('"argz":[]', "unknown field `argz`"),
        ('"argz":[],"_hint":1', "unknown field `argz`"),
        ('"_hint":1,"timeout":-1', "timeout"),
        ('"argz":[],"needs":1', "unknown field `argz`"),
        ('"needs":0', "needs"),
        ('"needs":"2"', "needs"),
        ('"needs":2.5', "needs"),
        ('"needs":null', "needs"),
        ('"needs":true', "needs"),
    ],
)
def test_a_mistake_is_a_mistake(fields: str, problem: str) -> None:
    with pytest.raises(PayloadError, match=problem) as caught:
        decode_envelope(b'{"task":"a:f",' + fields.encode() + b"}")
    assert not isinstance(caught.value, PayloadTooNew)
