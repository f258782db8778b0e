"""The results of a queue stay within its budget of bytes; the jobs stay, and say what happened."""

from __future__ import annotations

import pytest

from bide.errors import UsageError
from bide.model.limits import Retention
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle, Verdict
from tests.support.probe import BODY, Probe

KB = 1_000


def complete(q: Probe, *sizes: int, prefix: str = "j") -> list[Verdict]:
    """Run jobs whose results have these sizes; the verdicts."""
    ids = [f"{prefix}{n:02}" for n in range(len(sizes))]
    q.add_many(*(Prepared(id, "+0", 5, BODY) for id in ids))
    jobs = {job.id: job for job in q.claim(count=len(ids)).jobs}
    results = [b'"' + b"x" * (size - 2) + b'"' for size in sizes]
    return q.settle_many(
        *(
            Settle(id, jobs[id].token, "complete", "", result)
            for id, result in zip(ids, results, strict=True)
        )
    )


def kept(q: Probe) -> list[str]:
    return sorted(bytes(name).decode() for name in q.raw.hkeys(q.keys["results"]))  # type: ignore[arg-type]


def bytes_of(q: Probe) -> int:
    return int(q.raw.hget(q.keys["meta"], "result_bytes") or 0)


def test_the_oldest_results_go_when_a_new_one_does_not_fit(q: Probe) -> None:
    q.configure(results="10KB")
    assert complete(q, 4 * KB, 4 * KB, prefix="a") == ["ok", "ok"]
    assert complete(q, 4 * KB, prefix="b") == ["full"]
    assert kept(q) == ["a01", "b00"]
    assert bytes_of(q) == 8 * KB
    assert len(q.zset("completed")) == 3
    old = q.fetch("a00")
    assert old is not None
    assert old.raw_result is None
    assert old.run is not None
    assert old.run.dropped == 4 * KB


def test_one_that_is_larger_than_the_budget_is_dropped_itself(q: Probe) -> None:
    q.configure(results="10KB")
    assert complete(q, 11 * KB) == ["full"]
    assert kept(q) == []
    assert bytes_of(q) == 0
    assert len(q.zset("completed")) == 1


def test_many_that_completed_in_one_call_do_not_end_the_search(q: Probe) -> None:
    """They have one score, and are more than a call looks at."""
    q.configure(results="10KB")
    assert complete(q, *[10] * 250, prefix="a") == ["ok"] * 250
    for name in "bcdefgh":
        complete(q, 4 * KB, prefix=name)
    assert [id for id in kept(q) if not id.startswith("a")] == ["g00", "h00"]
    assert bytes_of(q) == 8 * KB


def test_a_few_large_ones_among_many_small_are_found(q: Probe) -> None:
    q.configure(results="10KB")
    for name in "abcdefgh":
        complete(q, 4 * KB, prefix=f"large-{name}")
        complete(q, *[10] * 250, prefix=f"small-{name}")
    complete(q, 10, prefix="last")
    assert [id for id in kept(q) if id.startswith("large")] == ["large-g00", "large-h00"]
    assert bytes_of(q) == 8 * KB
    assert q.raw.hget(q.keys["meta"], "results_over") is None


@pytest.mark.parametrize("field", ["results_from", "result_bytes"])
@pytest.mark.parametrize("value", ["nan", "inf", "zz", "(zz", "-inf", "1e400"])
def test_numbers_that_another_program_has_written_stop_no_settle(
    q: Probe, field: str, value: str
) -> None:
    q.configure(results="10KB")
    complete(q, 9 * KB, prefix="a")
    q.raw.hset(q.keys["meta"], field, value)
    assert complete(q, 9 * KB, prefix="b")[0] in ("ok", "full")
    assert complete(q, 9 * KB, prefix="c")[0] in ("ok", "full")
    assert len(q.zset("completed")) == 3
    # The sum counts from what was written there, and is wrong until those results are removed.
    q.raw.hset(q.keys["meta"], "result_bytes", len(kept(q)) * 9 * KB)


def test_small_results_are_not_counted(q: Probe) -> None:
    q.configure(results="3KB")
    assert complete(q, *[1_999] * 10) == ["ok"] * 10
    assert len(kept(q)) == 10
    assert bytes_of(q) == 0


def test_what_is_removed_with_its_job_makes_room(q: Probe) -> None:
    """By retention, by hand, and where the job runs again."""
    q.configure(results="10KB")
    complete(q, 3 * KB, prefix="a")
    for name in ("b", "c", "d", "e"):
        assert complete(q, 4 * KB, prefix=name) == ["ok"]
        assert q.run(job_commands.delete(q.keys, [f"{name}00"])) == ["ok"]
    assert kept(q) == ["a00"]
    assert bytes_of(q) == 3 * KB
    for _ in range(5):
        assert complete(q, 4 * KB, prefix="f") == ["ok"]
        assert q.retry("f00") == ["ok"]
        (job,) = q.claim().jobs
        assert q.settle(job, "complete", data=b"1") == "ok"
        assert q.run(job_commands.delete(q.keys, ["f00"])) == ["ok"]
    q.configure(results="10KB", count=0)
    q.move(20)
    assert complete(q, 8 * KB, prefix="g") == ["ok"]
    q.move(20)
    complete(q, 8 * KB, prefix="h")
    assert kept(q) == ["h00"]
    assert bytes_of(q) == 8 * KB


def test_many_large_results_in_one_call_stay_within_the_budget(q: Probe) -> None:
    q.configure(results="100KB")
    for prefix in "abcd":
        complete(q, *[2 * KB] * 250, prefix=prefix)
        assert len(kept(q)) == 50
    assert bytes_of(q) == 100 * KB


def test_a_budget_that_became_less_is_reached_step_by_step(q: Probe) -> None:
    for prefix in "abc":
        complete(q, *[2 * KB] * 200, prefix=prefix)
    q.configure(results="2KB")
    for n in range(5):
        complete(q, 2 * KB, prefix=f"d{n}")
    assert kept(q) == ["d400"]


def test_a_sum_that_is_wrong_is_put_right(q: Probe) -> None:
    q.configure(results="10KB")
    complete(q, 4 * KB, prefix="a")
    q.raw.hset(q.keys["meta"], "result_bytes", 1_000 * KB)
    assert complete(q, 4 * KB, prefix="b") == ["full"]
    assert complete(q, 4 * KB, prefix="c") == ["ok"]
    assert kept(q) == ["c00"]
    assert bytes_of(q) == 4 * KB


def test_by_default_a_queue_keeps_a_hundred_megabytes(q: Probe) -> None:
    complete(q, *[1_000 * KB] * 4)
    q.raw.hset(q.keys["meta"], "result_bytes", 100_000 * KB - 500)  # as after many others
    assert complete(q, 1_000 * KB, prefix="b") == ["full"]
    assert kept(q) == ["b00", "j01", "j02", "j03"]
    q.raw.hset(q.keys["meta"], "result_bytes", 4_000 * KB)


@pytest.mark.parametrize("bad", ["much", -1, 0, "0MB", 1.5, None, "10 TB", 10**16])
def test_a_budget_that_is_no_size_is_refused(bad: object) -> None:
    with pytest.raises(UsageError, match="Retention results must be a size such as 500MB or 2GB"):
        Retention(results=bad).result_bytes()  # type: ignore[arg-type]


def test_settles_of_large_results_carry_few(q: Probe) -> None:
    settles = [Settle(str(n), 1, "complete", "", b"x" * 1_000 * KB) for n in range(9)]
    assert worker_commands.fitting(settles) == worker_commands.MAX_SETTLE_BYTES // (1_000 * KB)
