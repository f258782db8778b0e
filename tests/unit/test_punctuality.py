"""Histograms of a minute: what is read, and which percentiles they give."""

from __future__ import annotations

import pytest

from bide.punctuality import FINEST, Histogram, Minute


def test_a_line_is_read_and_what_is_none_left_out() -> None:
    read = Minute.read(29_921_000, b"l0=3 r2=1 l24=9 l25=7 l1=x x1=1 r=2 l3=1=1")
    assert (read.late.counts, read.ran.counts) == ({0: 3, 24: 9}, {2: 1})
    assert read.at.timestamp() == 29_921_000 * 60
    assert Minute.read(1, None).late.total == 0


def test_percentiles_lie_where_the_counts_do() -> None:
    found = Histogram({0: 50, 3: 49, 10: 1})
    assert found.percentile(0.5) == pytest.approx(FINEST)
    assert found.percentile(0.25) == pytest.approx(FINEST / 2)
    assert 4 * FINEST < (found.percentile(0.95) or 0) <= 8 * FINEST
    assert found.percentile(1) == pytest.approx(1024 * FINEST)
    assert Histogram({}).percentile(0.5) is None


def test_minutes_are_added_up() -> None:
    assert (Histogram({0: 1, 2: 2}) + Histogram({2: 3, 4: 1})).counts == {0: 1, 2: 5, 4: 1}
