"""Jobs that a child took and cannot speak of any more."""

from __future__ import annotations

from bide.worker.processes.ipc import LOST_AFTER, LostJobs

NOBODY: frozenset[int] = frozenset()
LATER = LOST_AFTER + 0.1


def test_nothing_is_looked_for_before_someone_is_suspected() -> None:
    lost_jobs = LostJobs()
    assert not lost_jobs
    lost_jobs.suspect({1, 2})
    assert lost_jobs
    assert lost_jobs.find(NOBODY, NOBODY, 0) == []
    assert not lost_jobs, "all are accounted for"


def test_what_stands_in_no_row_for_long_is_found() -> None:
    lost_jobs = LostJobs()
    lost_jobs.suspect({1, 2})
    assert lost_jobs.find({1, 2}, NOBODY, 0) == []
    assert lost_jobs.find({1, 3}, NOBODY, LOST_AFTER / 2) == []
    assert lost_jobs.find({1, 3}, NOBODY, LATER) == [1]


def test_who_is_suspected_is_looked_for_until_those_that_may_wait_have_been_seen() -> None:
    """While others wait in the line, an older one cannot be told from them."""
    lost_jobs = LostJobs()
    lost_jobs.suspect({1, 2})
    assert lost_jobs.find({1, 2}, {1, 2}, 0) == []
    assert lost_jobs.find({1, 2}, {1, 2}, LATER) == [], "they may be waiting still"
    assert lost_jobs, "either may have been taken"
    assert lost_jobs.find({1}, NOBODY, 5) == []
    assert lost_jobs.find({1}, NOBODY, 5 + LATER) == [1]
    assert lost_jobs.find({3}, NOBODY, 9) == []
    assert not lost_jobs, "what was handed out since is not suspected"
