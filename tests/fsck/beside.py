"""Corruptions of what a queue holds beside: settings, workers, listeners, keys of other types."""

from __future__ import annotations

from bide.protocol.keys import GLOBAL, LAYOUT, META
from tests.fsck.case import case
from tests.fsck.conftest import key

BESIDE = [
    # -- results, notes, marks
    *(
        case(f"a result of {id}", ("HSET", "@results", id, "1"), finds=("result", id))
        for id in ("wait", "again", "run-0", "bad", "back")
    ),
    *(
        case(f"notes {text!r}", ("HSET", "@notes", "again", text), finds=("notes", "again"))
        for text in ("", "x", "E 1 2 3", "L x", "R 1 2", 'P 1 [0.5,""]\nnoise', "\x00\xff")
    ),
    case(
        "a large body without mark",
        ("HSET", "@jobs", "wait", '{"task":"t","args":["' + "x" * 20_000 + '"]}'),
        finds=("mark", "wait"),
        wait="due",
    ),
    case(
        "kept for its own time without mark", ("HDEL", "@meta", "own"), finds=("mark", "done-kept")
    ),
    # -- who asks and waits
    *(
        case(f"asked to stop, {id}", ("ZADD", "@asked", "%0", id), finds=("asked", id))
        for id in ("wait", "done", "x")
    ),
    case("asked at no time", ("ZADD", "@asked", "inf", "run-asked"), finds=("score", "run-asked")),
    *(
        case(f"waited for, {id}", ("ZADD", "@waiters", "%60", id), finds=("waiters", id))
        for id in ("done", "bad", "back")
    ),
    case("waited for to no time", ("ZADD", "@waiters", "inf", "later"), finds=("score", "later")),
    # -- what jobs wait for
    *(
        case(f"an edge {member!r}", ("ZADD", "@edges", 0, member), finds=("edges", id))
        for member, id in (
            ("x", "x"),
            (">a b c", ">a b c"),
            ("!base D", "!base D"),
            ("<wait base", "wait"),
            ("<wait {other}y", "wait"),
            (">gone x", "gone"),
            (">done {other}y", "done"),
            (">wait child", "child"),
            ("=nobody child", "nobody"),
        )
    ),
    case("an edge with a score", ("ZADD", "@edges", 5, ">base child"), finds=("edges", "base")),
    case(
        "nobody would tell it",
        ("ZREM", "@edges", ">base child"),
        finds=("edges", "child"),
        child="blocked",
    ),
    case(
        "its parent has ended, and nobody would tell it",
        ("ZADD", "@edges", 0, ">done child", 0, "<child done"),
        finds=("edges", "done"),
        child="blocked",
    ),
    case(
        "it waits for nothing",
        ("ZREM", "@edges", "<child base"),
        finds=("edges", "child"),
        child="due",
    ),
    case("nobody would ask", ("ZREM", "@expiring", "far"), finds=("edges", "far"), far="blocked"),
    case("edges without mark", ("HDEL", "@meta", "edges"), finds=("meta", "edges")),
    # -- meta
    *(
        case(
            f"meta {field} {value!r}",
            ("HSET", "@meta", field, value),
            finds={("meta", field), *([("events", "")] if field == "told" else [])},
        )
        for field in META
        for value in ("", "1.5", "9" * 30)
        if field != "schema"
    ),
    *(
        case(f"meta {field} far ahead", ("HSET", "@meta", field, "%691200"), finds=("meta", field))
        for field in ("calm_until", "declared_until", "drain_until")
    ),
    *(
        case(f"meta {field} at no time", ("HSET", "@meta", field, 10**16), finds=("meta", field))
        for field in ("calm_until", "clock", "rewound_until")
    ),
    case("limits without mark", ("HSET", "@meta", "concurrency", 5), finds=("meta", "limited")),
    case("a rate without mark", ("HSET", "@meta", "rate", "1 9 1"), finds=("meta", "limited")),
    case(
        "a rate of nothing",
        ("HSET", "@meta", "limited", 1, "rate", "0 9 1"),
        finds=("meta", "rate"),
    ),
    case("a schema that is none", ("HSET", "@meta", "schema", ""), finds=("meta", "schema")),
    case("a newer schema", ("HSET", "@meta", "schema", "99"), finds=("schema", "")),
    case("meta that nobody knows", ("HSET", "@meta", "colour", "red"), finds=("unknown", "colour")),
    case("trash without mark", ("HDEL", "@meta", "trash"), finds=("meta", "trash")),
    # -- workers and listeners
    case("two wake-up messages", ("RPUSH", "@wake", "-", "-"), finds=("wake", "")),
    *(
        case(f"{part} {score}", ("ZADD", f"@{part}", score, "x"), finds=(part, "x"))
        for part in ("keep", "park", "listeners")
        for score in ("inf", "-inf", "0.5", "-5", "%691200", "%-691200")
    ),
    case(
        "keeps and sleeps",
        ("ZADD", "@park", "%5", "w1"),
        ("ZADD", "@keep", "%2", "w1"),
        finds=("park", "w1"),
    ),
    *(
        case(f"claims {value!r}", ("HSET", "@claims", "x", value), finds=("claims", "x"))
        for value in ("", "x", "17", "17 x", "-1 1 a", "9999999999999999 1 a")
    ),
    *(
        case(f"{part} {field} {value!r}", ("HSET", f"@{part}", field, value), finds=(part, field))
        for part, field, value in [
            *(
                ("unique", "u:x", odd)
                for odd in ("", "x", "a q 1", "a -1 1", "a f 9999999999999999")
            ),
            ("unique", "x", "a f 1"),
            *(("folded", "x", odd) for odd in ("", "x", "1 kept 0", "9999999999999999 kept 0 a")),
        ]
    ),
    case("listened by nobody", ("DEL", "@listeners"), finds=("events", "")),
    case("a stream without end", ("PERSIST", "@events"), finds=("events", "")),
    case("events of others", ("XADD", "@events", "*", "e", "x"), finds=("events", "")),
    case(
        "a stream that nobody opened",
        ("HDEL", "@meta", "listened", "told"),
        ("DEL", "@listeners"),
        ("PERSIST", "@events"),
        finds=("events", ""),
    ),
    # -- keys
    case("an unknown key", ("SET", "bide:{mail}:new", "1"), finds=("unknown", "bide:{mail}:new")),
    *(
        case(
            f"{part} of another type",
            ("RENAME", f"@{part}", "elsewhere") if part in ("jobs", "run") else ("DEL", f"@{part}"),
            ("SET", f"@{part}", "not ours"),
            finds=("type", key(part)),
        )
        for part in (name + ":5" if each.fan else name for name, each in LAYOUT.items())
        if part != "aside:5"
    ),
    # -- the lists of queues and workers
    *(
        case(f"queues {value!r}", ("HSET", "@queues", "mail", value), finds=("queues", "mail"))
        for value in ("", "x", "1.5", "-1", "9" * 30)
    ),
    *(
        case(f"a queue {name!r}", ("HSET", "@queues", name, "%0"), finds=("queues", name))
        for name in ("", "a b", "{a}", "a\n", "x" * 129)
    ),
    case("a queue that is not in the list", ("HDEL", "@queues", "mail"), finds=("queues", "mail")),
    *(
        case(f"workers {value!r}", ("HSET", "@workers", "w1", value), finds=("workers", "w1"))
        for value in ("", "x", "{}", "17", "9999999999999999 {}")
    ),
    case("a stop at no time", ("HSET", "@workers", "w1 stop", "x"), finds=("workers", "w1 stop")),
    case(
        "a pause at no time", ("HSET", "@workers", "w1 pause", "x"), finds=("workers", "w1 pause")
    ),
    *(
        case(
            f"{name} of another type",
            ("DEL", f"@{name}"),
            ("SET", f"@{name}", "x"),
            finds=("type", key(name)),
        )
        for name in GLOBAL
    ),
]
