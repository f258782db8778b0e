"""The figures of a run, added up over its rounds, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import percentiles
from tests.chaos.scene import Verdict


@dataclass
class Figures:
    """What a fault cost, in all rounds together."""

    fault: str
    rounds: int = 0
    seeds: list[int] = field(default_factory=list)
    jobs: int = 0
    injections: int = 0
    lost: int = 0
    early: int = 0
    explained: int = 0
    unexplained: int = 0
    held_up: int = 0
    recovery_p50: float | None = None
    """Seconds."""
    recovery_p99: float | None = None
    longest_us: int = 0
    longest: str = ""
    seconds: float = 0.0
    told: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    """Of the run that measured it: `server`, `python`, `cpus`, `date`."""


def add_up(verdicts: Iterable[Verdict], about: dict[str, Any]) -> list[Figures]:
    """A row for each fault, in the order in which they came first."""
    rows: dict[str, Figures] = {}
    recoveries: dict[str, list[float]] = {}
    for verdict in verdicts:
        row = rows.setdefault(verdict.fault, Figures(verdict.fault, about=about))
        account = verdict.account
        row.rounds += 1
        row.seeds.append(verdict.seed)
        row.jobs += account.jobs
        row.injections += verdict.injections
        row.lost += account.lost
        row.early += account.early
        row.explained += account.explained
        row.unexplained += account.unexplained
        row.seconds = round(row.seconds + verdict.seconds, 1)
        row.findings += account.findings
        for what, count in verdict.told.items():
            before = row.told.get(what, 0)
            row.told[what] = max(before, count) if _is_a_most(what) else before + count
        if verdict.longest_us > row.longest_us:
            row.longest_us, row.longest = verdict.longest_us, verdict.longest
        held = recoveries.setdefault(verdict.fault, [])
        held += account.recoveries
        if held:
            figures = percentiles(held)
            row.held_up = len(held)
            row.recovery_p50 = round(figures["p50"], 3)
            row.recovery_p99 = round(figures["p99"], 3)
    return list(rows.values())


def _is_a_most(what: str) -> bool:
    """Whether what was counted is not to be added up."""
    return what.startswith(
        ("latest", "longest", "most", "bytes of the longest", "drained", "events kept")
    )


def replaced(old: list[Figures], new: list[Figures], order: Iterable[str]) -> list[Figures]:
    """The rows of two runs, in an order: where both have a fault, the newer."""
    rows = {row.fault: row for row in (*old, *new)}
    return [rows[name] for name in order if name in rows]


def write(path: Path, rows: list[Figures]) -> None:
    text = json.dumps({"faults": [asdict(row) for row in rows]}, indent=1)
    path.write_text(text + "\n", "utf-8")


def read(path: Path) -> list[Figures]:
    return [Figures(**row) for row in json.loads(path.read_text("utf-8"))["faults"]]
