"""What is asked of a job, written for the server and read back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bide import Queue, UsageError
from bide.model.options import Constraints, write_constraints

AT = datetime(2035, 6, 1, 9, 0, tzinfo=UTC)
AT_US = round(AT.timestamp() * 1e6)


@pytest.mark.parametrize(
    ("expires", "expires_us"),
    [
        (None, None),
        ("5m", 1_000 + 300_000_000),
        (0.5, 1_000 + 500_000),
        (timedelta(seconds=2), 1_000 + 2_000_000),
        (AT, AT_US),
    ],
)
def test_what_is_written_is_read(expires: Any, expires_us: int | None) -> None:
    assert Constraints.read(write_constraints(expires).encode()).expires_us(1_000) == expires_us


@pytest.mark.parametrize("line", [None, b"", b"x=", b"x=5", b"x=+", b"x=+-1", b"\xff=@1", b"e=x"])
def test_what_cannot_be_read_asks_nothing(line: bytes | None) -> None:
    assert Constraints.read(line) == Constraints()


@pytest.mark.parametrize(
    ("expires", "says"),
    [
        (0, "expires=0 would cancel the job before it is due"),
        ("0s", "expires='0s' would cancel"),
        (-1, "expires"),
        ("soon", "expires"),
        (datetime(2035, 6, 1, 9, 0), "expires=2035-06-01T09:00:00 has no time zone"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_said(expires: Any, says: str) -> None:
    queue = Queue("mail", url="redis://127.0.0.1:1/0")
    with pytest.raises(UsageError, match=says):
        queue.prepare("app:send", expires=expires)
    with pytest.raises(UsageError, match=says):
        queue.task(expires=expires)(test_what_is_written_is_read)
