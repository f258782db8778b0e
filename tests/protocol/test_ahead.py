"""How much is due within so many seconds, of any priority."""

from __future__ import annotations

import pytest

from bide.errors import BideError
from bide.protocol.commands import jobs as job_commands
from tests.support.probe import SECOND, Probe


def ahead(q: Probe, *within: int) -> list[int]:
    return q.run(job_commands.count_due(q.keys, within))


def later(q: Probe, id: str, seconds: float, priority: int = 5) -> None:
    q.add(id, when=f"+{round(seconds * SECOND)}", priority=priority)


def test_an_empty_queue_has_nothing_ahead(q: Probe) -> None:
    assert ahead(q, 1, 60) == [0, 0]
    assert ahead(q) == []


def test_each_counts_all_priorities_up_to_it(q: Probe) -> None:
    for i, seconds in enumerate((0.5, 30, 30, 90, 4000)):
        later(q, f"j{i}", seconds, priority=i * 2)
    assert ahead(q, 1, 60, 3600, 86_400) == [1, 3, 4, 5]
    assert ahead(q, 86_400, 1) == [5, 1]


def test_what_is_due_or_runs_or_has_ended_is_not_ahead(q: Probe) -> None:
    q.take("runs")
    q.add("waits")
    later(q, "cancelled", 1)
    q.cancel("cancelled")
    later(q, "soon", 1)
    assert ahead(q, 60) == [1]
    q.move(1)
    assert ahead(q, 60) == [0]


def test_to_count_changes_nothing(q: Probe) -> None:
    later(q, "a", 1)
    before = q.holding()
    ahead(q, 1, 60)
    assert q.holding() == before


def test_a_call_is_bounded(q: Probe) -> None:
    assert ahead(q, *range(1, 33)) == [0] * 32
    with pytest.raises(BideError, match="BADARG count_due"):
        ahead(q, *range(1, 34))


def test_an_purged_queue_has_nothing_ahead(q: Probe) -> None:
    later(q, "a", 1)
    q.run(job_commands.purge(q.keys, "this"))
    assert ahead(q, 60) == [0]
