"""The books of the order desk name each mistake."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.orders import ROLLED_BACK, OrderBooks

PAID = {1: "paid", 2: "paid"}
ONE_EACH = Counter({1: 1, 2: 1})
JOBS = {"unpaid-00001", "ship-00001", "unpaid-00002", "ship-00002"}


def unbalanced(
    orders: dict[int, str] = PAID,
    effects: Counter[int] = ONE_EACH,
    left: int = 0,
    jobs: set[str] = JOBS,
) -> list[str]:
    return [*OrderBooks(orders, effects, left).unbalanced({1, 2}, jobs)]


def test_books_that_balance() -> None:
    assert unbalanced() == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (unbalanced(left=3), "3 rows are left in the outbox"),
        (unbalanced(orders={1: "paid", 2: "open"}), "order 2 is open, not paid"),
        (unbalanced(jobs=JOBS - {"ship-00002"}), "order 2 has no job ship-00002"),
        (unbalanced(jobs=JOBS - {"unpaid-00001"}), "order 1 has no job unpaid-00001"),
        (unbalanced(effects=Counter({1: 2, 2: 1})), "order 1 has 2 parcels, not 1"),
        (unbalanced(effects=Counter({1: 1})), "order 2 has 0 parcels, not 1"),
        (
            unbalanced(jobs=JOBS | {f"ship-{ROLLED_BACK + 1}"}),
            f"ship-{ROLLED_BACK + 1} is a job without its order",
        ),
        (
            unbalanced(effects=ONE_EACH + Counter({ROLLED_BACK: 1})),
            f"a parcel without its order {ROLLED_BACK}",
        ),
    ],
)
def test_each_imbalance_is_found(found: list[str], said: str) -> None:
    assert found == [said]


def test_a_committed_order_that_is_gone() -> None:
    found = unbalanced(orders={1: "paid"}, effects=Counter({1: 1}), jobs=set(sorted(JOBS)[::2]))
    assert "order 2 was committed, and is gone" in found
