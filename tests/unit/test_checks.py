"""What `bide doctor` makes of a server's words; how it asks is tested on real servers."""

from __future__ import annotations

from typing import Any

import pytest

from bide.cli.doctor import CheckResult, diagnose
from bide.cli.server import Readings

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
    assert says["keepalive"][1] == "not known: CONFIG GET does not say"


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
