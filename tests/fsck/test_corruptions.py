"""`bide fsck` on queues corrupted by hand: each key, each field, each kind of thing to be wrong.

A row says what is done to a queue that was clean, what is found then, and where the jobs are after
the repair. Whatever was wrong, all agrees after it, and no job is gone.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import redis

from bide.embedded import Server
from bide.model.history import read_history
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import fsck as fsck_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.keys import GLOBAL, keys_of
from tests.fsck import beside, in_groups, jobs
from tests.fsck.case import Case
from tests.fsck.conftest import BODY, EVERYWHERE, KEYS, Full, key
from tests.support.eventually import eventually
from tests.support.invariants import assert_legal
from tests.support.listener import ChannelListener

CASES = [*jobs.JOBS, *beside.BESIDE, *in_groups.GROUPS]
LEFT = {("type", key(name)) for name in GLOBAL}
"""What nobody but a person can mend, besides what is unknown."""


@pytest.mark.slow
@pytest.mark.parametrize("each", CASES, ids=[each.name for each in CASES])
def test_what_is_wrong_is_found_and_repaired(each: Case, full: Full) -> None:
    check(each, full)


def check(each: Case, full: Full) -> None:
    """What is said of it is found, and repaired."""
    for command in each.do:
        full.do(*command)
    found = full.look()
    assert {(item.kind, item.id) for _, item in found} == each.finds
    before = full.direct.dbsize()
    assert full.look() == found, "looking changes nothing"
    assert full.direct.dbsize() == before
    left = {item for item in each.finds if item in LEFT or item[0] in ("unknown", "schema")}
    assert {(item.kind, item.id) for _, item in found if not item.fix} == left
    is_type = {kind for kind, _ in each.finds} == {"type"}
    repaired = full.found(repair=True)
    if each in in_groups.GROUPS:  # where one repair may be another's, too
        assert repaired
        assert repaired <= each.finds
    else:
        assert repaired == each.finds if not is_type else repaired >= each.finds
    assert full.found() == left
    if left:
        return
    for id, place in each.places.items():
        assert full.holding().where(id) == place, id
    _give_back_bodies(full)
    assert_legal(full.direct, "mail")


def _give_back_bodies(full: Full) -> None:
    """What had lost its body has an empty one, which is all that is wrong with it."""
    bodies: Any = full.direct.hgetall(key("jobs"))
    for id in [id for id, body in bodies.items() if not body]:
        full.direct.hset(key("jobs"), id, BODY)


def test_a_full_server_lets_repairs_be_made(full: Full) -> None:
    full.do("ZREM", "@due:5", "wait")
    full.do("HDEL", "@jobs", "later")
    full.do("HDEL", "@run", "done")
    full.do("HDEL", "@meta", "trash")
    full.direct.config_set("maxmemory", "1")
    try:
        found = full.found(repair=True)
    finally:
        full.direct.config_set("maxmemory", "0")
    assert found == {
        ("unlisted", "wait"),
        ("body", "later"),
        ("record", "done"),
        ("meta", "trash"),
    }
    assert full.found() == set()


def test_what_failed_by_a_repair_says_why_and_whoever_waits_is_told(full: Full) -> None:
    full.do("HDEL", "@jobs", "later")
    with ChannelListener(full.direct, KEYS) as listener:
        full.found(repair=True)
        assert ("waiters", "later") in listener.heard()
    assert full.holding().waiters.keys() == {"run-0"}
    notes = read_history(full.holding().hashes["notes"]["later"])
    assert notes.error is not None
    assert "Its body was lost" in notes.error.message


def test_what_is_due_again_wakes_a_worker_and_listeners_see_a_gap(full: Full) -> None:
    full.do("ZREM", "@due:5", "wait")
    full.do("DEL", "@wake")
    before = int(full.holding().meta["told"])
    full.found(repair=True)
    assert full.direct.llen(key("wake")) == 1
    assert int(full.holding().meta["told"]) == before + 1


def test_a_worker_that_lost_its_place_among_the_active_still_settles(full: Full) -> None:
    full.do("ZREM", "@active", "run-0")
    assert full.settle("run-0", "complete") == "lost"
    full.found(repair=True)
    assert full.settle("run-0", "complete") == "ok"


def test_a_large_body_in_the_place_of_one_that_was_set_aside_is_no_error(full: Full) -> None:
    large = encode_body(Body("app.tasks:send", ("x" * 20_000,)))
    full.run(enqueue_commands.enqueue(KEYS, [Prepared("aside", "+0", 5, large)]))
    assert full.found() == set()


def test_one_that_has_begun_need_not_be_looked_at_when_it_would_expire(full: Full) -> None:
    full.run(
        enqueue_commands.enqueue(
            KEYS, [Prepared("begun", "+0", 9, BODY, constraints="x=+60000000")]
        )
    )
    assert "begun" in full.claim("w6", 2)
    assert full.settle("begun", "retry", "+3600000000", b"") == "ok"
    full.do("ZREM", "@expiring", "begun")  # as the claim does that comes when it would have
    assert full.found() == set()


def test_workers_that_are_asked_to_pause_or_to_stop_are_no_error(full: Full) -> None:
    everywhere = keys_of(None)
    full.run(queue_commands.worker_pause(everywhere, ["w1"], paused=True))
    full.run(queue_commands.worker_stop(everywhere, ["w1"]))
    assert full.found() == set()


def test_what_is_being_purged_is_no_error(full: Full) -> None:
    full.run(queue_commands.configure(KEYS, "wide", concurrency=2))
    full.add_to("wide", "one", "two", priority=9)
    assert full.claim("w6", 1) == ["one"]
    while full.run(job_commands.purge(KEYS, "that")).busy:
        pass
    assert {full.holding().where(id) for id in ("two", "base", "child")} == {"trash"}
    assert full.found() == set()
    while full.run(job_commands.purge(KEYS, None)).more:
        pass
    assert full.found() == set()


@pytest.mark.parametrize("part", ["results", "jobs"])
def test_a_step_reads_some_megabytes_and_the_next_goes_on(full: Full, part: str) -> None:
    """What it reads more is what the server gives at once: a few."""
    ids = {f"lost-{n}" for n in range(60)}
    full.direct.hset(key(part), mapping=dict.fromkeys(ids, b"x" * 500_000))
    full.direct.hset(key("meta"), "large", 1)
    told: list[list[str]] = []
    cursor = ""
    while cursor != fsck_commands.BEGIN:
        step = full.run(
            fsck_commands.look_at_jobs(KEYS, part, 0, cursor or fsck_commands.BEGIN, False)
        )
        told.append([finding.id for finding in step.findings])
        cursor = step.cursor
    assert {id for some in told for id in some} == ids
    assert max(map(len, told)) < 30
    full.direct.hdel(key(part), *ids)


def test_a_queue_that_is_in_the_list_a_moment_later_is_no_error(
    full: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noted right after its first job."""
    full.do("HDEL", "@queues", "mail")
    note = queue_commands.register_queues(EVERYWHERE, ["mail"])
    monkeypatch.setattr("bide.cli.health.time.sleep", lambda seconds: full.run(note))
    assert full.found() == set()


def test_ten_keys_of_another_type_are_one_too_many_to_set_aside(full: Full) -> None:
    names = ["run", "results", "notes", *(f"due:{i}" for i in range(7))]
    for name in names:
        full.do("DEL", f"@{name}")
        full.do("SET", f"@{name}", "not ours")
    full.found(repair=True)
    left = [each.finding for each in full.look(repair=True)]
    assert [(finding.kind, finding.fix) for finding in left] == [("type", "")]
    assert [full.direct.get(aside) for aside in KEYS.names["aside"]] == [b"not ours"] * 9


@pytest.mark.slow
def test_a_cluster_lets_each_key_be_looked_at_and_repaired(
    tmp_server: Callable[..., Server],
) -> None:
    """Scripts that touched a key of another slot would be refused."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        bus = str(free.getsockname()[1])
    server = tmp_server(tcp=True, extra=("--cluster-enabled", "yes", "--cluster-port", bus))
    with redis.Redis.from_url(server.url) as direct:
        slots: Any = direct.execute_command
        slots("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: b"cluster_state:ok" in slots("CLUSTER", "INFO", NEVER_DECODE=True))
        full = Full(server.url, direct)
        full.fill()
        for command in (("ZREM", "@due:5", "wait"), ("DEL", "@notes"), ("SET", "@notes", "x")):
            full.do(*command)
        assert ("type", key("notes")) in full.found(repair=True)
        assert full.found() == set()
        assert full.holding().where("wait") == "due"
        full.close()
