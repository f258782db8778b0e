"""Corruptions of what a queue holds of schedules."""

from __future__ import annotations

from tests.fsck.case import case

RECORD = '1 every 5 60000000 0 once 0 0 0 0 1 0: 2\n{"every_us":60000000}\na:b'

SCHEDULES = [
    *(
        case(f"a record {text!r}", ("HSET", "@schedule", "nightly", text), finds=finds)
        for finds in [("schedule", "nightly")]
        for text in (
            *("", "x", "\x00\xff", RECORD.replace("every", "often"), RECORD.replace("once", "no")),
            *(RECORD.replace("60000000 ", "0 "), RECORD.replace(": 2", ": 2 1")),
            *(RECORD.replace("1 0:", "9999999999999999 0:"), RECORD.replace("\n", "")),
            *(RECORD.replace(": 2", ": 9999999999999999"), RECORD.replace(": 2", ": 2 3")),
            RECORD.replace("1 every", "1 at").replace(
                ": 2", ": " + " ".join(map(str, range(1, 200)))
            ),
        )
    ),
    case("a lost body", ("HDEL", "@scheduled", "nightly"), finds=("schedule", "nightly")),
    case("not to fire", ("ZREM", "@schedules", "nightly"), finds=("schedule", "nightly")),
    *(
        case(f"to fire {at}", ("ZADD", "@schedules", at, "nightly"), finds=("schedule", "nightly"))
        for at in ("inf", "-inf", "0.5", "%60")
    ),
    *(
        case(f"{name}, and to fire", ("ZADD", "@schedules", "%60", name), finds=("schedule", name))
        for name in ("paused", "over")
    ),
    case("a time of no schedule", ("ZADD", "@schedules", "%60", "x"), finds=("schedules", "x")),
    case("a body of no schedule", ("HSET", "@scheduled", "x", "{}"), finds=("scheduled", "x")),
    case("schedules without mark", ("HDEL", "@meta", "scheduled"), finds=("schedule", "")),
]
