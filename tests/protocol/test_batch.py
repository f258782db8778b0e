"""Gather: exactly the items of a key, in order of arrival, in one job."""

from __future__ import annotations

import pytest

from bide.model.payload.body import Body, decode_body, encode_body
from bide.model.payload.serializers import is_batch
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from tests.support.probe import SECOND, Probe

WAY = f"g{2 * SECOND},{5 * SECOND},4"
HUGE = f"g{2 * SECOND},0,10000"


def job(id: str, item: object, way: str = WAY, key: str = "k", **options: object) -> Prepared:
    body = encode_body(Body("app.tasks:index", (item,)))
    prepared = Prepared(id, "+0", 5, body, constraints=f"k={key} f={way}")
    return prepared._replace(**options)  # type: ignore[arg-type]


def give(
    q: Probe, id: str, item: object, way: str = WAY, key: str = "k", **options: object
) -> tuple[str, str, int]:
    """What came of an item, the job that has it, and in how many seconds that is due."""
    (receipt,) = q.add_many(job(id, item, way, key, **options))
    return receipt.result, receipt.id, round((receipt.due_us - q.now) / SECOND)


def items(q: Probe, id: str) -> list[object]:
    (found,) = decode_body(q.holding().hashes["jobs"][id]).args
    assert isinstance(found, list)
    return found


def test_items_are_batched_in_their_order_until_it_is_quiet(q: Probe) -> None:
    assert give(q, "a", 1) == ("created", "a", 2)
    q.move(1.5)
    assert give(q, "b", {"x": [2]}) == ("batched", "a", 2)
    q.move(1.5)
    assert q.taken() == []
    q.move(0.5)
    (claimed,) = q.claim().jobs
    assert decode_body(claimed.body) == Body("app.tasks:index", ([1, {"x": [2]}],))


def test_one_item_is_a_list_too(q: Probe) -> None:
    give(q, "a", 1)
    assert items(q, "a") == [1]
    seen = q.fetch("a")
    assert seen
    assert (seen.task, seen.constraints.batches, is_batch(seen.raw_body)) == (
        "app.tasks:index",
        True,
        True,
    )


def test_it_is_due_by_its_longest_wait(q: Probe) -> None:
    give(q, "a", 0, f"g{2 * SECOND},{5 * SECOND},100")
    for i in range(4):
        q.move(1)
        give(q, f"b{i}", i, f"g{2 * SECOND},{5 * SECOND},100")
    assert give(q, "c", 9, f"g{2 * SECOND},{5 * SECOND},100") == ("batched", "a", 1)


def test_when_it_is_full_it_is_due_and_the_next_item_opens_another(q: Probe) -> None:
    for i in range(3):
        give(q, f"a{i}", i)
    assert give(q, "a3", 3) == ("batched", "a0", 0)
    assert give(q, "b", 4) == ("created", "b", 2)
    assert q.taken() == ["a0"]
    assert (items(q, "a0"), items(q, "b")) == ([0, 1, 2, 3], [4])


LONG = f"g{600 * SECOND},0,100"
END = f"{LONG},{5 * SECOND}"


def test_after_its_end_a_list_is_due_and_later_items_do_not_postpone_it(q: Probe) -> None:
    q.hold()
    assert give(q, "a", 1, LONG) == ("created", "a", 600)
    q.move(10)
    assert give(q, "b", "END", END) == ("batched", "a", 5)
    q.move(3)
    assert give(q, "c", 3, LONG) == ("batched", "a", 2)
    q.move(1.9)
    assert give(q, "d", 4, LONG) == ("batched", "a", 0)
    assert q.taken() == []
    q.move(0.1)
    assert q.taken() == ["a"]
    assert items(q, "a") == [1, "END", 3, 4]
    assert give(q, "e", 5, LONG) == ("created", "e", 600)


def test_an_end_that_comes_twice_counts_once_and_the_earlier_time_wins(q: Probe) -> None:
    give(q, "a", 1, LONG)
    give(q, "b", "END", END)
    q.move(3)
    assert give(q, "c", "END", END) == ("batched", "a", 2)
    assert give(q, "d", "END", f"{LONG},{SECOND}") == ("batched", "a", 1)
    assert give(q, "e", 5, LONG) == ("batched", "a", 1)


def test_an_end_may_come_first(q: Probe) -> None:
    assert give(q, "a", "END", END) == ("created", "a", 5)
    q.move(4)
    assert give(q, "b", 1, LONG) == ("batched", "a", 1)


def test_after_an_end_quiet_and_size_count_too(q: Probe) -> None:
    end = f"{WAY},{60 * SECOND}"
    assert give(q, "a", "END", end) == ("created", "a", 2)
    q.move(1)
    assert give(q, "b", 1) == ("batched", "a", 2)
    give(q, "c", 2)
    assert give(q, "d", 3) == ("batched", "a", 0)
    assert give(q, "e", 4) == ("created", "e", 2), "another list, which no item has ended"


def test_a_job_of_one_item_is_full_at_once(q: Probe) -> None:
    way = f"g{2 * SECOND},0,1"
    assert [give(q, f"a{i}", i, way)[::2] for i in range(3)] == [("created", 0)] * 3
    assert q.taken() == ["a0", "a1", "a2"]


def test_what_has_been_claimed_is_frozen_also_over_retries(q: Probe) -> None:
    give(q, "a", 1)
    give(q, "b", 2)
    q.move(2)
    (claimed,) = q.claim().jobs
    assert give(q, "c", 3) == ("created", "c", 2)
    q.settle(claimed, "retry", f"+{SECOND}")
    assert give(q, "d", 4) == ("batched", "c", 2)
    q.move(1)
    (again,) = q.claim().jobs
    assert (again.body, items(q, "c")) == (claimed.body, [3, 4])


def test_what_waits_for_a_retry_is_frozen(q: Probe) -> None:
    give(q, "a", 1)
    q.move(2)
    (claimed,) = q.claim().jobs
    q.settle(claimed, "retry", f"+{60 * SECOND}")
    assert give(q, "b", 2) == ("created", "b", 2)
    assert items(q, "a") == [1]


def test_items_of_one_that_was_given_back_unbegun_go_on(q: Probe) -> None:
    give(q, "a", 1)
    q.move(2)
    (claimed,) = q.claim().jobs
    q.settle(claimed, "release")
    assert give(q, "b", 2)[:2] == ("batched", "a")
    assert items(q, "a") == [1, 2]


def test_what_was_given_back_after_it_had_begun_is_frozen(q: Probe) -> None:
    give(q, "a", 1)
    q.move(2)
    (claimed,) = q.claim().jobs
    q.settle(claimed, "release", "+0")
    assert give(q, "b", 2)[:2] == ("created", "b")
    assert items(q, "a") == [1]


def test_items_that_come_after_it_was_taken_back_open_another(q: Probe) -> None:
    give(q, "a", 1)
    q.cancel("a")
    assert give(q, "b", 2) == ("created", "b", 2)
    q.run(job_commands.purge(q.keys, "e1"))
    assert give(q, "c", 3) == ("created", "c", 2)
    assert items(q, "c") == [3]


def test_a_repeat_adds_nothing(q: Probe) -> None:
    give(q, "a", 1)
    assert give(q, "b", 2)[:2] == ("batched", "a")
    assert give(q, "b", 2)[:2] == ("batched", "a")
    assert give(q, "a", 1)[:2] == ("duplicate", "a")
    q.move(2)
    q.claim()
    assert give(q, "b", 2)[:2] == ("batched", "a")
    assert items(q, "a") == [1, 2]
    assert list(q.holding().hashes["jobs"]) == ["a"]


def test_many_items_of_several_keys_in_one_call(q: Probe) -> None:
    jobs = [job(f"j{i:02}", i, key=f"k{i % 3}") for i in range(24)]
    q.run(enqueue_commands.enqueue(q.keys, jobs))
    opened = {id: items(q, id) for id in sorted(q.holding().hashes["jobs"])}
    assert opened == {
        **{f"j{k:02}": [k, k + 3, k + 6, k + 9] for k in range(3)},
        **{f"j{k:02}": [k, k + 3, k + 6, k + 9] for k in range(12, 15)},
    }


def test_a_megabyte_of_items_is_full(q: Probe) -> None:
    text = "x" * 300_000
    for i in range(3):
        give(q, f"a{i}", text, HUGE)
    assert give(q, "b", text, HUGE) == ("created", "b", 2)
    assert q.taken() == ["a0"]
    assert (len(items(q, "a0")), len(items(q, "b"))) == (3, 1)
    assert q.holding().meta["large"] == "1"


def test_a_call_adds_to_few_large_batches(q: Probe) -> None:
    """They are read and written whole. An item that finds no room opens another batch."""
    for i in range(4):
        give(q, f"a{i}", "x" * 900_000, HUGE, f"k{i}")
    receipts = q.add_many(*(job(f"b{i}", 1, HUGE, f"k{i}") for i in range(4)))
    results = [receipt.result for receipt in receipts]
    assert results == ["batched", "batched", "created", "created"]
    assert [len(items(q, id)) for id in ("a0", "a1", "a2", "b2", "a3", "b3")] == [2, 2, 1, 1, 1, 1]
    assert sorted(q.taken()) == ["a2", "a3"]


def test_small_items_that_are_large_together_are_weighed(q: Probe) -> None:
    for i in range(3):
        give(q, f"a{i}", "x" * 6_000, HUGE)
    assert q.holding().meta["large"] == "1"


def test_one_item_may_have_a_megabyte(q: Probe) -> None:
    text = "x" * 999_000
    assert give(q, "a", text, HUGE) == ("created", "a", 2)
    assert give(q, "b", 1, HUGE)[:2] == ("batched", "a")
    assert give(q, "c", "y" * 1000, HUGE) == ("created", "c", 2)
    assert items(q, "a") == [text, 1]


@pytest.mark.parametrize("codec", ["msgpack", "pickle"])
def test_items_travel_as_they_were_encoded(q: Probe, codec: str) -> None:
    sent = [{"n": 9007199254740993, "empty": []}, b"\x06\n\x04\x00", ["x", None]]
    for i, item in enumerate(sent):
        body = encode_body(Body("app.tasks:index", (item,), codec=codec))  # type: ignore[arg-type]
        give(q, f"a{i}", None, body=body)
    (read,) = decode_body(q.holding().hashes["jobs"]["a0"], allow_pickle=True).args
    assert read == sent
    q.legal = codec != "pickle"  # which nobody reads without being asked to


def test_numbers_and_empty_lists_stay_what_they_are(q: Probe) -> None:
    give(q, "a", {"n": 9007199254740993, "empty": []})
    give(q, "b", [])
    assert items(q, "a") == [{"n": 9007199254740993, "empty": []}, []]


def test_the_first_item_says_priority_and_expiry(q: Probe) -> None:
    give(q, "a", 1, priority=3, constraints=f"x=+{4 * SECOND} k=k f={WAY}")
    q.move(1)
    give(q, "b", 2, priority=8)
    due = q.holding().due["a"]
    assert (q.holding().sets["due:3"], q.zset("expiring")) == ({"a": due}, {"a": due + 4 * SECOND})


def test_a_full_job_wakes_someone(q: Probe) -> None:
    for i in range(3):
        give(q, f"a{i}", i)
    q.hear()
    q.raw.zadd(q.keys["keep"], {"k1": q.now + 20 * SECOND})
    give(q, "a3", 3)
    assert q.hear() == "-"


def test_items_of_a_job_that_expired_unbegun_stay_with_it(q: Probe) -> None:
    give(q, "a", 1, constraints=f"x=+{SECOND} k=k f={WAY}")
    q.move(4)
    assert q.taken() == []
    assert give(q, "b", 2)[:2] == ("created", "b")
    assert items(q, "a") == [1]
