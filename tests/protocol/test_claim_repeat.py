"""A claim whose reply was lost is sent again with its number, and takes nothing twice."""

from __future__ import annotations

from tests.support.probe import LEASE, SECOND, Probe


def test_a_repeat_returns_what_the_first_took(q: Probe) -> None:
    q.add("a", "b", "c")
    first = q.claim("w1", 2, seq=7)
    again = q.claim("w1", 2, seq=7)
    assert again.jobs == first.jobs
    assert list(q.holding().due) == ["c"]


def test_a_repeat_renews_the_leases(q: Probe) -> None:
    q.add("a")
    q.claim("w1", seq=1)
    q.move(9)
    again = q.claim("w1", seq=1)
    assert q.zset("active") == {"a": again.now_us + round(LEASE * SECOND)}
    q.move(9)
    assert q.taken("w2") == []


def test_a_repeat_counts_no_attempt_and_gives_no_token(q: Probe) -> None:
    q.add("a")
    (first,) = q.claim("w1", seq=1).jobs
    for _ in range(3):
        q.move(1)
        assert q.claim("w1", seq=1).jobs == [first]
    assert q.record("a").attempt == 1
    assert q.settle(first, "complete") == "ok"


def test_a_repeat_asks_to_come_again_because_it_looked_at_nothing_else(q: Probe) -> None:
    q.add("a")
    q.claim("w1", 5, seq=1)
    again = q.claim("w1", 5, seq=1)
    assert again.more
    assert again.until_us == 0


def test_a_repeat_returns_only_what_is_still_held(q: Probe) -> None:
    q.add("a", "b", "c")
    first = q.claim("w1", seq=1)
    q.settle(first.jobs[1], "complete")
    assert [job.id for job in q.claim("w1", seq=1).jobs] == ["a", "c"]


def test_a_repeat_does_not_return_what_another_has_taken_since(q: Probe) -> None:
    q.add("a", "b")
    first = q.claim("w1", seq=1)
    q.move(5)
    q.extend(first.jobs[1])
    q.move(6)
    assert q.taken("w2") == ["a"]
    assert [job.id for job in q.claim("w1", seq=1).jobs] == ["b"]


def test_a_repeat_does_not_return_what_its_own_later_claim_took_again(q: Probe) -> None:
    """Else the worker would run the job under a token that it has from another claim."""
    job = q.take("a")
    assert q.settle(job, "retry", "+0") == "ok"
    (again,) = q.claim("w1", seq=2).jobs
    assert [j.token for j in q.claim("w1", seq=2).jobs] == [again.token]
    assert again.token > job.token


def test_another_may_claim_within_the_same_microsecond(q: Probe) -> None:
    """Then only the worker's name tells whose the job is."""
    q.add("a")
    q.claim("w1", seq=1)
    line = q.raw.hget(q.keys["run"], "a")
    assert isinstance(line, bytes)
    q.raw.hset(q.keys["run"], "a", line.replace(b" w1 ", b" w2 ").decode())
    assert q.claim("w1", seq=1).jobs == []


def test_a_repeat_takes_nothing_new(q: Probe) -> None:
    """A copy that arrives late would take jobs for nobody."""
    job = q.take("a")
    q.settle(job, "complete")
    q.add("b")
    again = q.claim("w1", seq=1)
    assert again.jobs == []
    assert again.more, "the next claim looks"
    assert list(q.holding().due) == ["b"]
    assert q.taken("w1") == ["b"]


def test_nor_does_a_repeat_of_a_claim_that_found_nothing(q: Probe) -> None:
    assert q.claim("w1", seq=1).jobs == []
    q.add("a")
    assert q.claim("w1", seq=1).jobs == []
    assert list(q.holding().due) == ["a"]


def test_an_older_number_is_stale_and_takes_nothing(q: Probe) -> None:
    """A copy of a claim that was stuck in the network must not take jobs that nobody will run."""
    q.add("a", "b")
    q.claim("w1", 1, seq=2)
    stale = q.claim("w1", 1, seq=1)
    assert stale.stale
    assert stale.jobs == []
    assert list(q.holding().due) == ["b"]


def test_numbers_belong_to_one_worker(q: Probe) -> None:
    q.add("a", "b")
    assert [job.id for job in q.claim("w1", 1, seq=5).jobs] == ["a"]
    assert [job.id for job in q.claim("w2", 1, seq=1).jobs] == ["b"]


def test_the_next_number_forgets_what_the_last_one_took(q: Probe) -> None:
    q.add("a", "b")
    q.claim("w1", 1, seq=1)
    second = q.claim("w1", 1, seq=2)
    last = q.raw.hget(q.keys["claims"], "w1")
    assert last == b"%d 2 b" % second.now_us
    assert q.where("a") == "active"


def test_a_repeated_claim_of_a_suspect_is_still_alone(q: Probe) -> None:
    q.take("a", "w1")
    q.move(11)
    q.claim("w2")
    q.move(11)
    first = q.claim("w3", seq=1)
    assert first.alone
    again = q.claim("w3", seq=1)
    assert again.alone
    assert again.jobs == first.jobs


def test_claims_of_workers_that_are_long_gone_are_forgotten_by_new_ones(q: Probe) -> None:
    for i in range(65):
        q.claim(f"old-{i}")
    assert q.raw.hlen(q.keys["claims"]) == 65
    q.claim("new-0")
    assert q.raw.hlen(q.keys["claims"]) == 66, "these may yet repeat themselves"
    q.move(601)
    for i in range(1, 12):
        q.claim(f"new-{i}")
    assert q.raw.hlen(q.keys["claims"]) <= 64 + 11
    assert q.raw.hexists(q.keys["claims"], "new-11")
