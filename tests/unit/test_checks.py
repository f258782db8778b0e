"""What `bide doctor` makes of a server's words; how it asks is tested on real servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bide import Queue
from bide.cli.doctor import CheckResult, diagnose
from bide.cli.server import PAGES, Readings, points
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import WorkerInfo, WorkerReport
from bide.worker.startup import tasks_longer_than

GOOD: dict[str, Any] = {
    "redis_version": "7.2.4",
    "valkey_version": "9.1.2",
    "maxmemory_policy": "noeviction",
    "maxmemory": 1000,
    "used_memory": 100,
    "aof_enabled": 1,
    "role": "master",
    "connected_slaves": 1,
    "connected_clients": 10,
    "maxclients": 10_000,
    "hz": 10,
}
CONFIG = {"timeout": "0", "tcp-keepalive": "300", "save": "", "appendfsync": "always"}
CONFIG["min-replicas-to-write"] = ""
CLUSTER = {"cluster_state": "ok", "cluster_size": "3", "cluster_known_nodes": "6"}
PLACE: dict[str, Any] = {"kind": "one", "node": "", "cluster": CLUSTER, "sentinels": (3, 3)}


def findings(
    skew: float | None = 0.001, trips: list[float] | None = None, **info: Any
) -> dict[str, CheckResult]:
    config = CONFIG | {key: info.pop(key) for key in list(info) if key in CONFIG}
    place = PLACE | {key: info.pop(key) for key in list(info) if key in PLACE}
    known = {key: value for key, value in (GOOD | info).items() if value is not None}
    found = diagnose([Readings(known, config, skew, 0.0001, trips or [0.0002] * 20, **place)])
    return {finding.check: finding for finding in found}


def test_a_server_that_is_well() -> None:
    found = findings()
    assert {finding.verdict for finding in found.values()} == {"ok"}
    assert {name for name, finding in found.items() if finding.fix} == {"replication"}
    assert found["server"].says == "Valkey 9.1.2"


@pytest.mark.parametrize(
    ("check", "verdict", "says", "info"),
    [
        ("server", "ok", "Redis 6.2.20", {"redis_version": "6.2.20", "valkey_version": None}),
        ("server", "ok", "Redis 8.4.0", {"redis_version": "8.4.0", "valkey_version": None}),
        ("server", "warn", "CVE-2025-49844", {"redis_version": "6.2.19", "valkey_version": None}),
        ("server", "warn", "CVE-2025-49844", {"redis_version": "7.0.15", "valkey_version": None}),
        ("server", "warn", "Valkey 8.1.3: ", {"valkey_version": "8.1.3"}),
        ("server", "ok", "Valkey 9.0.0", {"valkey_version": "9.0.0"}),
        ("server", "fail", "6.0.16", {"redis_version": "6.0.16", "valkey_version": None}),
        ("cluster", "fail", "a node of a Cluster", {"cluster_enabled": 1}),
        ("cluster", "ok", "3 masters, 3 more nodes; every slot", {
            "cluster_enabled": 1, "kind": "cluster"}),
        ("cluster", "note", "CLUSTER INFO is denied", {
            "cluster_enabled": 1, "kind": "cluster", "cluster": {}}),
        ("cluster", "fail", "served by no node", {
            "cluster_enabled": 1, "kind": "cluster", "cluster": {"cluster_state": "fail"}}),
        ("sentinel", "ok", "3 of the 3 Sentinels in the URL answer; the master is h:1", {
            "kind": "sentinel", "node": "h:1"}),
        ("sentinel", "warn", "2 of the 3", {"kind": "sentinel", "sentinels": (2, 3)}),
        ("sentinel", "warn", "1 of the 1", {"kind": "sentinel", "sentinels": (1, 1)}),
        ("eviction", "fail", "drops jobs", {"maxmemory_policy": "allkeys-lru"}),
        ("eviction", "warn", "would", {"maxmemory_policy": "volatile-ttl", "maxmemory": 0}),
        ("maxmemory", "warn", "none", {"maxmemory": 0}),
        ("maxmemory", "warn", "900 B of 1e+03 B", {"used_memory": 900}),
        ("maxmemory", "fail", "refuses new jobs", {"used_memory": 1000}),
        ("persistence", "warn", "all jobs are gone", {"aof_enabled": 0}),
        ("persistence", "warn", "snapshots only", {"aof_enabled": 0, "save": "3600 1"}),
        ("persistence", "fail", "cannot be written", {"aof_last_write_status": "err"}),
        ("persistence", "warn", "rewritten", {"aof_last_bgrewrite_status": "err"}),
        ("persistence", "warn", "appendfsync everysec: a crash loses about the last second",
            {"appendfsync": "everysec"}),
        ("persistence", "warn", "appendfsync no: a crash", {"appendfsync": "no"}),
        ("persistence", "ok", "no acknowledged job", {}),
        ("replication", "fail", "replica of h:1", {
            "role": "slave", "master_host": "h", "master_port": 1}),
        ("replication", "warn", "no replicas", {"connected_slaves": 0}),
        ("replication", "warn", "2 replicas, and 1 suffice", {
            "connected_slaves": 2, "min-replicas-to-write": "1"}),
        ("replication", "fail", "1 replicas keep up, and min-replicas-to-write is 2", {
            "connected_slaves": 2, "min_slaves_good_slaves": 1, "min-replicas-to-write": "2"}),
        ("clock", "ok", "agree", {"skew": 0.00005}),
        ("clock", "ok", "behind", {"skew": -0.9}),
        ("clock", "warn", "2s ahead of", {"skew": 2.0}),
        ("clock", "fail", "1h behind", {"skew": -3600.0}),
        ("clock", "note", "denied", {"skew": None}),
        ("round trip", "warn", "30ms at the median", {"trips": [0.03]}),
        ("idle clients", "warn", "after 10 s", {"timeout": "10"}),
        ("idle clients", "ok", "after 300 s", {"timeout": "300"}),
        ("keepalive", "warn", "off", {"tcp-keepalive": "0"}),
        ("clients", "warn", "9000 of 10000", {"connected_clients": 9000}),
        ("hz", "warn", "1:", {"hz": 1}),
    ],
)  # fmt: skip
def test_what_is_not(check: str, verdict: str, says: str, info: dict[str, Any]) -> None:
    finding = findings(**info)[check]
    assert finding.verdict == verdict
    assert says in finding.says
    assert bool(finding.fix) == (verdict in ("warn", "fail"))


@pytest.mark.parametrize("enough", ["2", ""])
def test_replicas_that_all_have_to_be_there_are_well(enough: str) -> None:
    info: dict[str, Any] = {"connected_slaves": 2, "min-replicas-to-write": enough}
    assert findings(**info)["replication"].verdict == "ok"


def test_a_failed_snapshot_is_said_beside_the_rest() -> None:
    info = GOOD | {"rdb_last_bgsave_status": "err"}
    found = diagnose([Readings(info, CONFIG, 0.0, 0.0, [])])
    assert [f.verdict for f in found if f.check == "persistence"] == ["fail", "ok"]


def test_what_is_denied_is_not_guessed() -> None:
    refused = {"INFO": "INFO is denied", "PING": "the server refuses PING (MISCONF)"}
    found = diagnose([Readings({}, {}, None, 0.0, [], refused=refused)])
    assert [f.check for f in found] == [*findings()]
    says = {f.check: (f.verdict, f.says) for f in found[1:]}
    assert says.pop("server") == ("warn", "INFO is denied, so most checks cannot run")
    assert {verdict for verdict, _ in says.values()} == {"note"}
    assert says["eviction"][1] == "not known: INFO is denied"
    assert says["round trip"][1] == "not known: the server refuses PING (MISCONF)"
    assert says["keepalive"][1] == "not known: CONFIG GET does not report it"


def test_where_nothing_is_known_each_check_says_so() -> None:
    wrong = "Cannot reach the server at h:1 (refused); start it."
    found = diagnose([Readings({}, {}, None, 0.0, [], lost=wrong)])
    assert [f.check for f in found] == [*findings()]
    assert found[1] == CheckResult(
        "server", "fail", "Cannot reach the server at h:1 (refused)", "Start it."
    )
    assert {f.says for f in found[2:]} == {"not known: the server did not answer"}


def test_of_a_cluster_one_node_may_not_answer() -> None:
    nodes = [
        Readings(GOOD, CONFIG, 0.0, 0.0, [0.0002], node="a:1"),
        Readings({}, {}, None, 0.0, [], node="b:2", lost="Cannot reach it; start it."),
    ]
    found = [(f.check, f.says) for f in diagnose(nodes) if f.check in ("server", "eviction")]
    assert found == [
        ("server", "a:1: Valkey 9.1.2"),
        ("server", "b:2: Cannot reach it"),
        ("eviction", "a:1: noeviction: a full server refuses, and drops no job"),
        ("eviction", "b:2: not known: the server did not answer"),
    ]


def test_what_cannot_be_known_of_the_disk_is_a_warning() -> None:
    """CONFIG is denied where servers are managed."""
    found = diagnose([Readings(GOOD, {}, 0.0, 0.0, [])])
    (disk,) = [f for f in found if f.check == "persistence"]
    assert (disk.verdict, "appendfsync unknown" in disk.says) == ("warn", True)


def test_snapshots_that_cannot_be_asked_for() -> None:
    found = diagnose([Readings(GOOD | {"aof_enabled": 0}, {}, 0.0, 0.0, [])])
    assert any("is not known" in f.says for f in found if f.check == "persistence")


def test_what_is_not_so_of_every_node_names_those_of_which_it_is() -> None:
    nodes = [
        Readings(GOOD | {"hz": hz}, CONFIG, 0.0, 0.0, [], node=node)
        for node, hz in [("a:1", 10), ("b:2", 1), ("c:3", 1)]
    ]
    found = diagnose(nodes)
    assert [f.says for f in found if f.check == "server"] == ["Valkey 9.1.2"]
    ticks = [f.says.partition(" bide")[0] for f in found if f.check == "hz"]
    assert ticks == ["a:1: 10:", "b:2, c:3: 1:"]


# -- what production needs


def worker(host: str = "a", *queues: str, **about: Any) -> WorkerInfo:
    said: dict[str, Any] = {
        "grace": 30.0,
        "has_health_port": True,
        "queues": [*(queues or ("mail",))],
    } | about
    return WorkerInfo(f"{host}.1", 1.0, WorkerReport(host, **said))


def stats(**counts: Any) -> QueueStats:
    zeros = dict.fromkeys(("delayed", "waiting", "active", "blocked"), 0)
    rest = {name: 0 for name in QueueStats._fields if name not in QueueStats._field_defaults}
    return QueueStats(**(rest | zeros | counts))


WORKERS = [worker("a"), worker("b")]
URL = "rediss://shop:pw@10.0.0.5:6379/0"


def open_points(
    url: str = URL,
    workers: list[WorkerInfo] | None = WORKERS,
    queues: dict[str, QueueStats] | None = None,
    **info: Any,
) -> dict[str, tuple[str, str]]:
    known = {key: value for key, value in (GOOD | info).items() if value is not None}
    found = points([Readings(known, CONFIG, 0.0, 0.0, [])], url, workers, queues or {})
    assert [point.point for point in found] == [*PAGES]
    return {each.point: (each.state, each.says) for each in found if each.state != "ok"}


def test_production_needs_no_more_than_this() -> None:
    assert open_points(queues={"mail": stats(waiting=1), "old": stats()}) == {}


@pytest.mark.parametrize(
    ("point", "says", "given"),
    [
        ("persistence", "no append-only file", {"aof_enabled": 0}),
        ("eviction", "is allkeys-lru", {"maxmemory_policy": "allkeys-lru"}),
        ("memory limit", "is not set", {"maxmemory": 0}),
        ("replica", "no replica", {"connected_slaves": 0}),
        ("permissions", "the default user", {"url": "rediss://10.0.0.5"}),
        ("permissions", "the default user", {"url": "rediss://:pw@10.0.0.5"}),
        ("permissions", "the default user", {"url": "rediss://default:pw@10.0.0.5"}),
        ("tls", "clear text", {"url": "redis://shop:pw@10.0.0.5"}),
        ("tls", "clear text", {"url": "redis+cluster://shop:pw@127.0.0.1,10.0.0.5"}),
        ("workers", "one worker serves mail", {"workers": [worker()]}),
        ("workers", "one machine runs all", {"workers": [worker(), worker()]}),
        ("workers", "no worker serves sms", {"queues": {"sms": stats(delayed=1)}}),
        ("workers", "no worker serves sms", {"queues": {"sms": stats(schedules=1)}}),
        ("health port", "1 of 2 workers", {"workers": [
            worker("a"), worker("b", has_health_port=False)]}),
        ("time-outs", "m:a, m:b, m:c and 1 more may run for longer than --grace (30s)", {
            "workers": [worker("a"), worker("b", long_tasks=["m:a", "m:b", "m:c", "m:d"])]}),
    ],
)  # fmt: skip
def test_what_production_lacks(point: str, says: str, given: dict[str, Any]) -> None:
    found = open_points(**given)
    assert [*found] == [point]
    assert found[point][0] == "missing"
    assert says in found[point][1]


@pytest.mark.parametrize(
    "url",
    ["unix://shop@/run/valkey.sock", "redis://localhost?username=shop", "redis://shop@[::1]:1"],
)
def test_a_connection_within_the_machine_needs_no_tls(url: str) -> None:
    assert open_points(url) == {}


def test_no_worker_serves_data() -> None:
    assert open_points(queues={"inbox": stats(waiting=1, is_data=True)}) == {}


def test_without_workers_two_points_are_not_known() -> None:
    dead = worker()._replace(ago=16.0)
    found = open_points(workers=[dead])
    assert found.pop("workers") == ("missing", "no worker is alive")
    assert {*found.values()} == {("unknown", "no worker is alive")}
    assert [*found] == ["health port", "time-outs"]


def test_a_worker_of_an_older_release_is_not_judged() -> None:
    found = open_points(workers=[worker("a", grace=0.0), worker("b", grace=0.0)])
    assert {*found.values()} == {("unknown", "the workers do not report it")}


def test_what_a_server_does_not_list_is_not_known() -> None:
    assert [*open_points(workers=None)] == ["workers", "health port", "time-outs"]
    assert open_points(aof_enabled=None)["persistence"][0] == "unknown"


def test_of_a_cluster_the_node_that_lacks_something_is_named() -> None:
    nodes = [
        Readings(GOOD | {"connected_slaves": each}, CONFIG, 0.0, 0.0, [], node=node)
        for node, each in [("a:1", 1), ("b:2", 0)]
    ]
    found = {one.point: one for one in points(nodes, URL, WORKERS, {})}
    assert (found["replica"].state, found["replica"].says[:5]) == ("missing", "b:2: ")


@pytest.mark.parametrize("page", sorted({*PAGES.values()}))
def test_each_point_has_its_page(page: str) -> None:
    name, _, anchor = page.partition("#")
    text = (Path(__file__).parents[2] / "docs" / name).read_text("utf-8")
    headings = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    anchors = [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]
    assert not anchor or anchor in anchors


def test_only_a_time_out_that_was_given_makes_a_task_long() -> None:
    queue = Queue("long-tasks", url="redis://127.0.0.1:1")

    @queue.task(name="exported", timeout="10m")
    def export() -> None: ...

    @queue.task(name="mailed", timeout="5s")
    def mail() -> None: ...

    @queue.task(name="greeted")
    def greet() -> None: ...

    assert tasks_longer_than(30, ["long-tasks"]) == ["exported"]
    assert tasks_longer_than(30, ["others"]) == []
