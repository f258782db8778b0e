"""How many jobs are due when, and which: what the page's timeline is drawn from."""

from __future__ import annotations

import pytest

from bide.errors import UsageError
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.jobs import Timeline
from tests.support.probe import SECOND, Probe

MINUTE = 60 * SECOND


def whole_minute(q: Probe) -> int:
    """The next one; far enough off that a test does not reach it."""
    return (q.now // MINUTE + 2) * MINUTE


def timeline(q: Probe, start: int, count: int = 4, step: int = SECOND) -> Timeline:
    return q.run(job_commands.timeline(q.keys, step, count, at_us=start))


def test_jobs_are_counted_where_they_are_due_over_all_priorities(q: Probe) -> None:
    at = whole_minute(q)
    for id, offset, priority in (("a", 0, 9), ("b", 1, 0), ("c", SECOND, 5), ("d", 9 * SECOND, 5)):
        q.add(id, when=f"={at + offset}", priority=priority)
    found = timeline(q, at)
    assert found.due == (2, 1, 0, 0)
    assert (found.overdue, found.later) == (0, 1)
    assert (found.from_us, found.to_us) == (at, at + 4 * SECOND)


def test_a_stretch_has_its_beginning_and_not_its_end(q: Probe) -> None:
    at = whole_minute(q)
    for id, offset in (("last", SECOND - 1), ("first", SECOND)):
        q.add(id, when=f"={at + offset}")
    assert timeline(q, at, 2).due == (1, 1)


def test_it_begins_at_a_whole_step(q: Probe) -> None:
    found = q.run(job_commands.timeline(q.keys, MINUTE, 3, offset_us=-90 * SECOND))
    assert found.from_us % MINUTE == 0
    assert found.from_us <= found.now_us - 90 * SECOND < found.from_us + MINUTE


def test_what_waits_is_overdue_and_what_ended_is_counted_when_it_did(q: Probe) -> None:
    q.settle(q.take("done"), "complete")
    q.settle(q.take("broken"), "fail")
    q.add("waits")
    found = q.run(job_commands.timeline(q.keys, MINUTE, 4, offset_us=-2 * MINUTE))
    assert found.overdue == 1
    assert (sum(found.due), sum(found.completed), sum(found.failed)) == (1, 1, 1)


def test_who_is_due_in_a_stretch_a_page_at_a_time(q: Probe) -> None:
    at = whole_minute(q)
    for i in range(5):
        q.add(f"j{i}", when=f"={at + i}", priority=5 - i % 2)
    whole = q.run(job_commands.list_due(q.keys, at, at + 5, 0, 10))
    assert whole.total == 5
    assert whole.jobs == [(f"j{i}", at + i) for i in (0, 2, 4, 1, 3)]
    pages = [q.run(job_commands.list_due(q.keys, at, at + 5, start, 2)) for start in (0, 2, 4, 6)]
    assert [page.total for page in pages] == [5] * 4
    assert [job for page in pages for job in page.jobs] == whole.jobs


def test_the_first_of_a_stretch_by_due_time_over_all_priorities(q: Probe) -> None:
    at = whole_minute(q)
    for id, offset, priority in (("c", 2, 9), ("b1", 1, 9), ("b2", 1, 3), ("a", 0, 0), ("d", 3, 5)):
        q.add(id, when=f"={at + offset}", priority=priority)

    def listed(offset: int, start: int, count: int) -> list[str]:
        command = job_commands.list_due(q.keys, at + offset, at + 3, start, count, by_due=True)
        page = q.run(command)
        assert page.total == (4, 3)[offset]
        assert all(page.jobs[i][1] <= page.jobs[i + 1][1] for i in range(len(page.jobs) - 1))
        return [id for id, _ in page.jobs]

    assert listed(0, 0, 10) == ["a", "b1", "b2", "c"]
    assert listed(0, 0, 2) == ["a", "b1"]
    assert listed(0, 0, 0) == []
    assert listed(1, 1, 10) == ["b2", "c"], "one of those that are due first is passed over"
    assert listed(1, 2, 1) == ["c"]
    assert listed(1, 9, 10) == ["c"], "none that is due later"


def test_the_end_of_a_stretch_is_not_in_it(q: Probe) -> None:
    at = whole_minute(q)
    q.add("in", when=f"={at}")
    q.add("out", when=f"={at + 1}")
    assert q.run(job_commands.list_due(q.keys, at, at + 1)).jobs == [("in", at)]
    assert q.run(job_commands.list_due(q.keys, at, at + 1, 0, 0)).total == 1


def test_too_many_stretches_are_refused(q: Probe) -> None:
    for step, count in ((0, 1), (1, 0), (1, job_commands.MOST_STRETCHES + 1)):
        with pytest.raises(UsageError, match="1 to 240 stretches"):
            job_commands.timeline(q.keys, step, count)
