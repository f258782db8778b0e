"""What a schedule's record and the ids of its jobs say, and what they do not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bide.model.payload.body import Body, decode_body, encode_body, of_schedule
from bide.model.schedule import Schedule, Timing, id_of, time_of
from bide.protocol.commands.enqueue import Receipt
from bide.queue.schedules import ran

AT = 1_795_215_600_000_000
LINE = b'1 every 5 60000000 0 once 0 0 0 0 1 0: 2\n{"every_us":60000000}\na:b'


def test_an_id_says_the_time_of_a_job_of_that_schedule_and_of_no_other() -> None:
    id = id_of("nightly", AT)
    assert time_of(id, "nightly") == datetime.fromtimestamp(AT / 1e6, UTC)
    assert time_of(id, None) is None
    assert time_of(id, "other") is None
    assert time_of(id_of("a@b", AT), "a@b") is not None
    for odd in (id_of("nightly", "cr5zz1yhc2x6pk3brtb2"), "nightly@", "nightly", f"nightly@{AT}0"):
        assert time_of(odd, "nightly") is None


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_a_body_says_its_schedule_and_is_else_as_it_was(codec: str) -> None:
    body = Body("a:b", [1, "x"], {"y": [None]}, codec=codec)  # type: ignore[arg-type]
    marked = decode_body(of_schedule(encode_body(body), 'o"dd'))
    assert marked.schedule == 'o"dd'
    assert (marked.task, list(marked.args), marked.kwargs) == ("a:b", [1, "x"], {"y": [None]})


def test_a_record_is_read() -> None:
    found = Schedule.read("tick", LINE)
    assert found is not None
    assert (found.timing, found.times, found.closed) == (Timing(every_us=60_000_000), (2,), False)
    assert Schedule.read("tick", LINE + b"\nx=+5") == found, "of jobs that have terms"


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"x", b"\n\n", LINE.replace(b"every 5", b"cron 5"), LINE.replace(b"once", b"no")),
        *(LINE.replace(b": 2", b": x"), LINE.replace(b": 2", b" 2"), LINE.replace(b"{", b"[")),
        *(LINE.replace(b": 2", b": 9999999999999999"), LINE.replace(b"a:b", b"\xff")),
        LINE.replace(b": 2", b": " + b"9" * 400),
        *(LINE.replace(b"60000000", number) for number in (b"-1", b"9" * 19, b"9" * 400)),
    ],
)
def test_what_is_no_record_is_none(line: bytes) -> None:
    assert Schedule.read("tick", line) is None


DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        (Timing(cron="0 0 * * *", tz="UTC"), [10 * DAY, 9 * DAY, 8 * DAY]),
        (Timing(cron="* * * * *", tz="UTC"), [10 * DAY - n * 60_000_000 for n in range(3)]),
        (Timing(cron="0 0 1 1 *", tz="UTC"), [0]),
        (Timing(every_us=4 * DAY), [10 * DAY, 6 * DAY, 2 * DAY]),
        (Timing(at_us=(DAY, 2 * DAY, 5 * DAY, 9 * DAY, 11 * DAY)), [9 * DAY, 5 * DAY, 2 * DAY]),
    ],
)
def test_times_that_have_passed(timing: Timing, expected: list[int]) -> None:
    found = Schedule.read("tick", LINE)
    assert found is not None
    assert found._replace(timing=timing, last_us=10 * DAY).passed(3) == expected
    assert found._replace(timing=timing, last_us=0).passed(3) == [], "none has fired"


def test_a_run_that_is_sent_again_finds_its_own_job() -> None:
    receipt = Receipt("nightly@1", 5, "duplicate")
    assert ran(receipt, "nightly", "mail", "nightly@1").created
    assert not ran(receipt, "nightly", "mail", "nightly@2").created
