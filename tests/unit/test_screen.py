"""Tables and lines: what fits, what is cut, and that nothing commands the terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from bide.cli import screen
from bide.cli.screen import Cell, Column, echo, facts, hanging, table
from bide.logs import count
from bide.views.params import about, moment_json, relative

COLUMNS = [
    Column("id", itemgetter(0)),
    Column("task", itemgetter(1), cut="start"),
    Column("number", itemgetter(2), right=True),
    Column("error", itemgetter(3), cut="end"),
]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Standard output, taken for a terminal of 80 columns."""
    monkeypatch.setattr(screen, "at_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return monkeypatch


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_columns_are_aligned_by_cells(capsys: pytest.CaptureFixture[str]) -> None:
    table(COLUMNS, [["日本", "a", "7", "x"], ["🦉🦉🦉", "bb", "1,000", "y"]])
    shown = lines(capsys)
    assert [cell_len(line[: line.rindex(" ")]) for line in shown[1:]] == [21, 21]
    assert shown[0] == "id      task  number  error"
    assert shown[1] == "日本    a          7  x"


def test_without_a_terminal_nothing_is_cut_or_coloured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table(COLUMNS, [["i", "t" * 300, "1", Cell("e" * 300, "red")]])
    assert lines(capsys)[1] == f"i   {'t' * 300}       1  {'e' * 300}"


def test_a_pipe_whose_colours_are_forced_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    table(COLUMNS, [["i", "t" * 300, "1", Cell("e" * 300, "red")]])
    assert lines(capsys)[1] == f"i   {'t' * 300}       1  \x1b[31m{'e' * 300}\x1b[0m"
    hanging(["head"], "text " * 100)
    assert len(lines(capsys)) == 1


def test_at_a_terminal_the_widest_give_first_and_ids_never(
    capsys: pytest.CaptureFixture[str], terminal: pytest.MonkeyPatch
) -> None:
    terminal.setenv("NO_COLOR", "1")
    table(COLUMNS, [["i" * 30, "module:" + "t" * 30, "1", "e" * 300]])
    (line,) = lines(capsys)[1:]
    assert cell_len(line) <= 80
    assert line.startswith("i" * 30 + "  …")
    assert line.endswith("e…")


def test_a_terminal_that_is_too_narrow_for_all_still_shows_ids(
    capsys: pytest.CaptureFixture[str], terminal: pytest.MonkeyPatch
) -> None:
    terminal.setenv("NO_COLOR", "1")
    terminal.setenv("COLUMNS", "20")
    table(COLUMNS, [["i" * 30, "t" * 30, "1", "e" * 30]])
    assert lines(capsys)[1] == f"{'i' * 30}  …{'t' * 7}       1  {'e' * 7}…"


def test_what_can_be_spared_is_left_out_the_last_first(
    capsys: pytest.CaptureFixture[str], terminal: pytest.MonkeyPatch
) -> None:
    terminal.setenv("NO_COLOR", "1")
    spare = [Column(name, itemgetter(i), spare=True) for i, name in enumerate("ab", 1)]
    columns = [Column("id", itemgetter(0)), *spare, Column("c", itemgetter(3))]
    for width, titles in ((80, "id a b c"), (69, "id a c"), (40, "id c")):
        terminal.setenv("COLUMNS", str(width))
        table(columns, [["i" * 20, "a" * 20, "b" * 20, "c" * 5]])
        assert lines(capsys)[0].split() == titles.split()


def test_one_long_id_does_not_push_all_lines_apart(capsys: pytest.CaptureFixture[str]) -> None:
    table(COLUMNS, [["i" * 128, "t", "1", "e"], ["j", "t", "1", "e"]])
    long, short = lines(capsys)[1:]
    assert long.startswith("i" * 128)
    assert len(short) < 30


def test_colours_surround_and_do_not_widen(
    capsys: pytest.CaptureFixture[str], terminal: pytest.MonkeyPatch
) -> None:
    table(
        [Column("a", itemgetter(0)), Column("b", itemgetter(1))],
        [[Cell("x", "red"), "y"], ["xx", "y"]],
    )
    assert lines(capsys)[1:] == ["\x1b[31mx\x1b[0m   y", "xx  y"]


@given(st.text(), st.text(), st.integers(10, 100))
def test_whatever_stands_in_it_a_table_has_its_lines(a: str, b: str, width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shown: list[str] = []
        patch.setattr(screen, "_print", shown.append)
        patch.setattr(screen, "at_terminal", lambda: True)
        patch.setenv("COLUMNS", str(width))
        patch.setenv("FORCE_COLOR", "1")
        patch.setenv("NO_COLOR", "1")
        table(COLUMNS, [[a, b, a, b]])
        facts([("name", a), ("other", Cell(b, "red"))])
        hanging([Cell("head")], a + b)
        echo(a)
    assert shown[0].count("\n") == 1
    assert shown[1].count("\n") == shown[2].count("\n") == shown[4].count("\n") == 0
    assert not any(ord(c) < 32 and c != "\n" for text in shown for c in text)


def test_text_hangs_beside_its_head(
    capsys: pytest.CaptureFixture[str], terminal: pytest.MonkeyPatch
) -> None:
    terminal.setenv("NO_COLOR", "1")
    terminal.setenv("COLUMNS", "30")
    hanging(["head"], "some words that do not fit on a line")
    assert lines(capsys) == ["head  some words that do not", "      fit on a line"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0001, "now"),
        (0.25, "in 250ms"),
        (3.14159, "in 3.14s"),
        (83.4, "in 83s"),
        (3599.9, "in 1h"),
        (-2, "2s ago"),
        (-86_400 * 3, "3d ago"),
    ],
)
def test_moments_seen_from_now(seconds: float, shown: str) -> None:
    assert relative(seconds) == shown


def test_small_words() -> None:
    assert (count(1, "job"), count(1_200, "job")) == ("1 job", "1,200 jobs")
    assert moment_json(datetime(2030, 1, 1, tzinfo=UTC)) == "2030-01-01T00:00:00+00:00"
    assert moment_json(None) is None


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0, "1s"), (0.2, "1s"), (1.26, "1.3s"), (19.2, "19s"), (143, "2m20s"), (30_100, "8h20m")],
)
def test_an_estimate_is_no_more_exact_than_it_is_known(seconds: float, says: str) -> None:
    assert about(seconds) == f"about {says}"
