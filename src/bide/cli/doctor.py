"""`bide doctor`: whether this server, and this machine, are fit for jobs.

A finding is `ok`; or `warn` where jobs are safe today and may not be tomorrow; or `fail` where
they are lost, refused or late now, or would be without a word; or `note` for what a person may
want to know. One that is not ok says what to do; so may one that is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import click
import redis

from bide.cli.options import json_option, server_options
from bide.cli.screen import Cell, Style, count, echo, echo_json, hanging
from bide.cli.server import Readings, delayed_on_rq, probe
from bide.contrib.rq_sets import DELAYED, OVERDUE, DelaySet
from bide.embedded import OLDEST
from bide.errors import BideError, ServerRefused
from bide.model.durations import describe
from bide.version import VERSION
from bide.views.site import Site

Verdict = Literal["ok", "warn", "fail", "note"]


class CheckResult(NamedTuple):
    """One line of the report."""

    check: str
    verdict: Verdict
    says: str
    fix: str = ""


_ROWS: Final = {
    "client": "",
    "server": "",
    "cluster": "",
    "sentinel": "",
    "eviction": "INFO",
    "maxmemory": "INFO",
    "persistence": "INFO",
    "replication": "INFO",
    "clock": "TIME",
    "round trip": "PING",
    "idle clients": "CONFIG GET",
    "keepalive": "CONFIG GET",
    "clients": "INFO",
    "hz": "INFO",
}
"""Every check in its order, and the command without which it has nothing to say; empty for those
that always have something, and those that are of some servers only."""


def diagnose(readings: Sequence[Readings]) -> list[CheckResult]:
    """Everything that can be said; what is not so of all nodes names those of which it is."""
    found: dict[CheckResult, list[str]] = {}
    for one in readings:
        for finding in _all_of(one):
            found.setdefault(finding, []).append(one.node)
    rank = {check: place for place, check in enumerate(_ROWS)}
    merged = [
        finding
        if len(nodes) == len(readings)
        else finding._replace(says=f"{', '.join(nodes)}: {finding.says}")
        for finding, nodes in found.items()
    ]
    return sorted(merged, key=lambda finding: rank[finding.check])


def _all_of(readings: Readings) -> list[CheckResult]:
    """The findings on one server; a check that cannot be done says why."""
    checks = (_client, _unreached) if readings.lost else CHECKS
    found = [finding for check in checks for finding in check(readings)]
    done = {finding.check for finding in found}
    for check, command in _ROWS.items():
        if command and check not in done:
            why = readings.refused.get(command, f"{command} does not say")
            found.append(unknown(check, "the server did not answer" if readings.lost else why))
    return found


def unknown(check: str, why: str) -> CheckResult:
    """A check that cannot be done."""
    return CheckResult(check, "note", f"not known: {why}")


def parted(sentence: str) -> tuple[str, str]:
    """What is wrong, and what to do: both stand in the sentence of an error."""
    wrong, _, fix = sentence.partition("; ")
    return wrong, fix[:1].upper() + fix[1:]


def _unreached(readings: Readings) -> Iterator[CheckResult]:
    wrong, fix = parted(readings.lost)
    yield CheckResult("server", "fail", wrong, fix or "Read the server's log.")


def _client(readings: Readings) -> Iterator[CheckResult]:
    try:
        import hiredis

        parser = f"hiredis {hiredis.__version__}"
    except ImportError:
        parser = "no hiredis"
    python = ".".join(map(str, sys.version_info[:3]))
    says = f"bide {VERSION}, redis-py {redis.__version__}, {parser}, Python {python}"
    version = _version(redis.__version__)
    if not (5, 2) <= version < (9,):
        yield CheckResult("client", "fail", says, "Install redis-py 5.2 or later, below 9.")
    elif parser == "no hiredis":
        yield CheckResult("client", "warn", says, "pip install 'redis[hiredis]': it parses faster.")
    else:
        yield CheckResult("client", "ok", says)


def _server(readings: Readings) -> Iterator[CheckResult]:
    info = readings.info
    if not info:
        why = readings.refused.get("INFO", "INFO is denied")
        fix = "Allow this user the command INFO (ACL SETUSER ... +info), or run doctor as another."
        if "denied" not in why:
            fix = "Run doctor again when the server takes commands; its log may say why it refuses."
        yield CheckResult("server", "warn", f"{why}, so most checks cannot run", fix)
        return
    name, said = "Redis", str(info.get("redis_version", "?"))
    if "valkey_version" in info:
        name, said = "Valkey", str(info["valkey_version"])
    fixed = _fixed_release(name, _version(said))
    if _version(str(info.get("redis_version", "0"))) < OLDEST:
        yield CheckResult("server", "fail", f"{name} {said}", "Upgrade to Redis 6.2 or Valkey.")
    elif fixed is not None:
        says = f"{name} {said}: a user who may run scripts can run any code (CVE-2025-49844)"
        yield CheckResult("server", "warn", says, f"Upgrade to {name} {fixed}, or later.")
    else:
        yield CheckResult("server", "ok", f"{name} {said}")
    yield from _place(readings)


_FIXED: Final[dict[str, tuple[tuple[int, int, int], ...]]] = {
    "Redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "Valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
"""The first release of each series whose Lua has no known holes: CVE-2025-46817, -46818, -46819 and
-49844, as the projects' release notes of October 2025 say."""


def _fixed_release(name: str, version: tuple[int, ...]) -> str | None:
    """The release to upgrade to; None where this one is good."""
    releases = _FIXED[name]
    later = next((fixed for fixed in releases if fixed[:2] >= version[:2]), None)
    if later is None or version >= later:
        return None
    return ".".join(map(str, later))


def _place(readings: Readings) -> Iterator[CheckResult]:
    """What the server is part of."""
    is_node = bool(readings.info.get("cluster_enabled"))
    if is_node and readings.kind != "cluster":
        yield CheckResult(
            "cluster",
            "fail",
            "this is a node of a Cluster: queues that live on the others cannot be reached",
            "Write redis+cluster://HOST:PORT.",
        )
    elif is_node and not readings.cluster:
        why = readings.refused.get("CLUSTER INFO", "CLUSTER INFO is denied")
        says = f"{why}, so bide cannot check that every slot is served"
        yield CheckResult("cluster", "note", says)
    elif is_node:
        told = readings.cluster
        masters, known = int(told.get("cluster_size", 0)), int(told.get("cluster_known_nodes", 0))
        says = f"{masters} masters, {known - masters} more nodes"
        if told.get("cluster_state", "ok") != "ok":
            fix = "Start the nodes that are missing; CLUSTER NODES names them."
            yield CheckResult("cluster", "fail", f"{says}; some slots are served by none", fix)
        else:
            yield CheckResult("cluster", "ok", f"{says}; every slot is served")
    elif readings.kind == "sentinel":
        there, named = readings.sentinels
        says = f"{there} of the {named} that the URL names answer; the master is {readings.node}"
        if there < named:
            fix = "Start the others, or name those there are: with one left, it is a single point."
            yield CheckResult("sentinel", "warn", says, fix)
        elif named == 1:
            fix = "Name all Sentinels: if the only one is down, clients cannot find the master."
            yield CheckResult("sentinel", "warn", says, fix)
        else:
            yield CheckResult("sentinel", "ok", says)


def _memory(readings: Readings) -> Iterator[CheckResult]:
    info = readings.info
    if "maxmemory_policy" not in info:
        return
    policy, limit = str(info["maxmemory_policy"]), int(info.get("maxmemory", 0))
    fix = "CONFIG SET maxmemory-policy noeviction, and in the server's configuration."
    if policy == "noeviction":
        yield CheckResult("eviction", "ok", "noeviction: a full server refuses, and drops no job")
    elif limit:
        yield CheckResult("eviction", "fail", f"{policy}: a full server drops jobs silently", fix)
    else:
        yield CheckResult(
            "eviction", "warn", f"{policy}: would drop jobs if maxmemory were set", fix
        )
    used = int(info.get("used_memory", 0))
    if not limit:
        yield CheckResult(
            "maxmemory",
            "warn",
            f"none: {_bytes(used)} used, and a backlog may take all the machine has",
            "Set maxmemory: a producer gets an error then, where else the server would be killed.",
        )
    elif used >= limit:
        says = f"{_bytes(used)} of {_bytes(limit)} used: the server refuses new jobs"
        yield CheckResult("maxmemory", "fail", says, "Raise it, keep less, or add workers.")
    elif used > 0.8 * limit:
        says = f"{_bytes(used)} of {_bytes(limit)} used"
        yield CheckResult("maxmemory", "warn", says, "Raise it, keep less, or add workers.")
    else:
        yield CheckResult("maxmemory", "ok", f"{_bytes(used)} of {_bytes(limit)} used")


def _persistence(readings: Readings) -> Iterator[CheckResult]:
    info, save = readings.info, readings.config.get("save")
    if "aof_enabled" not in info:
        return
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield CheckResult(
            "persistence",
            "fail",
            "the last snapshot failed; the server may refuse all writes",
            "Read the server's log: most often the disk is full, or memory for a fork is short.",
        )
    if not info["aof_enabled"]:
        if save is None:
            says = "appendonly no; whether snapshots are taken is not known"
        elif save:
            says = "snapshots only (appendonly no): a crash loses what came after the last one"
        else:
            says = "none (appendonly no, no save): when the server restarts, all jobs are gone"
        fix = "CONFIG SET appendonly yes, and in the server's configuration."
        yield CheckResult("persistence", "warn", says, fix)
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield CheckResult(
            "persistence",
            "fail",
            "the append-only file cannot be written",
            "Read the server's log: most often the disk is full.",
        )
    elif info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield CheckResult(
            "persistence",
            "warn",
            "the append-only file could not be rewritten, and grows",
            "Read the server's log: most often memory for a fork, or the disk, is short.",
        )
    else:
        yield _fsync(readings.config.get("appendfsync"))


def _fsync(mode: str | None) -> CheckResult:
    """What a crash of the server's machine loses of what is in the append-only file."""
    if mode == "always":
        says = "append-only file, appendfsync always: a crash loses no acknowledged job"
        return CheckResult("persistence", "ok", says)
    loss = {"no": "what the system had not written", "everysec": "about the last second"}
    lost = loss.get(mode or "", "about the last second, unless appendfsync is always")
    return CheckResult(
        "persistence",
        "warn",
        f"append-only file, appendfsync {mode or 'unknown'}: a crash loses {lost}",
        "Set appendfsync always; or wait with durability='fsync' for jobs that must not be lost"
        + (", for which it must be everysec at least." if mode == "no" else "."),
    )


def _replication(readings: Readings) -> Iterator[CheckResult]:
    info = readings.info
    role = info.get("role")
    if role == "slave":
        up = f"{info.get('master_host')}:{info.get('master_port')}"
        says = f"this is a replica of {up}: it refuses all that bide writes"
        yield CheckResult("replication", "fail", says, "Give the primary's address.")
    elif role == "master":
        replicas = int(info.get("connected_slaves", 0))
        enough = readings.config.get("min-replicas-to-write", "")
        good = int(info.get("min_slaves_good_slaves", replicas))
        if enough.isdigit() and good < int(enough):
            says = (
                f"{good} replicas keep up, and min-replicas-to-write is {enough}: all writes fail"
            )
            fix = "Start the replicas that are missing, or lower min-replicas-to-write."
            yield CheckResult("replication", "fail", says, fix)
        elif replicas > 1 and enough.isdigit() and int(enough) < replicas:
            says = (
                f"{replicas} replicas, of which {enough} suffice to write: while one is made the "
                "master, the others still confirm what it does not have (durability='replica')"
            )
            fix = f"Set min-replicas-to-write to {replicas}."
            yield CheckResult("replication", "warn", says, fix)
        elif replicas:
            says = f"{replicas} replicas: a failover may lose what they had not received"
            fix = "Wait with durability='replica' for jobs that must not be lost."
            yield CheckResult("replication", "ok", says, fix)
        else:
            says = "no replicas: acknowledged jobs are lost with this one machine's disk"
            fix = "Add a replica (replicaof); durability='replica' can wait for it."
            yield CheckResult("replication", "warn", says, fix)


def _clock(readings: Readings) -> Iterator[CheckResult]:
    if readings.skew is None:
        why = readings.refused.get("TIME", "TIME is denied")
        yield CheckResult("clock", "note", f"{why}, so it cannot be compared")
        return
    skew = readings.skew
    way = "ahead of" if skew > 0 else "behind"
    says = f"the server's is {describe(abs(skew))} {way} this machine's"
    if abs(skew) <= readings.unsure:
        says = "the server's and this machine's agree"
    says += f" (± {describe(readings.unsure)})"
    if abs(skew) <= max(1.0, 2 * readings.unsure):
        yield CheckResult("clock", "ok", says)
    else:
        yield CheckResult(
            "clock",
            "fail" if abs(skew) > 60 else "warn",
            says,
            "Run NTP on both: delays are not touched by it, but every at= is off by so much.",
        )


def _network(readings: Readings) -> Iterator[CheckResult]:
    trips = readings.round_trips
    if trips:
        middle = trips[len(trips) // 2]
        says = f"{describe(middle)} at the median, {describe(trips[-1])} at most"
        fix = "Move workers and producers nearer: each claim and each enqueue waits for one."
        slow = middle > 0.01
        yield CheckResult("round trip", "warn" if slow else "ok", says, fix if slow else "")
    config = readings.config
    if "timeout" in config:
        seconds = int(config["timeout"])
        short = 0 < seconds < 60
        yield CheckResult(
            "idle clients",
            "warn" if short else "ok",
            f"closed after {seconds} s" if seconds else "never closed by the server",
            "CONFIG SET timeout 0: connections are opened again and again." if short else "",
        )
    if "tcp-keepalive" in config:
        seconds = int(config["tcp-keepalive"])
        yield CheckResult(
            "keepalive",
            "ok" if seconds else "warn",
            f"every {seconds} s" if seconds else "off: clients that died are kept",
            "" if seconds else "CONFIG SET tcp-keepalive 300.",
        )
    clients, most = readings.info.get("connected_clients"), readings.info.get("maxclients")
    if clients is not None and most:
        full = int(clients) > 0.8 * int(most)
        fix = "Raise maxclients, or use fewer processes." if full else ""
        yield CheckResult("clients", "warn" if full else "ok", f"{clients} of {most}", fix)


def _ticks(readings: Readings) -> Iterator[CheckResult]:
    hz = readings.info.get("hz")
    if hz is not None:
        says = f"{hz}: bide keeps time itself, and does not depend on it"
        yield CheckResult(
            "hz", "ok" if int(hz) >= 10 else "warn", says, _HZ if int(hz) < 10 else ""
        )


def delayed_jobs_of_rq(sets: Sequence[DelaySet] | None) -> Iterator[CheckResult]:
    """Whether a Timer moves the delayed jobs of RQ's queues; nothing where there are none."""
    check = "rq timer"
    if sets is None:
        yield CheckResult(
            check, "note", "RQ's keys are denied, so its delayed jobs are not checked"
        )
        return
    for each in sets:
        jobs, late = count(each.overdue + each.waiting, "job"), count(each.overdue, "job")
        alive = f"{each.timers} alive" if each.timers else "no timer alive"
        fix = "Start one for its queue: bide rq-timer QUEUE."
        if each.key.startswith(DELAYED):
            fix = f"Start one: bide rq-timer {each.key.removeprefix(DELAYED)}."
        if each.overdue and not each.timers:
            yield CheckResult(check, "fail", f"{late} overdue in {each.key}, {alive}", fix)
        elif not each.timers:
            yield CheckResult(check, "warn", f"{jobs} in {each.key}, {alive}", fix)
        elif each.overdue > each.left:
            fix = "Read the Timers' logs; if the Timers are overloaded, start another."
            says = f"{late} overdue by more than {describe(OVERDUE)} in {each.key}, timers: {alive}"
            yield CheckResult(check, "warn", says, fix)
        else:
            yield CheckResult(check, "ok", f"{jobs} in {each.key}, timers: {alive}")
        if each.strange:
            says = (
                f"{count(each.strange, 'member')} of {each.key} stay: no delayed jobs of its queue"
            )
            yield CheckResult(check, "warn", says, "The Timers' logs name them; ZREM removes them.")


_HZ: Final = "CONFIG SET hz 10: below, the server is slow to notice clients that have gone."

CHECKS: Final[tuple[Callable[[Readings], Iterator[CheckResult]], ...]] = (
    _client,
    _server,
    _memory,
    _persistence,
    _replication,
    _clock,
    _network,
    _ticks,
)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def _bytes(number: int) -> str:
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def report(findings: list[CheckResult]) -> list[dict[str, Any]]:
    """The findings as JSON has them."""
    return [finding._asdict() for finding in findings]


_STYLE: dict[str, Style] = {"ok": "green", "warn": "yellow", "fail": "red", "note": "dim"}


@click.command()
@server_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, url: str | None, prefix: str | None, as_json: bool) -> None:
    """Check the server's settings, its clock and the way to it.

    It also looks for overdue jobs in RQ's delay queues.

    Exits with 1 if a check fails. Each line is ok, warn (safe today), fail (jobs are lost,
    refused or late), or a note, and says how to repair what is not ok. If a check cannot run,
    its line says why.
    """
    site = Site(url, prefix)
    readings = probe(site.client.url)
    is_lost = all(one.lost for one in readings)
    of_rq = [] if is_lost else delayed_jobs_of_rq(delayed_on_rq(site.client))
    findings = [*diagnose(readings), _scripts(site, is_lost), *of_rq]
    failed = any(finding.verdict == "fail" for finding in findings)
    if as_json:
        echo_json({"ok": not failed, "server": site.where, "checks": report(findings)})
    else:
        echo(site.where, "bold")
        for finding in findings:
            head = [
                Cell(f"{finding.verdict:<4}", _STYLE[finding.verdict]),
                Cell(f"{finding.check:<12}"),
            ]
            hanging(head, finding.says)
            if finding.fix:
                hanging(["    ", " " * 12], finding.fix, "dim")
    ctx.exit(1 if failed else 0)


def _scripts(site: Site, is_lost: bool) -> CheckResult:
    """Whether bide's scripts may run: an ACL, a managed service or a full disk may prevent it."""
    if is_lost:
        return unknown("scripts", "the server did not answer")
    try:
        queues = site.queues()
    except BideError as error:
        wrong, fix = parted(str(error))
        if isinstance(error, ServerRefused):
            fix = fix or "Allow EVALSHA and SCRIPT LOAD."
        return CheckResult("scripts", "fail", f"cannot be run: {wrong}", fix or "See above.")
    return CheckResult("scripts", "ok", f"can be run; queues under {site.prefix}: {len(queues)}")
