"""What the benchmarks make of figures: turns, ratios within a round, aims, points of a plot."""

from __future__ import annotations

import pytest

from benchmarks.report import Aim, Row, thinned
from benchmarks.rounds import Pair, in_turn, ratios


def test_all_take_turns_in_each_round() -> None:
    order: list[str] = []

    def measure(name: str) -> Row:
        order.append(name)
        return {"jobs/s": 1.0}

    rounds = in_turn(60, {"a": lambda: measure("a"), "b": lambda: measure("b")}, most=2)
    assert order == ["a", "b", "a", "b"]
    assert [len(rounds[name]) for name in "ab"] == [2, 2]


def test_there_is_one_round_though_no_time_is_left() -> None:
    assert in_turn(0, {"a": lambda: {"jobs/s": 1.0}}) == {"a": [{"jobs/s": 1.0}]}


def test_one_that_fails_is_left_out_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tried: list[str] = []

    def fail() -> Row:
        tried.append("b")
        raise RuntimeError("it hangs")

    rounds = in_turn(60, {"a": lambda: {"jobs/s": 1.0}, "b": fail}, most=3)
    assert (list(rounds), len(rounds["a"]), tried) == (["a"], 3, ["b"])
    assert capsys.readouterr().err == "without b: it hangs\n"


def test_a_ratio_is_of_two_figures_of_one_round() -> None:
    measured: dict[str, list[Row]] = {
        "ours": [{"jobs/s": 10.0}, {"jobs/s": 100.0}, {"jobs/s": 30.0}],
        "theirs": [{"jobs/s": 5.0}, {"jobs/s": 20.0}, {"jobs/s": 10.0}],
        "absent": [],
    }
    rows, aims = ratios(measured, [Pair("ours", "theirs", 4), Pair("ours", "absent", 2)], "jobs/s")
    assert rows == {
        "ours / theirs": {"times": 3.0, "lowest": 2.0, "highest": 5.0, "to reach": 4},
    }
    assert [(aim.measured, aim.met) for aim in aims] == [(3.0, False)]


@pytest.mark.parametrize(
    ("aim", "met"),
    [
        (Aim("ms", 5.0, at_most=5), True),
        (Aim("ms", 5.1, at_most=5), False),
        (Aim("times", 3.0, at_least=3), True),
        (Aim("times", 2.9, at_least=3), False),
    ],
)
def test_an_aim_is_met_at_its_bound(aim: Aim, met: bool) -> None:
    assert aim.met is met


def test_points_of_a_plot_are_few_and_reach_from_end_to_end() -> None:
    points = thinned([float(n) for n in range(10_000, 0, -1)])
    assert (len(points), points[0], points[-1]) == (200, 1.0, 10_000.0)
    assert points == sorted(points)
    assert thinned([2.00049, 1.0]) == [1.0, 2.0]
