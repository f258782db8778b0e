"""How near to what the machine allows: the same scripts driven from C, and Python without a server.

*Bare*: `bare.c` sends what bide sends, byte for byte but for the ids, over the same socket to the
same server, and does nothing else. What it reaches is what no client could better that makes one
round trip at a time. *Python alone*: bide with replies made in its own process (`alone`): what it
would reach if server, socket and client library cost nothing. Bide itself takes turns with both.

One by one, server and client have a processor each (`benchmarks.places`).

The worker runs 200 at once, so that it claims 100 at a time, as `bare.c` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import redis

from benchmarks import tasks
from benchmarks.child import answer, child
from benchmarks.filling import fill
from benchmarks.lab import ROOT, Lab
from benchmarks.places import placed
from benchmarks.report import Report, Row, Rows, median
from benchmarks.throughput import JOBS as DRAINED
from benchmarks.throughput import drain
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands.enqueue import CHUNK
from bide.protocol.scripts import load

BATCH = 100
MANY = 500
"""Jobs per call of `enqueue_many`: two calls of its script."""

ENQUEUED = 10_000
DELAY = 3600


class Kind:
    """One thing that is done in three ways; of each, what every round came to."""

    def __init__(self) -> None:
        self.bare: list[Row] = []
        self.bide: list[Row] = []
        self.alone: list[Row] = []


def run(lab: Lab) -> list[Report]:
    """All ways in turn, round after round."""
    compiled = build()
    if compiled is None:
        print("without a C compiler (cc), what the bare scripts reach is left out", file=sys.stderr)
    kinds: dict[str, Kind] = defaultdict(Kind)
    one, many, work = "enqueue, one by one", f"enqueue_many, {MANY} a call", "claim, run, settle"
    trips: dict[str, list[Row]] = defaultdict(list)
    stages: list[Row] = []
    count = ENQUEUED // 5 if lab.quick else ENQUEUED
    url = lab.server.url
    server = int(lab.client.info("server")["process_id"])
    for _ in range(3 if lab.quick else 7):
        if compiled:
            body, script = _body(lab), _enqueue_script(lab)
            with placed("apart", server, os.getpid()):
                trips["from C"].append(_bare(lab, compiled, "ping", count))
                kinds[one].bare.append(_bare(lab, compiled, "enqueue", count, 1, 1, body, *script))
            calls = (CHUNK, MANY // CHUNK, body)
            kinds[many].bare.append(_bare(lab, compiled, "enqueue", 10 * count, *calls, *script))
            lab.empty()
            fill(lab.server, DRAINED, -60_000_000, 1_000_000)
            scripts = (*_script(lab, "claim"), *_script(lab, "settle"))
            kinds[work].bare.append(_bare(lab, compiled, "drain", DRAINED, BATCH, *scripts))
        with placed("apart", server, os.getpid()):
            trips["by the client library"].append(_ping(lab, count))
            kinds[one].bide.append(_enqueue(lab, count, _one_by_one))
        kinds[many].bide.append(_enqueue(lab, 10 * count, _many))
        kinds[work].bide.append(drain(lab, "async", 2 * BATCH))
        with child("benchmarks.alone.add", url, count) as process:
            told = answer(process, 120)
        kinds[one].alone.append(told["one"])
        kinds[many].alone.append(told["many"])
        with child("benchmarks.alone.work", url, DRAINED, 2 * BATCH) as process:
            kinds[work].alone.append(answer(process, 120))
        with child("benchmarks.alone.stages", url, count) as process:
            stages.append(answer(process, 120))
    return [
        Report(
            "How near the limit",
            {name: _shares(kind) for name, kind in kinds.items()},
            "what",
            "jobs/s, medians over rounds. bare: the same scripts driven from C; Python alone: bide "
            "with replies that cost nothing; %: what bide reaches of each",
        ),
        Report(
            "Where each µs of a job goes",
            {name: _parts(kind) for name, kind in kinds.items()},
            "what",
            "wall: of each; server: EVALSHA, by commandstats; CPU: the process's own",
        ),
        Report("Of that in Python, by stage", _staged(stages), "stage", "CPU µs per job"),
        Report("A round trip that does nothing (PING)", {k: median(v) for k, v in trips.items()}),
    ]


def build() -> Path | None:
    """The compiled program, made again where its source is newer; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, made = ROOT / "benchmarks" / "bare.c", ROOT / "build" / "bare"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        made.parent.mkdir(exist_ok=True)
        subprocess.run([compiler, "-O2", "-o", made, source], check=True)
    return made


def _bare(lab: Lab, compiled: Path, what: str, count: int, *args: object) -> Row:
    """Run the C program on an otherwise idle server."""
    if what == "enqueue":
        lab.empty()
    path = unquote(urlsplit(lab.server.url).path)
    before = lab.scripts()[1]
    command = [str(compiled), path, what, str(count), *map(str, args)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    usec = lab.scripts()[1] - before
    return {"wall µs": float(told) * 1e6 / count} | ({"server µs": usec / count} if usec else {})


def _script(lab: Lab, name: str) -> list[str]:
    """What `bare.c` is told of a script, which the server knows then."""
    script = load(name)
    lab.client.script_load(script.text)
    keys = lab.keys.of(script.keys)
    return [script.sha, str(len(keys)), *keys]


def _enqueue_script(lab: Lab) -> list[str]:
    """The same of `enqueue`, with the keys that bide sends for jobs of one priority."""
    with closing(lab.queue()) as queue:
        command = enqueue_commands.enqueue(lab.keys, [queue.prepare(tasks.nothing, (12_345,))])
    sha, *_ = _script(lab, "enqueue")
    return [sha, str(len(command.keys)), *command.keys]


def _body(lab: Lab) -> str:
    with closing(lab.queue()) as queue:
        return queue.prepare(tasks.nothing, (12_345,)).body.decode()


def _ping(lab: Lab, count: int) -> Row:
    client: Any = redis.Redis.from_url(lab.server.url, protocol=2)
    with closing(client):
        client.ping()
        began = time.perf_counter()
        for _ in range(count):
            client.ping()
        return {"wall µs": (time.perf_counter() - began) * 1e6 / count}


def _enqueue(lab: Lab, count: int, way: Callable[[Any, int], None]) -> Row:
    lab.empty()
    with closing(lab.queue()) as queue:
        queue.enqueue(tasks.nothing, delay=DELAY)  # connects
        usec = lab.scripts()[1]
        wall, cpu = time.perf_counter(), time.process_time()
        way(queue, count)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        usec = lab.scripts()[1] - usec
    return {
        "wall µs": wall * 1e6 / count,
        "CPU µs": cpu * 1e6 / count,
        "server µs": usec / count,
    }


def _one_by_one(queue: Any, count: int) -> None:
    for number in range(count):
        queue.enqueue(tasks.nothing, number, delay=DELAY)


def _many(queue: Any, count: int) -> None:
    for i in range(0, count, MANY):
        batch = range(i, i + MANY)
        queue.enqueue_many(queue.prepare(tasks.nothing, (n,), delay=DELAY) for n in batch)


def _shares(kind: Kind) -> Row:
    reached = 1e6 / median(kind.bide)["wall µs"]
    row: Row = {"bide": reached}
    for name, rounds in (("bare", kind.bare), ("Python alone", kind.alone)):
        if rounds:
            limit = 1e6 / median(rounds)["wall µs"]
            row |= {name: limit, f"% of {name}": 100 * reached / limit}
    return row


def _parts(kind: Kind) -> Row:
    bide, alone = median(kind.bide), median(kind.alone)
    row = {"bide": bide["wall µs"], "server": bide["server µs"], "CPU": bide["CPU µs"]}
    if kind.bare:
        bare = median(kind.bare)
        row |= {"bare": bare["wall µs"], "bare server": bare["server µs"]}
    return row | {"Python alone": alone["wall µs"], "its CPU": alone["CPU µs"]}


def _staged(stages: list[Row]) -> Rows:
    return {name: {"CPU µs": us} for name, us in median(stages).items()}
