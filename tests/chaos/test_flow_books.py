"""What jobs that have to do with each other must not do is found, each by its name."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.chaos import flows
from tests.chaos.books import Happened
from tests.chaos.flows import SECOND_US
from tests.support.ledger import Line

T = 1_795_000_000_000_000


def line(what: str, at: int, id: str, due: int = 0, token: int = 0, worker: str = "w1") -> Line:
    token = token or T + at
    return Line(what, id, 1, token, T + due, f"{worker}.abc", 1, T + at, T + at)


def run(id: str, at: int, until: int, due: int = 0) -> list[Line]:
    return [line("begun", at, id, due), line("done", until, id, due, token=T + at)]


def two_at_once() -> Iterable[str]:
    found = flows.spans([*run("a", 1, 9), *run("b", 8, 12)], [])
    assert list(flows.too_many(found, 2, "jobs")) == []
    return flows.too_many(found, 1, "of g")


def test_one_after_the_other_is_not_at_once() -> None:
    found = flows.spans([*run("a", 1, 9), *run("b", 9, 12), *run("c", 20, 21)], [])
    assert list(flows.too_many((span for span in found), 1, "of g")) == []


def one_beside_what_was_killed() -> Iterable[str]:
    """Until then it ran; what ran behind that is alright."""
    lines = [line("begun", 1, "a"), *run("b", 5, 6), *run("c", 9, 10)]
    killed = Happened(T + 8, T + 8, frozenset({"w1"}))
    found = flows.spans(lines, [killed])
    assert [(span.from_us - T, span.until_us - T) for span in found] == [(1, 8), (5, 6), (9, 10)]
    return flows.too_many(found, 1, "of g")


def test_a_run_whose_worker_was_starved_ends_where_its_job_begins_elsewhere() -> None:
    again = [line("begun", 5, "a", worker="w2"), line("done", 6, "a", token=T + 5, worker="w2")]
    lines = [*run("a", 1, 9), *again, *run("b", 7, 8)]
    starved = Happened(T + 1, T + 5, frozenset({"w1"}), is_starvation=True)
    for happened, ends in (([], 9), ([starved], 5), ([starved._replace(until_us=T)], 9)):
        first = flows.spans(lines, happened)[0]
        assert (first.from_us - T, first.until_us - T) == (1, ends)


def three_in_a_second() -> Iterable[str]:
    lines = [line("begun", at, f"{at}") for at in (0, SECOND_US - 1, SECOND_US, 2 * SECOND_US)]
    assert list(flows.too_fast(lines, 2)) == []
    return flows.too_fast([*lines, line("begun", 7, "x")], 2)


def one_that_overtook() -> Iterable[str]:
    lines = [*run("a", 5, 6, due=1), *run("a", 7, 8, due=1), *run("b", 9, 10, due=2)]
    assert list(flows.out_of_order(lines, "g")) == []
    return flows.out_of_order([*lines, line("begun", 3, "c", due=3)], "g")


def a_child_before_its_parent() -> Iterable[str]:
    lines = [*run("a", 1, 5), *run("child", 5, 6)]
    assert list(flows.too_soon(lines, {"child": ["a"], "never": ["b"]})) == []
    return flows.too_soon(lines, {"child": ["a", "b"]})


def a_lost_item() -> Iterable[str]:
    assert list(flows.wrongly_batched([[("k", 0)], [("k", 1)]], {"k": 2})) == []
    return flows.wrongly_batched([[("k", 0)]], {"k": 2})


def an_item_twice() -> Iterable[str]:
    return flows.wrongly_batched([[("k", 0), ("k", 1)], [("k", 1)]], {"k": 2})


def items_in_no_order() -> Iterable[str]:
    return flows.wrongly_batched([[("k", 1), ("k", 0)]], {"k": 2})


def items_of_two_keys() -> Iterable[str]:
    return flows.wrongly_batched([[("k", 0), ("l", 0)]], {"k": 1, "l": 1})


def a_time_too_few() -> Iterable[str]:
    assert list(flows.wrongly_fired("s", ["s@100", "s@110", "t@1"], 10, 2)) == []
    return flows.wrongly_fired("s", ["s@100"], 10, 2)


def a_time_left_out() -> Iterable[str]:
    return flows.wrongly_fired("s", ["s@100", "s@120"], 10, 2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (two_at_once, "2 of g ran at once, not 1: a, b"),
        (one_beside_what_was_killed, "2 of g ran at once"),
        (three_in_a_second, "3 began within a second"),
        (one_that_overtook, "began after c, which is due later"),
        (a_child_before_its_parent, "child began before b had ended"),
        (a_lost_item, "of the items of k, [1] are lost and [] are there twice"),
        (an_item_twice, "[] are lost and [1] are there twice"),
        (items_in_no_order, "the items of k are out of order"),
        (items_of_two_keys, "a list is of several keys"),
        (a_time_too_few, "s fired 1 times, not 2"),
        (a_time_left_out, "[20] µs, not 10"),
    ],
)
def test_what_is_wrong_is_found(wrong: object, says: str) -> None:
    assert callable(wrong)
    assert says in "\n".join(wrong())
