"""Which of several queues free slots go to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.errors import UsageError
from bide.worker.queue_state import (
    HEAVIEST,
    PollingOrder,
    Weighted,
    make_order,
    read_strategy,
)

QUEUES = ["high", "low"]

weights = st.lists(st.integers(1, 100), min_size=1, max_size=6)


def fill(order: PollingOrder, ready: list[bool], slots: int) -> list[int]:
    """Share slots out, and find a job for each."""
    shares = order.share(ready, slots)
    for queue, share in enumerate(shares):
        order.note_taken(queue, share)
    return shares


def total(rounds: list[list[int]]) -> list[int]:
    return [sum(shares) for shares in zip(*rounds, strict=True)]


# -- strict


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(1, 250))
def test_strict_gives_all_to_the_first_that_is_ready(ready: list[bool], slots: int) -> None:
    shares = PollingOrder().share(ready, slots)
    first = ready.index(True) if any(ready) else None
    assert shares == [slots if queue == first else 0 for queue in range(len(ready))]


# -- by weight


@given(st.data(), weights, st.integers(1, 250))
def test_every_slot_goes_to_a_queue_that_is_ready(
    data: st.DataObject, weights: list[int], slots: int
) -> None:
    order = Weighted(weights)
    for _ in range(5):
        ready = data.draw(st.lists(st.booleans(), min_size=len(weights), max_size=len(weights)))
        shares = fill(order, ready, slots)
        assert sum(shares) == (slots if any(ready) else 0)
        assert not any(share for share, is_ready in zip(shares, ready, strict=True) if not is_ready)


@given(weights, st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_shares_are_as_the_weights_at_any_moment(weights: list[int], slots: list[int]) -> None:
    """However many slots are free at a time: no two queues are further apart than a job of each."""
    order = Weighted(weights)
    taken = total([fill(order, [True] * len(weights), n) for n in slots])
    turns = [count / weight for count, weight in zip(taken, weights, strict=True)]
    apart = max(1 / weight for weight in weights) + 1e-6
    assert max(turns) - min(turns) <= apart


@pytest.mark.parametrize("slots", [1, 7, 50, 250])
def test_weights_hold_over_ten_thousand_jobs(slots: int) -> None:
    order = Weighted([6, 1])
    high, low = total([fill(order, [True, True], slots) for _ in range(10_000 // slots)])
    assert high / low == pytest.approx(6, rel=0.01)


@given(weights, st.integers(1, 20_000), st.integers(1, 50))
def test_a_queue_that_was_empty_claims_nothing_for_the_past(
    weights: list[int], alone: int, slots: int
) -> None:
    """The first works alone; once all have work, shares are as if they began together."""
    order, n = Weighted(weights), len(weights)
    fill(order, [True] + [False] * (n - 1), alone)
    turns = [0.0] * n
    for _ in range(20):
        for queue, share in enumerate(fill(order, [True] * n, slots)):
            turns[queue] += share / weights[queue]
        assert max(turns) - min(turns) <= max(1 / weight for weight in weights) + 1e-6


@given(st.integers(1, 20_000), st.integers(1, 50))
def test_nor_is_held_against_a_queue_what_it_used_alone(alone: int, slots: int) -> None:
    order = Weighted([1, 1])
    fill(order, [True, False], alone)
    fill(order, [False, False], slots)
    assert abs(int.__sub__(*fill(order, [True, True], slots))) <= 1


@pytest.mark.slow
@given(weights, st.data())
def test_no_queue_with_work_is_left_out_for_long(weights: list[int], data: st.DataObject) -> None:
    """Whatever the others do, and however often they come and go."""
    order, n = Weighted(weights), len(weights)
    served, bound = 0, sum(-(-weight // weights[0]) + 1 for weight in weights[1:])
    coming = st.lists(st.booleans(), min_size=n - 1, max_size=n - 1)
    for _ in range(3 * (bound + 1)):
        served += fill(order, [True, *data.draw(coming)], 1)[0]
    assert served >= 3


def test_what_was_offered_and_not_taken_is_not_counted() -> None:
    order = Weighted([1, 1])
    assert order.share([True, True], 10) == [5, 5]
    order.note_taken(0, 5)
    order.note_taken(1, 0)
    assert order.share([True, True], 5) == [0, 5]


def test_among_equals_the_first_given_is_first() -> None:
    order = Weighted([1, 1, 1])
    assert [fill(order, [True] * 3, 1).index(1) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


# -- what may be asked for


def test_the_order_that_is_asked_for_is_made() -> None:
    assert type(make_order("strict", QUEUES)) is PollingOrder
    assert make_order("fair", QUEUES).share([True, True], 10) == [5, 5]
    assert make_order({"low": 1, "high": 6}, QUEUES).share([True, True], 14) == [12, 2]


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        (
            "random",
            r"strategy must be 'strict', 'fair', or a weight for each queue .* not 'random'",
        ),
        (None, "strategy must be 'strict'"),
        (["high", "low"], "strategy must be 'strict'"),
        ({"high": 6, "low": 1, "x": 1}, r"'x', which is none of the .* \(high, low\); add it"),
        ({"high": 6}, "no weight to 'low'; give each"),
        ({}, "no weight to 'high', 'low'"),
        ({"high": 0, "low": 1}, "weight of 'high' must be a whole number from 1 .* not 0; to"),
        ({"high": -1, "low": 1}, "not -1"),
        ({"high": HEAVIEST + 1, "low": 1}, "from 1 to 1,000,000"),
        ({"high": 0.5, "low": 1}, "whole number"),
        ({"high": True, "low": 1}, "whole number"),
        ({"high": "6", "low": 1}, "whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_way_out(choice: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make_order(choice, QUEUES)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("strict", "strict"),
        ("fair", "fair"),
        ("high=6,low=1", {"high": 6, "low": 1}),
        (" high=6 , a=b=2", {"high": 6, "a=b": 2}),
        ("high=-6", {"high": -6}),
    ],
)
def test_an_order_can_be_typed(text: str, choice: object) -> None:
    assert read_strategy(text) == choice


@pytest.mark.parametrize("text", ["", "Fair", "high", "high=", "=6", "high=six", "high=6,", "²=²"])
def test_a_typing_mistake_is_an_error_that_shows_how(text: str) -> None:
    with pytest.raises(UsageError, match="write strict, fair, or a weight for each queue"):
        read_strategy(text)


def test_a_queue_is_given_one_weight() -> None:
    with pytest.raises(UsageError, match="gives 'high' two weights"):
        read_strategy("high=1,high=2")
