"""A sample of each operation: how often its arguments repeat, and the command."""

from __future__ import annotations

from typing import Any

from bide.model.limits import Declared, Retention
from bide.model.schedule import Schedule, Timing
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import fsck as fsck_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.queues import WorkerReport
from bide.protocol.commands.schedules import Draft
from bide.protocol.commands.worker import JobNote, Settle
from bide.protocol.keys import META, keys_of

ABOUT = WorkerReport("host", 1, ["mail"], "auto", 1, 1, "0")
GLOBALS = keys_of(None)
MAIL = keys_of("mail")
SETTLE = Settle("a", 1, "complete", "", b"1")
SAID = JobNote("a", 1, "L", b'"said"')
JOB = Prepared("a", "+0", 5, b"{}")
DRAFT = Draft("nightly", Timing(cron="0 3 * * *", tz="UTC"), "once", 0, 5, "a:b", b"{}")
SCHEDULE = Schedule.read(
    "nightly", b"1 cron 5 0 0 once 0 0 0 0 1 0: 2\n" + DRAFT.timing.written().encode() + b"\na:b"
)
assert SCHEDULE

OPERATIONS: dict[str, list[tuple[int, Command[Any]]]] = {
    "enqueue.enqueue": [
        *((n, enqueue_commands.enqueue(MAIL, [JOB] * n)) for n in (1, 3)),
        *(
            (n, enqueue_commands.enqueue(MAIL, [JOB._replace(constraints="x=+1")] * n))
            for n in (1, 3)
        ),
        (1, enqueue_commands.enqueue(MAIL, [JOB], ("replica", "fsync"))),
        (0, enqueue_commands.enqueue(MAIL, [], ("fsync",))),
    ],
    "enqueue.add_dependencies": [
        (
            n,
            enqueue_commands.add_dependencies(MAIL, "a", [("b", "-")] * n, True, list, confirm),
        )
        for n in (0, 3)
        for confirm in ((), ("replica",))
    ],
    "enqueue.children": [(0, enqueue_commands.children(MAIL, "a", 20))],
    "enqueue.subscribe": [
        (n, enqueue_commands.subscribe(MAIL, [("{other}a", "b")] * n)) for n in (1, 3)
    ],
    "enqueue.read_outbox": [
        (n, enqueue_commands.read_outbox(MAIL, "-", ["@{other}a b C"] * n)) for n in (0, 3)
    ],
    "enqueue.resolve": [
        (n, enqueue_commands.resolve(MAIL, [("a", "{other}b", "C")] * n)) for n in (1, 3)
    ],
    "worker.claim": [(0, worker_commands.claim(MAIL, "w1", 1, 10, 1_000_000, 0))],
    "worker.server_time": [(0, worker_commands.server_time(MAIL))],
    "worker.pop": [(0, worker_commands.pop(MAIL, "c1", 1, 10, 0))],
    "worker.reject_items": [
        (n, worker_commands.reject_items(MAIL, [("a", b"{}")] * n)) for n in (1, 3)
    ],
    "worker.settle": [(n, worker_commands.settle(MAIL, [SETTLE] * n)) for n in (1, 3)],
    "worker.extend": [(n, worker_commands.extend(MAIL, 1, [("a", 1)] * n)) for n in (1, 3)],
    "worker.add_notes": [(n, worker_commands.add_notes(MAIL, [SAID] * n)) for n in (1, 3)],
    "worker.worker_leave": [(0, worker_commands.worker_leave(MAIL, "w1"))],
    "jobs.cancel": [(n, job_commands.cancel(MAIL, ["a"] * n)) for n in (1, 3)],
    "jobs.reschedule": [(n, job_commands.reschedule(MAIL, ["a"] * n, "+0")) for n in (1, 3)],
    "jobs.promote": [(n, job_commands.promote(MAIL, ["a"] * n)) for n in (1, 3)],
    "jobs.retry": [(n, job_commands.retry(MAIL, ["a"] * n, "+0")) for n in (1, 3)],
    "jobs.delete": [(n, job_commands.delete(MAIL, ["a"] * n)) for n in (1, 3)],
    "jobs.pause": [(0, job_commands.pause(MAIL))],
    "jobs.resume": [(0, job_commands.resume(MAIL))],
    "jobs.configure": [(0, job_commands.configure(MAIL, Retention()))],
    "jobs.limit": [(0, job_commands.limit(MAIL, "1 1 1", "none"))],
    "jobs.declare": [(0, job_commands.declare(MAIL, Declared("1 1 1", "none"), True))],
    "jobs.mark_data": [(0, job_commands.mark_data(MAIL, Retention(), True))],
    "jobs.purge": [(0, job_commands.purge(MAIL, "this")), (0, job_commands.purge(MAIL, None))],
    "jobs.forget": [(0, job_commands.forget(MAIL))],
    "jobs.listen": [(0, job_commands.listen(MAIL, "audit", "1-1"))],
    "jobs.fetch": [(n, job_commands.fetch(MAIL, ["a"] * n)) for n in (1, 3)],
    "queues.configure": [(0, queue_commands.configure(MAIL, "g", 2, True, "1 1 1"))],
    "queues.counts": [(0, queue_commands.counts(MAIL, "g"))],
    "queues.page": [(0, queue_commands.page(MAIL, "0"))],
    "queues.holders": [(0, queue_commands.holders(MAIL, 10))],
    "jobs.counts": [(0, job_commands.counts(MAIL))],
    "jobs.upcoming": [(0, job_commands.upcoming(MAIL, 0, 10))],
    "jobs.latency": [(0, job_commands.latency(MAIL, 59, 60))],
    "jobs.count_due": [(n, job_commands.count_due(MAIL, [60] * n)) for n in (1, 3)],
    "jobs.await_end": [(0, job_commands.await_end(MAIL, "a", 1_000_000))],
    "jobs.listing": [(0, job_commands.listing(MAIL, "waiting", 0, 10))],
    "jobs.timeline": [
        (0, job_commands.timeline(MAIL, 1_000_000, 60, offset_us=-1)),
        (0, job_commands.timeline(MAIL, 1_000_000, 60, at_us=5)),
    ],
    "jobs.list_due": [
        (0, job_commands.list_due(MAIL, 1, 2)),
        (0, job_commands.list_due(MAIL, 1, 2, by_due=True)),
    ],
    "queues.register_queues": [
        (n, queue_commands.register_queues(GLOBALS, ["mail"] * n)) for n in (1, 3)
    ],
    "queues.unregister_queues": [
        (n, queue_commands.unregister_queues(GLOBALS, ["mail"] * n)) for n in (1, 3)
    ],
    "queues.worker_start": [(0, queue_commands.worker_start(MAIL))],
    "queues.heartbeat": [
        (0, queue_commands.heartbeat(GLOBALS, "w1", ABOUT)),
        (0, queue_commands.heartbeat(GLOBALS, "w1", None)),
    ],
    "queues.worker_pause": [
        (n, queue_commands.worker_pause(GLOBALS, ["w1"] * n, paused=True)) for n in (1, 3)
    ],
    "queues.worker_stop": [(n, queue_commands.worker_stop(GLOBALS, ["w1"] * n)) for n in (1, 3)],
    "queues.workers": [(0, queue_commands.workers(GLOBALS))],
    "queues.queues": [(0, queue_commands.queues(GLOBALS))],
    "schedules.set_schedule": [
        (0, schedule_commands.set_schedule(MAIL, DRAFT)),
        (0, schedule_commands.set_schedule(MAIL, DRAFT._replace(timing=Timing(at_us=(1, 2))))),
    ],
    "schedules.edit_schedule": [
        (0, schedule_commands.edit_schedule(MAIL, SCHEDULE, SCHEDULE.timing, "once", 0)),
    ],
    "schedules.read_page": [(0, schedule_commands.read_page(MAIL, "0"))],
    "schedules.read_schedules": [
        (n, schedule_commands.read_schedules(MAIL, ["nightly"] * n)) for n in (1, 3)
    ],
    "schedules.refill": [(0, schedule_commands.refill(MAIL, SCHEDULE, [1, 2], False))],
    "schedules.pause_schedule": [(0, schedule_commands.pause_schedule(MAIL, "nightly", True))],
    "schedules.remove_schedules": [
        (n, schedule_commands.remove_schedules(MAIL, ["nightly"] * n)) for n in (1, 3)
    ],
    "schedules.run_schedule": [(0, schedule_commands.run_schedule(MAIL, "nightly", "nightly@1"))],
    "fsck.look_at_jobs": [(0, fsck_commands.look_at_jobs(MAIL, "due", 1, "0", True))],
    "fsck.look_at_groups": [(0, fsck_commands.look_at_groups(MAIL, "order", "0", True))],
    "fsck.look_beside": [
        (len(META), fsck_commands.look_beside(MAIL, "meta", "0", True)),
        (0, fsck_commands.look_beside(MAIL, "keys", "0", True)),
    ],
    "fsck.look_at_edges": [(0, fsck_commands.look_at_edges(MAIL, "0", True))],
    "fsck.look_at_schedules": [(0, fsck_commands.look_at_schedules(MAIL, "schedule", "0", True))],
    "fsck.look_at_queues": [(0, fsck_commands.look_at_queues(GLOBALS, "0", True))],
    "fsck.look_at_workers": [(0, fsck_commands.look_at_workers(GLOBALS, "0", True))],
}
"""Operation -> calls of it: how often its arguments repeat, and the command."""
