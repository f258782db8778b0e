"""Corruptions of groups: of their order, of who runs, of their records and markers."""

from __future__ import annotations

from tests.fsck.case import case, record

LATER = 9_000_000_000_000_000
NO_JOB = f"g {LATER} nobody"
WAIT = ("in-wait", "in-wait-2", "in-later", "in-turn-2")
MARKER = (("groups", "idle"), ("turns", "idle"))

GROUPS = [
    case(
        "no order has it",
        ("DEL", "@order"),
        finds={("groups", "limited"), *(("group", id) for id in WAIT)},
        in_wait="due",
    ),
    case("an entry of no job", ("ZADD", "@order", "0", NO_JOB), finds=("order", "nobody")),
    case("an entry of no form", ("ZADD", "@order", "0", "noise"), finds=("order", "noise")),
    case(
        "an entry with a time of its own",
        ("ZADD", "@order", "0", "g 00000000000000000 in-wait"),
        finds=("order", "in-wait"),
        in_wait="due",
    ),
    case(
        "an entry of a job of no group",
        ("ZADD", "@order", "0", f"g {LATER:017} wait"),
        finds=("order", "wait"),
        wait="due",
    ),
    case(
        "one runs uncounted",
        ("DEL", "@held"),
        finds={("group", "in-run"), ("groups", "g")},
        in_run="active",
    ),
    case("a holder of no job", ("ZADD", "@held", "0", "g x"), finds=("held", "x")),
    case("a holder of no form", ("ZADD", "@held", "0", "noise"), finds=("held", "noise")),
    case("a holder that waits", ("ZADD", "@held", "0", "g in-wait"), finds=("held", "in-wait")),
    case(
        "a holder of another group",
        ("ZADD", "@held", "0", "idle in-run"),
        finds={("held", "in-run"), ("groups", "idle")},
    ),
    case("a holder with a score", ("ZADD", "@held", "7", "g in-run"), finds=("score", "g in-run")),
    # -- records and markers
    case("a group is unknown", ("HDEL", "@groups", "idle"), finds={*MARKER}),
    *(
        case(f"a record {text!r}", ("HSET", "@groups", "idle", text), finds={*MARKER})
        for text in ("", "noise", "5 0 0 0 12 0", "5 0 0 0 6 " + "9" * 60)
    ),
    case(
        "a record of nothing",
        ("HSET", "@groups", "x", "5 0 0 0 0 0"),
        *(("HDEL", f"@{name}", "in-set-aside") for name in ("jobs", "terms")),
        ("DEL", "@trash:grouped"),
        finds=("groups", "x"),
    ),
    case("no markers", ("DEL", "@turns"), finds={("groups", "idle"), ("groups", "limited")}),
    case(
        "a marker while one runs",
        ("HSET", "@groups", "g", "5 0 0 0 5 1700000000000000"),
        finds=("groups", "g"),
    ),
    case(
        "a marker at another level",
        ("HSET", "@groups", "idle", "9 0 0 0 0 0"),
        finds={*MARKER},
    ),
    case("a marker of no group", ("ZADD", "@turns", "0", "e 1 x"), finds=("turns", "x")),
    case("a marker of no form", ("ZADD", "@turns", "0", "noise"), finds=("turns", "noise")),
    case("nobody rests until then", ("ZADD", "@resting", "1", "idle"), finds=("resting", "idle")),
    case(
        "one rests and nothing says until when",
        ("HSET", "@groups", "x", f"5 0 0 0 0 {LATER} 0 q1 1000000 1 {LATER} 0 {LATER}"),
        finds=("groups", "x"),
    ),
    case("groups without mark", ("HDEL", "@meta", "groups"), finds=("meta", "groups")),
    # -- jobs that are put elsewhere
    case(
        "its constraints are lost",
        ("HDEL", "@terms", "in-run"),
        finds=("held", "in-run"),
        in_run="active",
    ),
    case(
        "its body is lost",
        ("HDEL", "@jobs", "in-wait"),
        finds=("body", "in-wait"),
        in_wait="failed",
    ),
    case(
        "it is among those of no group",
        ("ZREM", "@due:grouped", "in-later"),
        ("ZADD", "@due:5", "%60", "in-later"),
        finds={("order", "in-later"), ("level", "in-later"), ("group", "in-later")},
        in_later="due",
    ),
    case(
        "one that runs is due too",
        ("ZADD", "@due:grouped", "%0", "in-run"),
        finds=("sets", "in-run"),
        in_run="active",
    ),
    case(
        "one that waits is active too",
        ("ZADD", "@active", "%60", "in-wait"),
        finds={("sets", "in-wait")},
        in_wait="due",
    ),
    case(
        "its record says that it is done",
        ("HSET", "@run", "in-run", record("1700000000000000C")),
        finds=("outcome", "in-run"),
        in_run="completed",
    ),
]
