"""`bide doctor`: checks whether the server and this machine are ready for jobs.

The verdict of a check is `ok`; `warn` if jobs are safe now but a crash or a failover may lose some;
`fail` if jobs are lost, refused or late; or `note` for information. A finding that is not `ok`
names the repair, and so may one that is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import click
import redis

from bide.cli.options import import_from_here, json_option, option, site_options
from bide.cli.screen import Cell, Style, echo, echo_json, hanging
from bide.cli.server import Point, Readings, delayed_on_rq, points, probe
from bide.contrib.rq_sets import DELAYED, OVERDUE, DelaySet
from bide.embedded import OLDEST
from bide.errors import BideError, ServerRefused
from bide.logs import count
from bide.model.durations import describe
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import WorkerInfo
from bide.version import VERSION
from bide.views._sync import Site
from bide.worker.relay import OutboxLike, load_outbox

Verdict = Literal["ok", "warn", "fail", "note"]


Result = tuple[Verdict, str, str]
"""The result of a check: verdict, finding, and repair, which may be empty."""


class CheckResult(NamedTuple):
    """One line of the report."""

    check: str
    verdict: Verdict
    says: str
    fix: str = ""


def diagnose(readings: Sequence[Readings]) -> list[CheckResult]:
    """Return all findings; a finding that does not apply to all nodes names its nodes."""
    found: dict[CheckResult, list[str]] = {}
    for one in readings:
        for finding in _all_of(one):
            found.setdefault(finding, []).append(one.node)
    rank = {check: place for place, check in enumerate(CHECKS)}
    merged = [
        finding
        if len(nodes) == len(readings)
        else finding._replace(says=f"{', '.join(nodes)}: {finding.says}")
        for finding, nodes in found.items()
    ]
    return sorted(merged, key=lambda finding: rank[finding.check])


def _all_of(readings: Readings) -> Iterator[CheckResult]:
    """Yield the findings on one server; if a check cannot run, its finding has the reason."""
    for check, (command, function) in CHECKS.items():
        is_skipped = readings.lost and function not in (_client, _server)
        found = [] if is_skipped else [CheckResult(check, *said) for said in function(readings)]
        if command and not found:
            why = readings.refused.get(command, f"{command} does not report it")
            found = [unknown(check, "the server did not answer" if readings.lost else why)]
        yield from found


def unknown(check: str, why: str) -> CheckResult:
    """Return the result of a check that cannot run."""
    return CheckResult(check, "note", f"not known: {why}")


def parted(sentence: str) -> tuple[str, str]:
    """Split the sentence of an error into problem and repair."""
    wrong, _, fix = sentence.partition("; ")
    return wrong, fix[:1].upper() + fix[1:]


def _warn_unless(good: bool, says: str, fix: str) -> Result:
    return ("ok", says, "") if good else ("warn", says, fix)


def _client(readings: Readings) -> Iterator[Result]:
    try:
        import hiredis

        parser = f"hiredis {hiredis.__version__}"
    except ImportError:
        parser = "no hiredis"
    python = ".".join(map(str, sys.version_info[:3]))
    says = f"bide {VERSION}, redis-py {redis.__version__}, {parser}, Python {python}"
    if not (5, 2) <= _version(redis.__version__) < (9,):
        yield "fail", says, "Install redis-py 5.2 or later, below 9."
    else:
        fix = "pip install 'redis[hiredis]': it parses faster."
        yield _warn_unless(parser != "no hiredis", says, fix)


def _server(readings: Readings) -> Iterator[Result]:
    info = readings.info
    if readings.lost:
        wrong, fix = parted(readings.lost)
        yield "fail", wrong, fix or "Read the server's log."
        return
    if not info:
        why = readings.refused.get("INFO", "INFO is denied")
        fix = "Allow this user INFO (ACL SETUSER ... +info), or run doctor as another user."
        if "denied" not in why:
            fix = "Run doctor again when the server takes commands; its log may say why it refuses."
        yield "warn", f"{why}, so most checks cannot run", fix
        return
    name, said = "Redis", str(info.get("redis_version", "?"))
    if "valkey_version" in info:
        name, said = "Valkey", str(info["valkey_version"])
    fixed = _fixed_release(name, _version(said))
    if _version(str(info.get("redis_version", "0"))) < OLDEST:
        yield "fail", f"{name} {said}", "Upgrade to Redis 6.2 or Valkey."
    elif fixed is not None:
        says = f"{name} {said}: a user who may run scripts can run any code (CVE-2025-49844)"
        yield "warn", says, f"Upgrade to {name} {fixed}, or later."
    else:
        yield "ok", f"{name} {said}", ""


_FIXED: Final[dict[str, tuple[tuple[int, int, int], ...]]] = {
    "Redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "Valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
"""The first release of each series whose Lua has none of these vulnerabilities: CVE-2025-46817,
-46818, -46819 and -49844, according to the projects' release notes of October 2025."""


def _fixed_release(name: str, version: tuple[int, ...]) -> str | None:
    """Return the release to upgrade to; None if this one is not vulnerable."""
    releases = _FIXED[name]
    later = next((fixed for fixed in releases if fixed[:2] >= version[:2]), None)
    if later is None or version >= later:
        return None
    return ".".join(map(str, later))


def _cluster(readings: Readings) -> Iterator[Result]:
    if not readings.info.get("cluster_enabled"):
        return
    if readings.kind != "cluster":
        says = "this is a node of a Cluster: queues on its other nodes cannot be reached"
        yield "fail", says, "Write redis+cluster://HOST:PORT."
    elif not readings.cluster:
        why = readings.refused.get("CLUSTER INFO", "CLUSTER INFO is denied")
        yield "note", f"{why}, so bide cannot check that every slot is served", ""
    else:
        told = readings.cluster
        masters, known = int(told.get("cluster_size", 0)), int(told.get("cluster_known_nodes", 0))
        says = f"{masters} masters, {known - masters} more nodes"
        if told.get("cluster_state", "ok") != "ok":
            fix = "Start the missing nodes; CLUSTER NODES names them."
            yield "fail", f"{says}; some slots are served by no node", fix
        else:
            yield "ok", f"{says}; every slot is served", ""


def _sentinel(readings: Readings) -> Iterator[Result]:
    info = readings.info
    if not info or info.get("cluster_enabled") or readings.kind != "sentinel":
        return
    there, named = readings.sentinels
    says = f"{there} of the {named} Sentinels in the URL answer; the master is {readings.node}"
    if there < named:
        fix = "Start the others, or correct the URL: one Sentinel is a single point of failure."
    else:
        fix = "Name all Sentinels: if the only one is down, clients cannot find the master."
    yield _warn_unless(there >= named > 1, says, fix)


def _eviction(readings: Readings) -> Iterator[Result]:
    policy = readings.info.get("maxmemory_policy")
    if policy is None:
        return
    fix = "CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration file."
    if policy == "noeviction":
        yield "ok", "noeviction: a full server refuses, and drops no job", ""
    elif int(readings.info.get("maxmemory", 0)):
        yield "fail", f"{policy}: a full server drops jobs silently", fix
    else:
        yield "warn", f"{policy}: would drop jobs if maxmemory were set", fix


def _maxmemory(readings: Readings) -> Iterator[Result]:
    info = readings.info
    if "maxmemory_policy" not in info:
        return
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    says, fix = (
        f"{_bytes(used)} of {_bytes(limit)} used",
        "Raise maxmemory, shorten the retention, or add workers.",
    )
    if not limit:
        says = f"none: {_bytes(used)} used, and a backlog may take all memory of the machine"
        fix = "Set maxmemory: then a full server refuses new jobs, and the system does not kill it."
        yield "warn", says, fix
    elif used >= limit:
        yield "fail", f"{says}: the server refuses new jobs", fix
    else:
        yield _warn_unless(used <= 0.8 * limit, says, fix)


def _persistence(readings: Readings) -> Iterator[Result]:
    info, save = readings.info, readings.config.get("save")
    if "aof_enabled" not in info:
        return
    most_often = "Read the server's log: most often"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        says = "the last snapshot failed; the server may refuse all writes"
        yield "fail", says, f"{most_often} the disk is full, or memory for a fork is short."
    if not info["aof_enabled"]:
        if save is None:
            says = "appendonly no; it is not known whether the server takes snapshots"
        elif save:
            says = (
                "snapshots only (appendonly no): a crash loses all changes since the last snapshot"
            )
        else:
            says = "none (appendonly no, no save): when the server restarts, all jobs are gone"
        yield (
            "warn",
            says,
            "CONFIG SET appendonly yes, and set it in the server's configuration file.",
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        says = "the append-only file cannot be written"
        yield "fail", says, f"{most_often} the disk is full."
    elif info.get("aof_last_bgrewrite_status", "ok") != "ok":
        says = "the append-only file could not be rewritten, and grows"
        yield "warn", says, f"{most_often} memory for a fork, or the disk, is short."
    else:
        yield _fsync(readings.config.get("appendfsync"))


def _fsync(mode: str | None) -> Result:
    """Return how much of the append-only file a crash of the server's machine may lose."""
    if mode == "always":
        return "ok", "append-only file, appendfsync always: a crash loses no acknowledged job", ""
    loss = {"no": "all that the system had not written", "everysec": "about the last second"}
    lost = loss.get(mode or "", "about the last second, unless appendfsync is always")
    fix = "Set appendfsync always, or enqueue jobs that must not be lost with durability='fsync'"
    fix += " (which needs everysec at least)." if mode == "no" else "."
    return "warn", f"append-only file, appendfsync {mode or 'unknown'}: a crash loses {lost}", fix


def _replication(readings: Readings) -> Iterator[Result]:
    info = readings.info
    role = info.get("role")
    if role == "slave":
        up = f"{info.get('master_host')}:{info.get('master_port')}"
        says = f"this is a replica of {up}: it refuses all writes of bide"
        yield "fail", says, "Give the primary's address."
    elif role == "master":
        replicas = int(info.get("connected_slaves", 0))
        enough = readings.config.get("min-replicas-to-write", "")
        good = int(info.get("min_slaves_good_slaves", replicas))
        if enough.isdigit() and good < int(enough):
            says = f"{good} replicas keep up, and min-replicas-to-write is {enough}"
            fix = "Start the missing replicas, or lower min-replicas-to-write."
            yield "fail", f"{says}: all writes fail", fix
        elif replicas > 1 and enough.isdigit() and int(enough) < replicas:
            says = (
                f"{replicas} replicas, and {enough} suffice to write: during a failover, others "
                "may confirm a job that the new master does not have (durability='replica')"
            )
            fix = f"Set min-replicas-to-write to {replicas}; while one is missing, all writes fail."
            yield "warn", says, fix
        elif replicas:
            says = f"{replicas} replicas: a failover may lose jobs that they have not received"
            yield "ok", says, "Enqueue jobs that must not be lost with durability='replica'."
        else:
            says = "no replicas: if the disk of this machine is lost, all jobs are lost"
            yield (
                "warn",
                says,
                "Add a replica (replicaof); an enqueue with durability='replica' waits for it.",
            )


def _clock(readings: Readings) -> Iterator[Result]:
    skew = readings.skew
    if skew is None:
        why = readings.refused.get("TIME", "TIME is denied")
        yield "note", f"{why}, so the clocks cannot be compared", ""
        return
    way = "ahead of" if skew > 0 else "behind"
    says = f"the server's is {describe(abs(skew))} {way} this machine's"
    if abs(skew) <= readings.unsure:
        says = "the server's and this machine's agree"
    says += f" (± {describe(readings.unsure)})"
    fix = "Run NTP on both machines: each at= is wrong by this much (delays are not affected)."
    if abs(skew) <= max(1.0, 2 * readings.unsure):
        yield "ok", says, ""
    else:
        yield "fail" if abs(skew) > 60 else "warn", says, fix


def _round_trip(readings: Readings) -> Iterator[Result]:
    if trips := readings.round_trips:
        middle = trips[len(trips) // 2]
        says = f"{describe(middle)} at the median, {describe(trips[-1])} at most"
        fix = (
            "Move workers and producers nearer: each claim and each enqueue waits for a round trip."
        )
        yield _warn_unless(middle <= 0.01, says, fix)


def _idle_clients(readings: Readings) -> Iterator[Result]:
    if "timeout" in readings.config:
        seconds = int(readings.config["timeout"])
        says = f"closed after {seconds} s" if seconds else "never closed by the server"
        fix = "CONFIG SET timeout 0: otherwise bide opens its connections again and again."
        yield _warn_unless(not 0 < seconds < 60, says, fix)


def _keepalive(readings: Readings) -> Iterator[Result]:
    if "tcp-keepalive" in readings.config:
        seconds = int(readings.config["tcp-keepalive"])
        says = (
            f"every {seconds} s"
            if seconds
            else "off: the server keeps the connections of dead clients"
        )
        yield _warn_unless(seconds > 0, says, "CONFIG SET tcp-keepalive 300.")


def _clients(readings: Readings) -> Iterator[Result]:
    clients, most = readings.info.get("connected_clients"), readings.info.get("maxclients")
    if clients is not None and most:
        fix = "Raise maxclients, or use fewer processes."
        yield _warn_unless(int(clients) <= 0.8 * int(most), f"{clients} of {most}", fix)


def _hz(readings: Readings) -> Iterator[Result]:
    hz = readings.info.get("hz")
    if hz is not None:
        says = f"{hz}: bide does not depend on it"
        fix = "CONFIG SET hz 10: with less, the server is slow to notice clients that have gone."
        yield _warn_unless(int(hz) >= 10, says, fix)


CHECKS: Final[dict[str, tuple[str, Callable[[Readings], Iterator[Result]]]]] = {
    "client": ("", _client),
    "server": ("", _server),
    "cluster": ("", _cluster),
    "sentinel": ("", _sentinel),
    "eviction": ("INFO", _eviction),
    "maxmemory": ("INFO", _maxmemory),
    "persistence": ("INFO", _persistence),
    "replication": ("INFO", _replication),
    "clock": ("TIME", _clock),
    "round trip": ("PING", _round_trip),
    "idle clients": ("CONFIG GET", _idle_clients),
    "keepalive": ("CONFIG GET", _keepalive),
    "clients": ("INFO", _clients),
    "hz": ("INFO", _hz),
}
"""Every check in its order, and the command that it needs; empty for checks that need none, and for
checks of some servers only."""


def _delayed_jobs_of_rq(sets: Sequence[DelaySet] | None) -> Iterator[Result]:
    """Check whether a Timer moves the delayed jobs of RQ's queues; yield nothing without jobs."""
    if sets is None:
        yield "note", "RQ's keys are denied, so its delayed jobs are not checked", ""
        return
    for each in sets:
        jobs, late = count(each.overdue + each.waiting, "job"), count(each.overdue, "job")
        alive = f"{each.timers} alive" if each.timers else "no timer alive"
        fix = "Start one for its queue: bide rq-timer QUEUE."
        if each.key.startswith(DELAYED):
            fix = f"Start one: bide rq-timer {each.key.removeprefix(DELAYED)}."
        if each.overdue and not each.timers:
            yield "fail", f"{late} overdue in {each.key}, {alive}", fix
        elif not each.timers:
            yield "warn", f"{jobs} in {each.key}, {alive}", fix
        elif each.overdue > each.left:
            fix = "Read the Timers' logs; if the Timers are overloaded, start another."
            says = f"{late} overdue by more than {describe(OVERDUE)} in {each.key}, timers: {alive}"
            yield "warn", says, fix
        else:
            yield "ok", f"{jobs} in {each.key}, timers: {alive}", ""
        if each.strange:
            members = f"{count(each.strange, 'member')} of {each.key}"
            fix = "The Timers' logs name them; ZREM removes them."
            yield "warn", f"{members} stay: they are no delayed jobs of its queue", fix


_UNSENT: Final = 10.0
"""Seconds after which a running relay should have sent a row."""


def _outbox(ctx: click.Context, outbox: OutboxLike, path: str) -> Iterator[Result]:
    program, is_default = ctx.find_root().command_path, path == ctx.lookup_default("outbox")
    try:
        stats = outbox.stats()
    except Exception as error:  # any error of the application's database and its driver
        told = str(getattr(error, "orig", error)).strip()
        create = "run `manage.py migrate`" if is_default else "create its tables"
        yield "fail", f"its database cannot be read ({told})", f"start it, and {create}"
        return
    if stats.refused:
        its = "" if is_default else f" {path}"
        repair = f"`{program} outbox ls{its} --refused` shows the errors"
        yield "fail", f"{count(stats.refused, 'row')} refused by the server for good", repair
    if stats.waiting and stats.age > _UNSENT:
        late = f"{count(stats.waiting, 'row')} not sent, the oldest for {describe(stats.age)}"
        its = "" if is_default else f" --outbox {path}"
        yield "fail", late, f"run a relay: `{program} worker{its}`"
    elif not stats.refused:
        yield "ok", f"{count(stats.waiting, 'row')} not sent yet", ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def _bytes(number: int) -> str:
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


_STYLE: dict[str, Style] = {"ok": "green", "warn": "yellow", "fail": "red", "note": "dim"}


@click.command()
@option("--outbox", "OUTBOX", "Outbox whose rows are checked too: shop.db:outbox.")
@site_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, outbox: str | None, site: Site, as_json: bool) -> None:
    """Check the server's settings, its clock and the connection.

    It also looks for overdue jobs in RQ's delay queues, and with --outbox for rows that were not
    sent.

    The command exits with 1 if a check fails. Each line is ok, warn (jobs are safe today), fail
    (jobs are lost, refused or late), or a note. A line that is not ok has the repair. If a check
    cannot run, its line has the reason.

    At the end, the command lists what is missing for production. These points do not change the
    exit code.
    """
    if outbox is not None:
        import_from_here()
    found = None if outbox is None else load_outbox(outbox)
    readings = probe(site.client.url)
    is_lost = all(one.lost for one in readings)
    findings = [*diagnose(readings), _scripts(site, is_lost)]
    needs: list[Point] = []
    if not is_lost:
        sets = delayed_on_rq(site.client)
        findings += [CheckResult("rq timer", *said) for said in _delayed_jobs_of_rq(sets)]
        workers, queues = _served(site)
        needs = points(readings, site.client.url, workers, queues)
    if found is not None:
        findings += [CheckResult("outbox", *said) for said in _outbox(ctx, found, str(outbox))]
    failed = any(finding.verdict == "fail" for finding in findings)
    if as_json:
        echo_json(
            {
                "ok": not failed,
                "server": site.where,
                "checks": [finding._asdict() for finding in findings],
                "production": [need._asdict() for need in needs],
            }
        )
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
        if needs:
            _show_needs(needs)
    ctx.exit(1 if failed else 0)


def _show_needs(needs: Sequence[Point]) -> None:
    """Print what is missing for production, each with its page; the exit code does not count it."""
    open_points = [need for need in needs if need.state != "ok"]
    missing = sum(need.state == "missing" for need in needs)
    echo()
    if missing:
        echo(
            f"For production, {missing} of {count(len(needs), 'point')} "
            f"{'is' if missing == 1 else 'are'} missing (the exit code does not count them):",
            "bold",
        )
    else:
        echo(f"For production, none of {count(len(needs), 'point')} is missing.", "bold")
    for need in open_points:
        unknown = "not known: " if need.state == "unknown" else ""
        hanging([Cell("    "), Cell(f"{need.point:<12}")], f"{unknown}{need.says}.")
        hanging(["    ", " " * 12], f"docs/{need.page}", "dim")


def _served(site: Site) -> tuple[list[WorkerInfo] | None, dict[str, QueueStats]]:
    """Return the workers and the queues; None if the server refuses the scripts that list them."""
    try:
        return site.workers(), site.counts(site.queues())
    except BideError:
        return None, {}


def _scripts(site: Site, is_lost: bool) -> CheckResult:
    """Check whether scripts may run: an ACL, a managed service or a full disk may prevent it."""
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
