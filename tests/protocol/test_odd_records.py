"""What another program has made of a record, a setting or a count costs no job its place."""

from __future__ import annotations

from typing import Any

import pytest

from bide.model.job import RunRecord
from bide.model.payload.body import ITEM_MARK
from bide.protocol.commands import jobs as job_commands
from tests.support.probe import LEASE, Probe

GOOD = b"1795214038547684R1795214030000000R 7 2 1 0 0 1795214038547684 host.42 1795214038000000"
ODD = [
    b"",
    b"nonsense",
    GOOD[:40],
    b"x" + GOOD[1:],
    b"9" + GOOD,
    b"9" + GOOD[1:],
    GOOD.replace(b" 7 2", b" 77 2"),
    GOOD.replace(b" 7 2", b" 7 " + b"9" * 400),
    GOOD.replace(b"1795214038000000", b"9" * 400),
    GOOD.replace(b"1795214038000000", b"nan"),
    GOOD + b" " + b"9" * 400,
]


@pytest.mark.parametrize("line", [*ODD, GOOD])
def test_a_claim_takes_all_and_loses_none(q: Probe, line: bytes) -> None:
    q.add("a", "b", "c", "d")
    q.raw.hset(q.keys["run"], "b", line)
    jobs = q.claim().jobs
    assert [job.id for job in jobs] == ["a", "b", "c", "d"]
    assert all(job.token < 2**53 for job in jobs), "the next is another"
    assert [q.settle(job, "complete") for job in jobs] == ["ok"] * 4
    stored: Any = q.raw.hget(q.keys["run"], "b")
    assert RunRecord.read(stored) is not None


@pytest.mark.parametrize("line", ODD)
def test_a_pop_a_reclaim_and_a_retry_do_too(q: Probe, line: bytes) -> None:
    q.push("a", "b")
    q.raw.hset(q.keys["run"], "b", line)
    assert q.pop().bodies == [ITEM_MARK + b'"a"', ITEM_MARK + b'"b"']
    q.raw.hset(q.keys["run"], "b", line)
    assert q.run(job_commands.retry(q.keys, ["b"], "+0"))[0].result == "ok"
    q.add("c")
    q.claim()
    q.raw.hset(q.keys["run"], "c", line)
    q.move(LEASE + 1)
    assert set(q.taken("w2")) == {"b", "c"}


@pytest.mark.parametrize("field", ["completed", "failed", "retried", "cancelled", "retention"])
def test_outcomes_are_taken_though_a_count_or_a_setting_is_odd(q: Probe, field: str) -> None:
    q.add("a", "b", "c", "d")
    q.raw.hset(q.keys["meta"], field, "odd 1")
    a, b, c, _ = q.claim().jobs
    assert q.settle(a, "complete") == q.settle(b, "fail") == q.settle(c, "retry", "+0") == "ok"
    assert q.cancel("c") == ["ok"]
    assert [q.where(id) for id in "abc"] == ["completed", "failed", "cancelled"]
