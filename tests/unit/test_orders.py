"""The demo's CSV reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from bide.cli.demo.books import DemoError, Order, read_orders, sample, scale, write_orders
from bide.errors import BideError

HEADER = "order,placed,deadline,paid_after\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.csv"


def test_the_sample_is_good_and_leaves_no_payment_to_chance() -> None:
    orders = read_orders(sample())
    assert orders.bad == []
    assert len(orders.good) == 300
    assert len({order.number for order in orders.good}) == 300
    paid = [o.paid_after - o.deadline for o in orders.good if o.paid_after is not None]
    assert min(map(abs, paid)) >= 0.25
    assert sum(margin < 0 for margin in paid) > 100
    assert sum(margin > 0 for margin in paid) > 10
    assert len(paid) < 250


def test_what_is_read(file: Path) -> None:
    file.write_text(HEADER + "A-1,0.5,2,1.25\nA-2, 1 ,2.5,\n")
    assert read_orders(file) == ([Order("A-1", 0.5, 2.0, 1.25), Order("A-2", 1.0, 2.5, None)], [])


def test_columns_are_found_by_name_past_a_byte_order_mark(file: Path) -> None:
    file.write_text(
        "\ufeffitem,placed,paid_after,deadline,order\r\nsoap,1,2,3,A\r\n\r\n", encoding="utf-8"
    )
    assert read_orders(file) == ([Order("A", 1.0, 3.0, 2.0)], [])


def test_bad_rows_are_told_with_their_line_and_skipped(file: Path) -> None:
    rows = [
        "A,0,2,1",
        "B,soon,2,1",
        "C,0,-2,",
        "D,0,inf,",
        "E,0,nan,",
        "F,0,2",
        "G,0,2,1,0",
        "two words,0,2,",
        ",0,2,",
        "",
        "A,1,2,",
        "H,0,2,later",
        "I,0,2,",
    ]
    file.write_text(HEADER + "\n".join(rows))
    good, bad = read_orders(file)
    assert [order.number for order in good] == ["A", "I"]
    assert bad == [
        "line 3 has placed 'soon', which is not a number of seconds, 0 or more; skipped.",
        "line 4 has deadline '-2', which is not a number of seconds, 0 or more; skipped.",
        "line 5 has deadline 'inf', which is not a number of seconds, 0 or more; skipped.",
        "line 6 has deadline 'nan', which is not a number of seconds, 0 or more; skipped.",
        "line 7 has 3 fields, not 4; skipped.",
        "line 8 has 5 fields, not 4; skipped.",
        "line 9 has the order number 'two words', which is not 1 to 100 of A-Z a-z 0-9 . _ + -; "
        "skipped.",
        "line 10 has the order number '', which is not 1 to 100 of A-Z a-z 0-9 . _ + -; skipped.",
        "line 12 has the order A again, which is on line 2; skipped.",
        "line 13 has paid_after 'later', which is not a number of seconds, 0 or more; skipped.",
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty; its first line must be order,placed,deadline,paid_after"),
        (b"id,when\n1,2\n", "has the header 'id,when', in which order, placed, deadline, paid_aft"),
        (b"order;placed;deadline;paid_after\n", "make it order,placed,deadline,paid_after"),
        (b"order,order,placed,deadline,paid_after\n", "in which order should be, each once"),
        (HEADER.encode(), "holds no usable order; give it at least one row"),
        (HEADER.encode() + b"A,x,2,\n", "no usable order (line 2 has placed 'x'"),
        (b"PK\x03\x04\xff\xfe", "is not a CSV file in UTF-8"),
        (HEADER.encode() + b"A" * 200_000, "is not a CSV file in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used(file: Path, content: bytes, says: str) -> None:
    file.write_bytes(content)
    with pytest.raises(DemoError) as caught:
        read_orders(file)
    assert isinstance(caught.value, BideError)
    assert says in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(file: Path) -> None:
    with pytest.raises(DemoError, match=r"No such file.*give the path of a CSV file"):
        read_orders(file)
    with pytest.raises(DemoError, match="Is a directory"):
        read_orders(file.parent)


def test_scaling_cuts_or_repeats_under_new_numbers() -> None:
    orders = [Order("A", 0, 1, None), Order("A.1", 1, 2, 1)]
    assert scale(orders, 1) == orders[:1]
    assert scale(orders, 2) == orders
    assert [o.number for o in scale(orders, 5)] == ["A.1", "A.1.1", "A.2", "A.1.2", "A.3"]
    assert scale(orders, 5)[3] == Order("A.1.2", 1, 2, 1)


def test_what_is_written_is_read_again(file: Path) -> None:
    orders = read_orders(sample()).good
    write_orders(file, orders)
    assert read_orders(file) == (orders, [])
