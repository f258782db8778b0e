"""All faults, and where each row of what can go wrong is looked at."""

from __future__ import annotations

from typing import NamedTuple

from tests.chaos.fault import Fault
from tests.chaos.faults import (
    clocks,
    crowds,
    deploys,
    desks,
    fleets,
    flows,
    lines,
    mixed,
    servers,
    workers,
)

FAULTS: dict[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        workers.Killed,
        workers.Stopped,
        workers.Frozen,
        workers.Blocked,
        workers.Locked,
        workers.Poison,
        workers.Poisoned,
        workers.Grandchildren,
        workers.Forks,
        lines.Lossy,
        lines.Slow,
        lines.HalfOpen,
        lines.CancelledAwaits,
        servers.ServerKilled,
        servers.LogCut,
        servers.FailedOver,
        servers.Full,
        servers.ScriptsForgotten,
        fleets.SlotsMove,
        fleets.OwnerKilled,
        fleets.OwnerFrozen,
        fleets.MasterKilled,
        fleets.MasterFrozen,
        fleets.Confirmed,
        clocks.ClientClocks,
        clocks.ServerClock,
        deploys.Payloads,
        deploys.Missing,
        crowds.Burst,
        crowds.RetryStorm,
        crowds.FailureFlood,
        crowds.Timekeepers,
        crowds.Growth,
        flows.FlowsKilled,
        flows.FlowsLossy,
        flows.FlowsServerKilled,
        desks.OrderDesk,
        desks.OrderDeskPostgres,
        mixed.Mixed,
    )
}


class Row(NamedTuple):
    """One thing that can go wrong."""

    what: str
    faults: tuple[str, ...] = ()
    """Those of the suite that inject it."""
    tests: tuple[str, ...] = ()
    """Others that look at it, more closely than a load can."""


ROWS = (
    Row(
        "A worker is killed, or dies for want of memory",
        ("worker-killed", "poison"),
        (
            "tests/chaos/test_killed_workers.py",
            "tests/chaos/processes/test_deadly.py",
            "tests/chaos/processes/test_programs.py",
        ),
    ),
    Row(
        "A worker is asked to stop",
        ("worker-stopped", "function-missing"),
        ("tests/chaos/test_stop.py",),
    ),
    Row(
        "A worker is frozen for longer than its lease, and continues",
        ("worker-frozen",),
        ("tests/chaos/test_killed_workers.py", "tests/chaos/processes/test_stopped.py"),
    ),
    Row(
        "Replies are lost",
        ("line-lossy",),
        (
            "tests/chaos/test_lost_replies.py",
            "tests/chaos/test_overtaken.py",
            "tests/chaos/test_lossy_line.py",
        ),
    ),
    Row(
        "The server is killed; its log is cut at any byte",
        ("server-killed", "log-cut"),
        ("tests/chaos/test_crash_prefix.py", "tests/chaos/test_server_gone.py"),
    ),
    Row(
        "A failover loses acknowledged writes",
        ("failover", "cluster-owner-killed", "sentinel-failover", "failover-confirmed"),
        ("tests/chaos/test_durability.py",),
    ),
    Row("A cluster redirects, and moves slots", ("cluster-moves", "cluster-owner-killed")),
    Row(
        "A master hangs, and another takes over",
        ("cluster-owner-frozen", "sentinel-master-frozen"),
        ("tests/servers/test_live.py",),
    ),
    Row(
        "Half-open connections",
        ("half-open", "line-slow"),
        ("tests/chaos/test_lossy_line.py", "tests/chaos/test_overtaken.py"),
    ),
    Row("The server is full", ("server-full",), ("tests/chaos/test_full_server.py",)),
    Row("The server drops keys when it is full", (), ("tests/chaos/test_full_server.py",)),
    Row(
        "The server loses its scripts",
        ("scripts-forgotten", "failover"),
        ("tests/chaos/test_lost_replies.py",),
    ),
    Row(
        "Scripts that block the server for other clients",
        ("due-burst",),
        ("tests/chaos/test_bounded_scripts.py",),
    ),
    Row(
        "Clients whose clocks are wrong",
        ("client-clocks",),
        ("tests/chaos/test_wrong_clocks.py",),
    ),
    Row(
        "The server's clock jumps",
        ("server-clock",),
        (
            "tests/chaos/test_clock_jumps.py",
            "tests/chaos/test_skewed_servers.py",
            "tests/protocol/test_clock.py",
        ),
    ),
    Row(
        "A job that kills its process each time",
        ("poison", "worker-poisoned"),
        ("tests/protocol/test_suspects.py", "tests/chaos/processes/test_deadly.py"),
    ),
    Row(
        "Payloads that are too large, undecodable, of wrong types",
        ("bad-payloads",),
        ("tests/unit/test_codec.py", "tests/unit/test_typed_payloads.py"),
    ),
    Row(
        "Functions that are missing after a deploy",
        ("function-missing",),
        (
            "tests/worker/test_missing_tasks.py",
            "tests/worker/processes/test_missing_tasks.py",
        ),
    ),
    Row("Old and new workers on one queue", (), ("tests/chaos/test_deploys.py",)),
    Row(
        "Leases are renewed late: a job blocks the event loop or the interpreter",
        ("loop-blocked", "lock-held"),
        ("tests/chaos/processes/test_stopped.py",),
    ),
    Row("Forks with open connections and threads", ("forks",)),
    Row(
        "Jobs leave processes behind",
        ("grandchildren",),
        ("tests/chaos/processes/test_leftovers.py", "tests/chaos/test_nothing_left.py"),
    ),
    Row(
        "Wake-up messages are lost; the timekeeper and the backup die",
        ("wakers-lost",),
        ("tests/chaos/test_timekeepers.py", "tests/chaos/test_wakeups.py"),
    ),
    Row(
        "Everything fails at once",
        ("retry-storm", "failure-flood"),
        ("tests/worker/test_worker_flood.py",),
    ),
    Row(
        "Awaited calls are cancelled",
        ("cancelled-awaits",),
        ("tests/chaos/test_overtaken.py",),
    ),
    Row(
        "Events, notes and logs grow",
        ("growth",),
        ("tests/chaos/test_events.py", "tests/protocol/test_retention.py"),
    ),
    Row(
        "Jobs that affect each other: schedules, groups, limits, keys, parents",
        ("flows-killed", "flows-lossy", "flows-server-killed"),
        (
            "tests/chaos/test_schedules.py",
            "tests/chaos/test_groups.py",
            "tests/chaos/test_group_order.py",
            "tests/chaos/test_limits.py",
            "tests/chaos/test_killed_batches.py",
            "tests/chaos/test_flow_crashes.py",
        ),
    ),
    Row(
        "Orders in a database, and the outbox: workers, relays, the server and the database die",
        ("order-desk", "order-desk-postgres"),
        ("tests/contrib/sqlalchemy/test_kills.py", "tests/contrib/sqlalchemy/test_model.py"),
    ),
    Row("Several of these at once", ("everything",)),
    Row("Jobs run out of order", ("line-slow",), ("tests/chaos/test_order.py",)),
)
