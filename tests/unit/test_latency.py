"""Histograms of a minute: what is read, and which percentiles they give."""

from __future__ import annotations

import math

import pytest

from bide.model.latency import (
    FINEST,
    LAST,
    LONGEST,
    Distribution,
    Family,
    Histogram,
    Minute,
    expose,
)


def test_a_line_is_read_and_what_is_none_left_out() -> None:
    read = Minute.read(29_921_000, b"l0=3 r2=1 l32=9 l33=7 l1=x x1=1 r=2 l3=1=1")
    assert (read.late.counts, read.ran.counts) == ({0: 3, 32: 9}, {2: 1})
    assert read.at.timestamp() == 29_921_000 * 60
    assert Minute.read(1, None).late.total == 0


def test_counts_of_a_bucket_that_a_line_has_twice_are_added() -> None:
    assert Minute.read(1, b"l3=2 l3=5").late.counts == {3: 7}


def test_percentiles_lie_where_the_counts_do() -> None:
    found = Histogram({0: 50, 3: 49, 10: 1})
    assert found.percentile(0.5) == pytest.approx(FINEST * 50 / 51)
    assert found.percentile(0.25) == pytest.approx(FINEST * 25 / 51)
    assert 4 * FINEST < (found.percentile(0.95) or 0) <= 8 * FINEST
    assert found.percentile(1) == pytest.approx(768 * FINEST)
    assert Histogram({}).percentile(0.5) is None


def test_the_mean_is_of_the_middles_of_buckets() -> None:
    assert Histogram({}).mean is None
    assert Histogram({0: 2}).mean == pytest.approx(FINEST / 2)
    assert Histogram({1: 1, 10: 3}).mean == pytest.approx(FINEST * (1.5 + 3 * 768) / 4)
    assert Histogram({LAST: 5}).mean == LONGEST


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 1])
def test_a_percentile_is_within_a_factor_of_two(share: float) -> None:
    for seconds in (0.001, 0.003, 0.0039, 7.0, 100_000.0):
        bucket = math.frexp(seconds / FINEST)[1]
        for count in (1, 2, 1000):
            found = Histogram({bucket: count}).percentile(share) or 0
            assert seconds / 2 < found < seconds * 2


@pytest.mark.parametrize("share", [0.01, 0.5, 1])
def test_nothing_is_made_up_where_the_last_bucket_is_open(share: float) -> None:
    assert Histogram({LAST: 3}).percentile(share) == LONGEST
    below = Histogram({LAST - 1: 3}).percentile(share)
    assert below is not None
    assert below < LONGEST


def test_minutes_are_added_up() -> None:
    assert (Histogram({0: 1, 2: 2}) + Histogram({2: 3, 4: 1})).counts == {0: 1, 2: 5, 4: 1}


def test_metrics_are_written_as_prometheus_reads_them() -> None:
    families = [
        Family("jobs", "gauge", 'Jobs of "all"\\\nqueues.', [({}, 12_345_678_901)]),
        Family("sent", "counter", "Sent.", [({"queue": 'a"b\\c\nd'}, 0.5), ({}, 1e11 + 0.5)]),
        Family("took", "histogram", "Took.", [({"q": "x"}, Distribution([0.5, 2], [1, 0, 2], 7))]),
    ]
    assert expose(families).splitlines() == [
        r'# HELP jobs Jobs of "all"\\\nqueues.',
        "# TYPE jobs gauge",
        "jobs 12345678901",
        "# HELP sent Sent.",
        "# TYPE sent counter",
        r'sent{queue="a\"b\\c\nd"} 0.5',
        "sent 1e+11",
        "# HELP took Took.",
        "# TYPE took histogram",
        'took_bucket{q="x",le="0.5"} 1',
        'took_bucket{q="x",le="2"} 1',
        'took_bucket{q="x",le="+Inf"} 3',
        'took_sum{q="x"} 7',
        'took_count{q="x"} 3',
    ]


def test_a_histogram_with_too_few_counts_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        expose([Family("took", "histogram", "Took.", [({}, Distribution([1, 2], [1, 2], 3))])])
