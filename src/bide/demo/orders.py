"""Orders, as a CSV file tells them.

    order,placed,deadline,paid_after
    A-0001,0.0,2.5,1.2
    A-0002,0.1,2.0,

`placed` counts in seconds from the start of the scenario; `deadline` (by when it must be paid) and
`paid_after` (when it is; empty for never) count from when the order was placed.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from bide.errors import BideError

COLUMNS: Final = ("order", "placed", "deadline", "paid_after")

_NUMBER: Final = re.compile(r"[\w.+-]{1,100}", re.ASCII)
_LONGEST: Final = 366 * 86_400.0


class OrdersError(BideError):
    """The file with the orders cannot be used; the message says what to do about it."""


class Order(NamedTuple):
    """One order; all times in seconds of the scenario."""

    number: str
    placed: float
    """Since the start of the scenario."""
    deadline: float
    """By when it must be paid, since it was placed."""
    paid_after: float | None
    """When it is paid, since it was placed; None for never."""


class Orders(NamedTuple):
    """What a file holds."""

    good: list[Order]
    bad: list[str]
    """One sentence for each row that was skipped, with the number of its line."""


def sample() -> Path:
    """The orders that come with bide."""
    return Path(str(resources.files("bide.demo").joinpath("orders.csv")))


def read_orders(path: Path) -> Orders:
    """Read orders from a CSV file; bad rows are skipped and told of.

    Raises:
        OrdersError: the file cannot be read, is no such file, or holds no order.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            orders = _read(path, file)
    except OSError as error:
        raise OrdersError(
            f"{path} cannot be read ({error.strerror}); give the path of a CSV file with the "
            f"columns {','.join(COLUMNS)}, or none to use the sample."
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise OrdersError(
            f"{path} is not a CSV file in UTF-8 ({error}); save it as one, with the columns "
            f"{','.join(COLUMNS)}."
        ) from None
    if not orders.good:
        raise OrdersError(
            f"{path} holds no usable order{_first(orders.bad)}; give it at least one row such as "
            "A-0001,0.0,2.5,1.2 under its header."
        )
    return orders


def scale(orders: list[Order], count: int) -> list[Order]:
    """Cut or repeat orders until there are `count`; what is repeated gets new numbers."""
    if count <= len(orders):
        return orders[:count]
    repeats = -(-count // len(orders))
    return [
        order._replace(number=f"{order.number}.{repeat}")
        for repeat in range(1, repeats + 1)
        for order in orders
    ][:count]


def write_orders(path: Path, orders: Iterable[Order]) -> None:
    """Write a CSV file that `read_orders` reads."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(orders)


def _read(path: Path, file: TextIO) -> Orders:
    rows = csv.reader(file)
    header = next(rows, None)
    if header is None:
        raise OrdersError(
            f"{path} is empty; its first line must be {','.join(COLUMNS)}, and each line after it "
            "an order."
        )
    names = [name.strip() for name in header]
    missing = [column for column in COLUMNS if names.count(column) != 1]
    if missing:
        raise OrdersError(
            f"{path} has the header {','.join(names)[:200]!r}, in which {', '.join(missing)} "
            f"should be, each once; make it {','.join(COLUMNS)}."
        )
    places = [names.index(column) for column in COLUMNS]
    good: list[Order] = []
    bad: list[str] = []
    lines: dict[str, int] = {}
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        try:
            if len(row) != len(names):
                raise _BadRow(f"has {len(row)} fields, not {len(names)}")
            order = _order(*(row[place].strip() for place in places))
            first = lines.setdefault(order.number, rows.line_num)
            if first != rows.line_num:
                raise _BadRow(f"has the order {order.number} again, which is on line {first}")
        except _BadRow as reason:
            bad.append(f"line {rows.line_num} {reason}; skipped.")
        else:
            good.append(order)
    return Orders(good, bad)


class _BadRow(ValueError):
    """What is wrong with a row."""


def _order(number: str, placed: str, deadline: str, paid_after: str) -> Order:
    if not _NUMBER.fullmatch(number):
        raise _BadRow(
            f"has the order number {number[:60]!r}, which is not 1 to 100 of A-Z a-z 0-9 . _ + -"
        )
    return Order(
        number,
        _seconds("placed", placed),
        _seconds("deadline", deadline),
        _seconds("paid_after", paid_after) if paid_after else None,
    )


def _seconds(column: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST:
        raise _BadRow(f"has {column} {text[:60]!r}, which is not a number of seconds, 0 or more")
    return seconds


def _first(bad: list[str]) -> str:
    return f" ({bad[0].removesuffix('; skipped.')})" if bad else ""
