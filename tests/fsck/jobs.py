"""Corruptions of jobs: of the sets that list them, of their bodies, records and scores."""

from __future__ import annotations

from tests.fsck.case import DAY, YEAR, case, record

HELD, DONE = record(), record("1700000000000000C")
NEVER = record("0000000000000000-", " 5 0 0 0 0 0 - 1700000000000000")
SETS = ("active", "completed", "failed", "cancelled")
HOME = {"active": "run-0", "completed": "done", "failed": "bad", "cancelled": "back"}

JOBS = [
    # -- ids in two sets
    *(
        case(
            f"a job that is due is {state} too",
            ("ZADD", f"@{state}", "%0", "wait"),
            finds=("sets", "wait"),
            wait="due",
        )
        for state in SETS
    ),
    *(
        case(
            f"a job that is {state} is due too",
            ("ZADD", f"@due:{p}", "%0", id),
            finds={("sets", id), *([("level", id)] if (id, p) == ("back", "alone") else [])},
            **{id: state if state in ("active", "completed", "failed") else "due"},
        )
        for p in ("9", "5", "0", "alone")
        for state, id in HOME.items()
    ),
    *(
        case(
            f"a job that is {state} is {other} too",
            ("ZADD", f"@{other}", "%0", HOME[state]),
            finds=("sets", HOME[state]),
            **{HOME[state]: state},
        )
        for state in ("active", "completed", "failed")
        for other in SETS
        if other != state
    ),
    case("it is in two due sets", ("ZADD", "@due:3", "%0", "wait"), finds=("sets", "wait")),
    case(
        "it is in two due sets, and has a record",
        ("ZADD", "@due:9", "%0", "again"),
        finds=("sets", "again"),
        again="due",
    ),
    *(
        case(
            f"it is set aside and {id}",
            ("ZADD", "@trash:2", "%0", id),
            finds=("sets", id),
            **{id: place},
        )
        for id, place in (("wait", "due"), ("run-0", "active"), ("done", "completed"))
    ),
    case("it is set aside twice", ("ZADD", "@trash:2", "%0", "aside"), finds=("sets", "aside")),
    case(
        "it is blocked, and due too",
        ("ZADD", "@due:5", "%0", "child"),
        finds=("sets", "child"),
        child="due",
    ),
    case(
        "it is blocked at no time", ("ZADD", "@blocked", "inf", "child"), finds=("score", "child")
    ),
    case(
        "it ran, and is blocked",
        ("HSET", "@run", "child", record("1700000000000000C")),
        finds=("outcome", "child"),
        child="completed",
    ),
    case(
        "no set lists it, which was blocked",
        ("ZREM", "@blocked", "child"),
        finds=("unlisted", "child"),
        child="blocked",
    ),
    # -- ids in no set
    *(
        case(
            f"no set lists it, which was {was}",
            ("ZREM", f"@{was}", id),
            finds=("unlisted", id),
            **{id: place},
        )
        for was, id, place in (
            ("due:5", "wait", "due"),
            ("due:9", "wait-9", "due"),
            ("due:5", "again", "due"),
            ("active", "run-0", "active"),
            ("active", "run-asked", "active"),
            ("completed", "done", "completed"),
            ("failed", "bad", "failed"),
            ("cancelled", "back", "due"),
            ("trash:5", "aside", "due"),
        )
    ),
    case(
        "no set lists it, and its worker had seen that it was cancelled",
        ("HSET", "@jobs", "x", '{"task":"t"}'),
        ("HSET", "@run", "x", record("1700000000000000X")),
        finds=("unlisted", "x"),
        x="cancelled",
    ),
    case(
        "no set lists it, and it had killed its workers",
        ("HSET", "@jobs", "x", '{"task":"t"}'),
        ("HSET", "@run", "x", record(rest=" 5 0 3 0 0 1700000000000000 w 1700000000000000")),
        finds=("unlisted", "x"),
        x="failed",
    ),
    # -- without a body
    *(
        case(f"no body, {id}", ("HDEL", "@jobs", id), finds=("body", id), **{id: place})
        for id, place in (
            ("wait", "failed"),
            ("later", "failed"),
            ("again", "failed"),
            ("run-0", "active"),
            ("done", "completed"),
            ("bad", "failed"),
            ("back", "cancelled"),
        )
    ),
    case("no body, set aside", ("HDEL", "@jobs", "aside"), finds=("orphan", "aside"), aside=None),
    # -- of jobs that are not
    *(
        case(f"{part} of no job", ("HSET", f"@{part}", "x", value), finds=("orphan", "x"), x=None)
        for part, value in (("run", DONE), ("results", "1"), ("notes", 'P 1 [0.5,""]'))
    ),
    case("due names no job", ("ZADD", "@due:0", "%0", "x"), finds=("body", "x"), x="failed"),
    case(
        "alone names no job",
        ("ZADD", "@due:alone", "%0", "x"),
        finds={("body", "x"), ("level", "x")},
        x="failed",
    ),
    *(
        case(
            f"{part} names no job",
            ("ZADD", f"@{part}", "%0", "x"),
            finds={("body", "x"), *([] if part == "cancelled" else [("record", "x")])},
            x="failed" if part == "active" else part,
        )
        for part in SETS
    ),
    case("trash names no job", ("ZADD", "@trash:0", "%0", "x"), finds=("orphan", "x"), x=None),
    # -- the run record
    case(
        "active without record", ("HDEL", "@run", "run-0"), finds=("record", "run-0"), run_0="due"
    ),
    case("completed without", ("HDEL", "@run", "done"), finds=("record", "done"), done="completed"),
    case("failed without", ("HDEL", "@run", "bad"), finds=("record", "bad"), bad="failed"),
    case("notes without", ("HDEL", "@run", "again"), finds=("record", "again"), again="due"),
    *(
        case(
            f"a record that is {what}",
            ("HSET", "@run", "run-0", line),
            finds=("record", "run-0"),
            run_0=place,
        )
        for what, line, place in (
            ("empty", "", "due"),
            ("noise", "\x00\xff", "due"),
            ("without head", HELD[1:], "due"),
            ("of an odd outcome", record("1700000000000000?"), "due"),
            ("of a token without end", record("9999999999999999-"), "due"),
            ("a head alone", HELD[:35], "active"),
            ("cut", HELD[:50], "active"),
            ("of priority 12", record(rest=" 12 1 0 0 0 17 w1 17"), "active"),
            ("of odd numbers", record(rest=" 5 x 0 0 0 17 w1 17"), "active"),
            ("of endless attempts", record(rest=" 5 99999999999 0 0 0 17 w1 17"), "active"),
            ("due at no time", record(rest=" 5 1 0 0 0 17 w1 inf"), "active"),
            ("due in fractions", record(rest=" 5 1 0 0 0 17 w1 1.5"), "active"),
            ("started at no time", record(rest=" 5 1 0 0 0 99999999999999999 w1 17"), "active"),
            ("alone twice", record(rest=" 5 1 0 0 2 17 w1 17"), "active"),
        )
    ),
    *(
        case(
            f"{id} though its record says {stamp}",
            ("HSET", "@run", id, record(f"1700000000000000{stamp}")),
            finds={("outcome", id), *(() if id != "done" else (("result", id),))},
            **{id: place},
        )
        for id, stamp, place in (
            ("run-0", "C", "completed"),
            ("run-0", "F", "failed"),
            ("run-0", "X", "cancelled"),
            ("run-0", "R", "due"),
            ("run-0", "S", "due"),
            ("run-0", "L", "due"),
            ("run-0", "K", "due"),
            ("done", "-", "active"),
            ("done", "F", "failed"),
            ("done", "R", "due"),
            ("bad", "-", "active"),
            ("bad", "C", "completed"),
            ("bad", "R", "due"),
            ("again", "C", "completed"),
            ("again", "F", "failed"),
            ("again", "X", "cancelled"),
        )
    ),
    case(
        "active, never claimed",
        ("HSET", "@run", "run-0", NEVER),
        finds=("outcome", "run-0"),
        run_0="due",
    ),
    case(
        "completed, never claimed",
        ("HSET", "@run", "done", NEVER),
        finds={("outcome", "done"), ("result", "done")},
        done="due",
    ),
    case(
        "failed, never claimed", ("HSET", "@run", "bad", NEVER), finds=("outcome", "bad"), bad="due"
    ),
    # -- the wrong due set
    *(
        case(
            f"due in {p}, of priority 5",
            ("ZREM", "@due:5", "again"),
            ("ZADD", f"@due:{p}", "%3600", "again"),
            finds=("level", "again"),
            again="due",
        )
        for p in ("9", "0", "alone")
    ),
    case(
        "alone without having died",
        ("ZADD", "@due:alone", "%0", "x"),
        ("HSET", "@jobs", "x", '{"task":"t"}'),
        finds=("level", "x"),
        x="due",
    ),
    case(
        "dies often, and is not alone",
        ("HSET", "@run", "again", record("1700000000000000R", " 5 1 0 2 0 17 w1 17")),
        finds=("level", "again"),
        again="due",
    ),
    # -- scores
    *(
        case(
            f"{id} at {score}", ("ZADD", f"@{part}", score, id), finds=("score", id), **{id: place}
        )
        for part, id, place in (
            ("due:5", "wait", "due"),
            ("due:9", "wait-9", "due"),
            ("active", "run-0", "active"),
            ("completed", "done", "completed"),
            ("failed", "bad", "failed"),
            ("cancelled", "back", "cancelled"),
        )
        for score in ("inf", "-inf", "1e17", "-1e17", "0.5", "1700000000000000.5")
    ),
    *(
        case(f"{id} in other units", ("ZADD", f"@{part}", score, id), finds=("score", id))
        for part, id in (("due:5", "wait"), ("active", "run-0"))
        for score in ("0", "-1", "1795000000", "1795000000000")
    ),
    *(
        case(f"{id} far ahead", ("ZADD", f"@{part}", f"%{ahead}", id), finds=("score", id))
        for part, id, ahead in (
            ("active", "run-0", 110 * YEAR),
            ("completed", "done", 2 * DAY),
            ("failed", "bad", 2 * DAY),
            ("cancelled", "back", 2 * DAY),
        )
    ),
]
