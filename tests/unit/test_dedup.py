"""Policies of deduplication: values, the keys they make, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from bide import Batch, Debounce, Throttle, Unique, UsageError, batch, debounce, throttle
from bide.errors import PayloadError
from bide.model.dedup import DedupPolicy, describe_dedup, write_dedup
from bide.model.options import Constraints, has_dedup, write_constraints
from bide.model.payload.body import Body, decode_body, decode_envelope, encode_body
from bide.model.payload.serializers import Codec, calls_in, frame
from bide.model.payload.signing import is_signed, unsigned


def constraints(
    policy: DedupPolicy | None, *args: Any, names: tuple[str, ...] = (), **kwargs: Any
) -> Constraints:
    words = write_dedup(policy, "app:task", args, kwargs, names, "json")
    return Constraints.read(words.encode())


@pytest.mark.parametrize(
    ("policy", "way", "told"),
    [
        (Unique(), "uk,f", "unique until it has finished"),
        (Unique(until="started", on_conflict="replace"), "ur,s", "unique until it has started"),
        (
            Unique(until="90s", on_conflict="reject"),
            "ux,90000000",
            "unique for 90s from its enqueue",
        ),
        (debounce("2s"), "d2000000,0", "debounced: due 2s after the latest call"),
        (
            debounce(2, max_wait="30s"),
            "d2000000,30000000",
            "debounced: due 2s after the latest call, at most 30s after the first",
        ),
        (throttle("1/10s"), "t1,10000000", "throttled to 1 in 10s"),
        (throttle("5/m"), "t5,60000000", "throttled to 5 in 60s"),
        (throttle("1/ 10s"), "t1,10000000", "throttled to 1 in 10s"),
        (throttle("2/ m"), "t2,60000000", "throttled to 2 in 60s"),
        (
            batch("5s", max_wait="60s", max_size=7),
            "g5000000,60000000,7",
            "batch: due 5s after the latest item, at most 60s after the first, or with 7 items",
        ),
        (
            Batch("1h", close="5s"),
            "g3600000000,0,100,5000000",
            "batch: due 1h after the latest item, or with 100 items, or 5s after its end",
        ),
    ],
)
def test_what_a_policy_asks(policy: DedupPolicy, way: str, told: str) -> None:
    assert policy.way == way
    assert describe_dedup(way) == told
    assert constraints(policy, 1).dedup == way


def test_what_no_policy_says_is_told_as_nothing() -> None:
    assert [describe_dedup(way) for way in ("", "u", "q1", "t1", "d1", "uk,")] == [""] * 6


def test_an_end_marker_has_a_duration() -> None:
    with pytest.raises(UsageError, match="close"):
        _ = Batch("1h", close="soon").way
    assert Batch("1h", close=0).way == "g3600000000,0,100,0"


def test_policies_are_values() -> None:
    assert debounce("2s", key="a") == Debounce("2s", None, "a")
    assert throttle("1/s") == Throttle("1/s")
    assert batch(1, max_size=3) == Batch(1, None, 3)
    assert len({Unique(), Unique(), Unique("a")}) == 2


def test_a_key_belongs_to_its_task() -> None:
    assert constraints(Unique(key="customer-42"), 1).key == "app:task:customer-42"
    assert constraints(Unique(key=42)).key == "app:task:42"


def test_a_key_may_be_made_of_the_arguments() -> None:
    policy = debounce(1, key=lambda doc, draft=False: f"{doc}{'-draft' if draft else ''}")
    assert constraints(policy, "a").key == "app:task:a"
    assert constraints(policy, "a", draft=True).key == "app:task:a-draft"


def test_without_a_key_unique_means_the_same_arguments_and_the_others_the_task() -> None:
    assert constraints(Unique(), 1).key == constraints(Unique(), 1).key
    assert constraints(Unique(), 1).key != constraints(Unique(), 2).key
    assert (
        constraints(Unique(), {"a": 1, "b": 2}).key == constraints(Unique(), {"b": 2, "a": 1}).key
    )
    for policy in (debounce(1), throttle("1/s"), batch(1)):
        assert constraints(policy, 1).key == constraints(policy, 2).key == "app:task:"


def test_arguments_are_the_same_by_position_and_by_name() -> None:
    keys = {
        constraints(Unique(), 1, 2, names=("a", "b")).key,
        constraints(Unique(), 1, b=2, names=("a", "b")).key,
        constraints(Unique(), b=2, a=1, names=("a", "b")).key,
    }
    assert len(keys) == 1


@dataclass
class Order:
    tags: set[int]
    prices: dict[Any, Any]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_equal_arguments_have_one_key_whatever_their_order(codec: Codec) -> None:
    """The order of these sets comes from their insertion; that of text, from the process."""
    first: dict[Any, Any] = {"a": 1, 10: {"x": 1, "y": 2}}
    second: dict[Any, Any] = {10: {"y": 2, "x": 1}, "a": 1}
    words = {
        write_dedup(Unique(), "t", ([Order(set(tags), prices), b"x"],), {}, (), codec)
        for tags in ([0, 8], [8, 0])
        for prices in (first, second)
    }
    assert len(words) == 1


def test_arguments_that_only_look_alike_have_different_keys() -> None:
    calls: list[Any] = [b"abc", "YWJj", None, float("nan"), 1, "1", 1.0]
    assert len({write_dedup(Unique(), "t", (x,), {}, (), "msgpack") for x in calls}) == len(calls)


def test_a_key_stays_the_same_across_releases() -> None:
    """Otherwise a job would be added twice while producers are upgraded."""
    moment = datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1)))
    call = (
        1,
        2.5,
        "é",
        None,
        b"x",
        moment,
        UUID(int=7),
        Decimal("1.50"),
        [{"b": 1, 10: 2, "a": ()}],
    )
    assert (
        constraints(Unique(), *call, names=("n",), draft=True).key
        == "app:task:d970ecbb55e0376f7e9ed777"
    )


def test_arguments_that_are_no_json_make_a_key_too() -> None:
    words = write_dedup(Unique(), "t", ({1},), {}, (), "pickle")
    assert Constraints.read(words.encode()).key


@pytest.mark.parametrize("key", ["New York", "a%20b", "k= f=x", "é\n\x00", "{x}", "日本" * 9])
def test_any_text_can_be_a_key(key: str) -> None:
    words = write_dedup(Unique(key=key), "t", (), {}, (), "json")
    assert words.isascii()
    assert len(words.split()) == 2
    assert Constraints.read(words.encode()).key == f"t:{key}"


def test_a_key_that_takes_much_is_shortened_and_stays_itself() -> None:
    a, b = (write_dedup(Unique(key="日" * 199 + x), "t", (), {}, (), "json") for x in "ab")
    assert max(len(a), len(b)) < 200
    assert a != b


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: Unique(until="running"),
            """until must be "started", "finished" or a duration of more than 0, not 'running'""",
        ),
        (lambda: Unique(until=0), "a duration of more than 0"),
        (lambda: Unique(on_conflict="drop"), "'keep', 'replace', 'reject'"),  # type: ignore[arg-type]
        (lambda: Unique(on_conflict=["keep"]), "'keep', 'replace', 'reject'"),  # type: ignore[arg-type]
        (lambda: Unique(key="a\ud800"), "half of a surrogate pair"),
        (lambda: constraints(Unique(key=lambda: "\ud800")), "half of a surrogate pair"),
        (lambda: Unique(key=""), "1 to 200 characters"),
        (lambda: Unique(key="x" * 201), "use a digest"),
        (lambda: Unique(key=1.5), "text or an integer"),  # type: ignore[arg-type]
        (lambda: Unique(key=True), "text or an integer"),
        (lambda: debounce(-1), "quiet must not be negative"),
        (lambda: debounce("5s", max_wait="2s"), "shorter than the quiet time"),
        (lambda: debounce(0, max_wait=0), "shorter than the quiet time"),
        (lambda: throttle("10s"), "how many runs"),
        (lambda: throttle("0/s"), "how many runs"),
        (lambda: throttle("101/s"), "from 1 to 100"),
        (lambda: throttle("1/"), "how many runs"),
        (lambda: throttle("1/x"), "the period of a throttle"),
        (lambda: throttle("1/0s"), "empty period"),
        (lambda: throttle("1/.5s"), "is not a duration"),
        (lambda: throttle("1/M"), "a unit in capitals"),
        (lambda: throttle(5), "how many runs"),  # type: ignore[arg-type]
        (lambda: batch(1, max_size=0), "from 1 to 10,000"),
        (lambda: batch(1, max_size=10_001), "from 1 to 10,000"),
        (lambda: batch(1, max_size=True), "from 1 to 10,000"),
        (lambda: batch("x"), "quiet='x' is not a duration"),
        (lambda: constraints("key"), "not a policy"),  # type: ignore[arg-type]
        (lambda: constraints(batch(1)), "has one argument"),
        (lambda: constraints(batch(1), 1, 2), "has one argument"),
        (lambda: constraints(batch(1), a=1), "has one argument"),
        (lambda: constraints(Unique(key=lambda: None)), "text or an integer"),  # type: ignore[arg-type, return-value]
    ],
)
def test_what_cannot_be_meant_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make()


def test_arguments_that_no_key_can_be_made_of_are_refused_by_the_task() -> None:
    with pytest.raises(PayloadError, match="An argument of app:task: objects of type object do"):
        constraints(Unique(), object())


def test_the_constraints_of_a_job_say_both() -> None:
    line = write_constraints("5s", dedup="k=t: f=uk,f")
    assert line == "x=+5000000 k=t: f=uk,f"
    assert (has_dedup(line), has_dedup("x=+5"), has_dedup("")) == (True, False, False)
    assert Constraints.read(line.encode()).begins_within_us == 5_000_000


# -- what was batched


def call(item: object, task: str = "app:task", **more: Any) -> bytes:
    return encode_body(Body(task, (item,), **more))


def test_what_was_batched_is_one_call_with_the_list() -> None:
    data = b"".join(frame(call(i, timeout=5 + i)) for i in range(3))
    assert decode_body(data) == Body("app:task", ([0, 1, 2],), timeout=5)
    assert calls_in(data) == [call(i, timeout=5 + i) for i in range(3)]


@pytest.mark.parametrize("cut", [1, 2, 5, 30])
def test_what_was_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(PayloadError, match="cut off or damaged"):
        decode_body(frame(call(1))[:-cut])


@pytest.mark.parametrize(
    "data",
    [
        b"\x06",
        b"\x069\n",
        b"\x06-1\n",
        b"\x0699999999999\n",
        frame(b""),
        frame(b"{}"),
        frame(frame(call(1)))[:40],
        frame(call(1)) + frame(call(2, "app:other")),
        frame(call(1)) + call(2),
        frame(encode_body(Body("app:task"))),
        frame(encode_body(Body("app:task", (1, 2)))),
    ],
)
def test_what_no_script_put_together_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode_body(data)


def test_calls_of_several_codecs_are_one_list() -> None:
    """As they come while producers are on their way from one serializer to another."""
    calls = [call(1), call({"two": 2}, codec="msgpack"), call(3)]
    data = b"".join(map(frame, calls))
    assert decode_envelope(data).body == Body("app:task", codec="msgpack")
    assert decode_body(data).args == ([1, {"two": 2}, 3],)
    backward = b"".join(map(frame, reversed(calls)))
    assert decode_body(backward).args == ([3, {"two": 2}, 1],)


def test_a_pickled_call_among_others_is_read_only_where_that_is_allowed() -> None:
    data = frame(call(1)) + frame(call({2}, codec="pickle")) + frame(call(3, codec="msgpack"))
    assert decode_envelope(data).body.codec == "pickle"
    with pytest.raises(PayloadError, match="allow-pickle"):
        decode_body(data)
    assert decode_body(data, allow_pickle=True).args == ([1, {2}, 3],)


def test_what_was_batched_holds_no_other_such() -> None:
    """However deep: it would take the reader's stack."""
    data = call(1)
    for _ in range(5_000):
        data = frame(data)
    with pytest.raises(PayloadError, match="contains another batch"):
        decode_body(data)
    assert not is_signed(data)


def test_signatures_stay_behind_their_calls() -> None:
    signature = b"\n\x04 one " + b"0" * 64
    data = frame(call(1) + signature) + frame(call(2) + signature)
    assert unsigned(data) == data
    assert is_signed(data)
    assert not is_signed(frame(call(1) + signature) + frame(call(2)))
    assert decode_envelope(data).body.args == ([1, 2],)
