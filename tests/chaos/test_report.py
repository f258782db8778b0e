"""The report: figures are added up as they should be, and the page is what the figures make."""

from __future__ import annotations

from pathlib import Path

from tests.chaos import figures, page
from tests.chaos.books import Account
from tests.chaos.catalogue import FAULTS
from tests.chaos.scene import Verdict


def verdict(seed: int, **more: object) -> Verdict:
    account = Account(jobs=10, lost=1, explained=2, recoveries=[seed / 1.0], findings=["wrong"])
    told = {"messages lost": 5, "latest start after ms": seed}
    return Verdict("worker-killed", seed, 3, account, 600 + seed, "claim", 1.0, told)


def test_rounds_are_added_up(tmp_path: Path) -> None:
    (row,) = figures.add_up([verdict(3), verdict(1), verdict(2)], {"server": "Valkey"})
    assert (row.rounds, row.seeds, row.jobs, row.injections) == (3, [3, 1, 2], 30, 9)
    assert (row.lost, row.explained, row.early, row.findings) == (3, 6, 0, ["wrong"] * 3)
    assert (row.held_up, row.recovery_p50, row.recovery_p99) == (3, 2.0, 3.0)
    assert (row.longest_us, row.longest) == (603, "claim")
    assert row.told == {"messages lost": 15, "latest start after ms": 3}
    figures.write(tmp_path / "it.json", [row])
    assert figures.read(tmp_path / "it.json") == [row]


def test_the_page_is_what_its_figures_make() -> None:
    rows = figures.read(page.DATA)
    assert page.PAGE.read_text("utf-8") == page.page(rows), "python -m tests.chaos --page"


def test_the_figures_are_of_all_faults_and_nothing_was_found() -> None:
    rows = figures.read(page.DATA)
    assert [row.fault for row in rows] == list(FAULTS)
    assert [row.findings for row in rows] == [[] for _ in rows]


def test_a_run_of_some_faults_replaces_their_rows() -> None:
    old = [figures.Figures("a", jobs=1), figures.Figures("b", jobs=1)]
    new = [figures.Figures("c", jobs=2), figures.Figures("b", jobs=2)]
    rows = figures.replaced(old, new, ["b", "c", "a", "d"])
    assert [(row.fault, row.jobs) for row in rows] == [("b", 2), ("c", 2), ("a", 1)]


def test_rows_of_another_run_keep_its_date_and_server() -> None:
    about = {"server": "Valkey 9.1.2", "python": "3.11.7", "cpus": 2, "date": "2026-11-21"}
    other = about | {"server": "Redis 7.0.15", "date": "2027-01-01"}
    old = [figures.Figures("a", seeds=[1], about=about), figures.Figures("b", about=about)]
    new = [figures.Figures("b", seeds=[7], about=other)]
    text = page.page(figures.replaced(old, new, ["a", "b"]))
    assert "- Valkey 9.1.2, Python 3.11.7, 2 processors, 2026-11-21; seeds 1: `a`.\n" in text
    assert "- Redis 7.0.15, Python 3.11.7, 2 processors, 2027-01-01; seeds 7: `b`.\n" in text
    text = page.page(old)
    assert "0 findings. Valkey 9.1.2, Python 3.11.7, 2 processors, 2026-11-21; seeds 1.\n" in text
