"""What a flood of failing jobs does to a worker, to its server, and to the job behind the flood.

50,000 jobs are due at once, and one job that ends well is due behind them. Each kind of flood ends
in another way:

- **good**: the jobs do nothing. What a job waits behind these is what the others are held against.
- **raise**: the jobs raise at once, as when a service that they call is down; the last attempt.
- **retry**: the same, with another attempt an hour later.
- **arguments**: the jobs have an argument of the wrong type.
- **malformed**: the jobs' bodies are not JSON.

**active** is the most jobs that the server held for the worker at once, as a poll sees it: so many
would run again if the worker was killed. **wait** is the time from the first claim to the start of
the good job behind, on the server's clock. **settle** is the time of the script on the server.

The second table is of 1,000 jobs whose results have 999 KB each, on a queue that keeps 100 MB of
results: what the server's memory grows by, and how long the settles take.

The third is of a flood of jobs whose task the worker does not serve: how many scripts the server
runs in a second, from when the worker has looked at each job once.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks import tasks
from benchmarks.child import child
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Report, Row, Rows, median
from bide import Queue
from bide.model.retry import Retry
from bide.protocol.scripts import load

CHUNK = 500
CONCURRENCY = 100
LARGE = 1_000
KINDS = ("good", "raise", "retry", "arguments", "malformed")
LATER = Retry(backoff=["1h"])
LONGEST_S = 120.0
NAME = "benchmarks.tasks:nothing"
"""By which a producer that has not imported the task names it: its arguments are not checked."""


def run(lab: Lab) -> list[Report]:
    """Each kind of flood with each executor, in turn."""
    size = 10_000 if lab.quick else 50_000
    rounds = 1 if lab.quick else 3
    variants = [("async", kind) for kind in KINDS] + [("process", kind) for kind in KINDS[:2]]
    rows: dict[str, list[Row]] = {f"{executor}, {kind}": [] for executor, kind in variants}
    for _ in range(rounds):
        for executor, kind in variants:
            rows[f"{executor}, {kind}"].append(flood(lab, executor, kind, size))
    medians: Rows = {name: median(measured) for name, measured in rows.items()}
    for name, row in medians.items():
        good = medians[f"{name.split(',')[0]}, good"]
        row["times good"] = row["wait s"] / good["wait s"]
    return [
        Report(
            f"A flood of {size:,} jobs, {CONCURRENCY} slots (8 in processes), and a job behind it",
            medians,
            "flood",
            "active: the most jobs held at once; settle ms: of the script, on the server",
        ),
        Report(
            "Jobs with results of 999 KB",
            {"async": median([large_results(lab) for _ in range(rounds)])},
            "executor",
            "grown by: used_memory, the most that a poll saw beyond what the jobs took",
        ),
        Report(
            f"{size:,} jobs of a task that nobody serves",
            {"async": median([unknown_tasks(lab, size) for _ in range(rounds)])},
            "executor",
            "scripts that the server runs in a second, over ten seconds",
        ),
    ]


def fill(queue: Queue, kind: str, size: int) -> None:
    """Enqueue the flood, first a job that notes the start, last the good one."""
    queue.enqueue(tasks.nothing, job_id="first")
    for start in range(0, size, CHUNK):
        numbers = range(start, start + CHUNK)
        if kind == "retry":
            jobs = [queue.prepare(tasks.fail, (n,), retry=LATER) for n in numbers]
        elif kind == "arguments":
            jobs = [queue.prepare(NAME, (f"no number: {n}",)) for n in numbers]
        else:
            task = tasks.fail if kind == "raise" else tasks.nothing
            jobs = [queue.prepare(task, (n,)) for n in numbers]
        queue.enqueue_many(jobs)
    queue.enqueue(tasks.nothing, job_id="behind")


def large_results(lab: Lab) -> Row:
    """Run jobs whose results are as large as may be, and watch the server's memory."""
    lab.empty()
    queue = lab.queue()
    queue.enqueue_many([queue.prepare(tasks.large, (n,)) for n in range(LARGE)])
    queue.close()
    before = most = int(lab.client.info("memory")["used_memory"])
    _watch_scripts(lab)
    options = ("-u", lab.server.url, "-q", QUEUE, "-c", CONCURRENCY)
    end = time.monotonic() + LONGEST_S
    with child("bide", "worker", "benchmarks.tasks", *options):
        while lab.client.zcard(lab.keys["completed"]) < LARGE:
            most = max(most, int(lab.client.info("memory")["used_memory"]))
            if time.monotonic() > end:
                raise TimeoutError(f"the jobs did not run within {LONGEST_S:g} s")
            time.sleep(0.002)
    return {"grown by MB": (most - before) / 1e6, **_settles(lab)}


def unknown_tasks(lab: Lab, size: int) -> Row:
    """Have a worker look at jobs that it cannot run, and count what that costs the server."""
    lab.empty()
    queue = lab.queue()
    for start in range(0, size, CHUNK):
        numbers = range(start, start + CHUNK)
        queue.enqueue_many([queue.prepare("another.module:task", (n,)) for n in numbers])
    end = time.monotonic() + LONGEST_S
    options = ("-u", lab.server.url, "-q", QUEUE, "-c", CONCURRENCY)
    with child("bide", "worker", "benchmarks.tasks", *options):
        while queue.counts().waiting:
            if time.monotonic() > end:
                raise TimeoutError(f"not all jobs were looked at within {LONGEST_S:g} s")
            time.sleep(0.1)
        since, before = time.monotonic(), lab.scripts()[0]
        time.sleep(10)
        calls, seconds = lab.scripts()[0] - before, time.monotonic() - since
    queue.close()
    return {"scripts a second": calls / seconds}


def flood(lab: Lab, executor: str, kind: str, size: int) -> Row:
    """Fill the queue, have one worker empty it, and watch what the server holds for it."""
    lab.empty()
    queue = lab.queue()
    fill(queue, kind, size)
    queue.close()
    if kind == "malformed":
        _spoil(lab)
    client: Any = lab.client
    _watch_scripts(lab)
    slots = 8 if executor == "process" else CONCURRENCY
    options = ("-u", lab.server.url, "-q", QUEUE, "-c", slots, "--executor", executor)
    active = 0
    end = time.monotonic() + LONGEST_S
    with child("bide", "worker", "benchmarks.tasks", *options):
        while not client.zscore(lab.keys["completed"], "behind"):
            active = max(active, client.zcard(lab.keys["active"]))
            if time.monotonic() > end:
                raise TimeoutError(f"the job behind {kind} did not run within {LONGEST_S:g} s")
            time.sleep(0.002)
    settles = _settles(lab)
    began = {id: _token(client, lab, id) for id in ("first", "behind")}
    return {
        "active": active,
        "wait s": (began["behind"] - began["first"]) / 1e6,
        **settles,
    }


def _watch_scripts(lab: Lab) -> None:
    """Have the server note how long each call takes."""
    lab.client.config_set("slowlog-log-slower-than", 0)
    lab.client.config_set("slowlog-max-len", 1_000_000)
    lab.client.slowlog_reset()


def _settles(lab: Lab) -> Row:
    """How many settles there were since then, and how long they took."""
    sha = load("settle").sha
    took = sorted(
        entry["duration"] / 1000
        for entry in lab.client.slowlog_get(1_000_000)
        if sha in str(entry["command"])
    )
    lab.client.config_set("slowlog-log-slower-than", -1)
    lab.client.slowlog_reset()
    return {
        "settles": len(took),
        "settle ms, p50": took[len(took) // 2],
        "settle ms, p99.9": took[min(len(took) - 1, len(took) * 999 // 1000)],
    }


def _spoil(lab: Lab) -> None:
    """Make the bodies of all jobs of the flood unreadable."""
    ids = [id for id in lab.client.hkeys(lab.keys["jobs"]) if id not in ("first", "behind")]
    for start in range(0, len(ids), CHUNK):
        spoilt = dict.fromkeys(ids[start : start + CHUNK], "{spoilt")
        lab.client.hset(lab.keys["jobs"], mapping=spoilt)


def _token(client: Any, lab: Lab, id: str) -> int:
    """When a job was claimed, in µs on the server's clock."""
    return int(client.hget(lab.keys["run"], id)[:16])
