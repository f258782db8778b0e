"""The demo prints its progress, a table and a histogram."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bide.cli.demo.books import (
    EARLY,
    LOST,
    Books,
    Problem,
    Record,
    histogram,
    percentile,
    report,
)
from bide.cli.demo.play import View


def printed(books: Books, width: int = 80, encoding: str = "utf-8") -> str:
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, encoding=encoding) as file:
        report(books, Console(file=file, width=width, highlight=False))
        file.flush()
        return buffer.getvalue().decode(encoding)


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = list(range(1, 101))
    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert [percentile([7], p) for p in (0, 50, 100)] == [7, 7, 7]
    assert percentile([1, 2], 50) == 1


def bars(first: list[int], redelivered: list[int]) -> list[tuple[str, str]]:
    """The label of each bar, and what stands behind it."""
    lines = histogram(Books(lateness_us=first, redelivered_us=redelivered))
    return [
        (line.plain[2:18].rstrip(), line.plain[19:].lstrip("█▏▎▍▌▋▊▉").rstrip()) for line in lines
    ]


def test_buckets_lie_between_edges_that_belong_to_the_higher() -> None:
    assert bars([999, 1000, 1999, 2000], []) == [
        ("500us - 1ms", " 1"),
        ("  1ms - 2ms", " 2"),
        ("  2ms - 5ms", " 1"),
    ]


def test_one_empty_bucket_is_shown_and_a_stretch_of_them_left_out() -> None:
    assert bars([600, 3000], [2_100_000]) == [
        ("500us - 1ms", " 1"),
        ("  1ms - 2ms", ""),
        ("  2ms - 5ms", " 1"),
        ("    ...", ""),
        ("   2s - 5s", " 1 redelivered"),
    ]


def test_the_ends_of_the_scale() -> None:
    assert bars([-5, 0], []) == [(" less - 1us", " 2")]
    assert bars([10**12], []) == [("  over 50s", " 1")]


def test_the_longest_bar_is_full_and_the_shortest_is_seen() -> None:
    lines = [line.plain for line in histogram(Books(lateness_us=[700] * 1000 + [1500]))]
    assert lines == [
        "  500us - 1ms     │" + "█" * 36 + " 1,000",
        "    1ms - 2ms     │▏ 1",
    ]
    lines = [line.plain for line in histogram(Books(lateness_us=[700, 1500]), ascii_only=True)]
    assert lines[1] == "    1ms - 2ms     |" + "#" * 36 + " 1"


def test_a_report_fits_80_columns_and_any_encoding() -> None:
    books = Books(
        orders=1_000_000,
        enqueued=2_000_000,
        run=1_500_000,
        cancelled=500_000,
        redelivered=12_345,
        lateness_us=[1, 50, 999, 2000, 70_000],
        redelivered_us=[2_200_000] * 12_345,
        killed=[4_194_303],
    )
    text = printed(books)
    assert max(map(len, text.splitlines())) <= 80
    assert "The books balance" in text
    assert "█" in text
    assert "#" in printed(books, encoding="ascii")


def test_problems_are_counted_and_the_first_of_them_shown() -> None:
    books = Books(
        problems=[Problem(LOST, f"the notification for order [A]{i} never ran.") for i in range(12)]
        + [Problem(EARLY, "too soon.")]
    )
    lines = printed(books, width=100).splitlines()
    assert f"  {'early':26}       1" in lines
    assert f"  {'lost':26}      12" in lines
    assert "  lost: the notification for order [A]9 never ran." in lines
    assert "  ... and 3 more" in lines
    assert lines[-1] == "  The books do not balance."


def test_nothing_is_drawn_into_a_pipe_that_wants_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    view = View()
    view.show(Record(tmp_path), 1, 0.0, [])
    view.end()
    assert capsys.readouterr().out == ""
