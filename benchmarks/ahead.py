"""How late jobs start that fall due at random moments, claimed ahead of time and when they are due.

Due times are those of a Poisson process, as real ones are: many fall due while the worker waits for
the reply to a claim. The lateness of a job is taken by the job, as its first statement. The floor
is a process that sleeps until such moments too, in the same seconds. *when due* is the same worker
with its window for claims ahead closed. One kind is also measured without parts of it: *not
watched* sleeps until a job is due, and does not watch the clock before. *one reading* counts the
wait from the time that the claim read. *not warmed up* claims when due, and sends no PING before.

All ways take turns, over TCP and over a unix socket, and what is told of each is the median over
the rounds.

- *200/s*, *1,000/s*: a stream; jobs that do nothing, and jobs of 5 ms;
- *single*: a job every 0.4 to 0.7 s, on an idle server;
- *burning*: 200/s beside two processes that burn two processors;
- *far*: 200/s through a proxy that keeps each packet for 5 ms, so that a round trip takes 10 ms
  more; how long it takes is measured with PING.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import redis

from benchmarks import tasks
from benchmarks.child import answer, child, tell
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Aim, Report, Row, Rows, difference, median, percentiles
from benchmarks.rounds import in_turn
from bide import Queue
from bide.cli import main as bide_command
from bide.embedded import Server
from bide.protocol.commands.worker import Claim
from bide.protocol.keys import keys_of
from bide.worker import loop
from bide.worker.executors import base
from bide.worker.executors.base import Executor
from bide.worker.queue_state import AheadWindow, QueueState

QUICK_S, THOROUGH_S = 100, 800
DELAY_S = 0.5
AHEAD_S = 1.0
ENDED_S = 0.3
FAR_S = 0.005
PINGS = 50


class Kind(NamedTuple):
    """A load, the worker that bears it, and how late its jobs may be above the floor, in ms."""

    name: str
    rate: float
    seconds: float
    task: str = "stamp"
    executor: str = "async"
    transport: str = "tcp"
    is_burning: bool = False
    is_far: bool = False
    p50: float | None = None
    p99: float | None = None


def _streams(transport: str) -> list[Kind]:
    kinds = []
    for task, way in (("stamp", "0 ms"), ("stamp_and_wait", "5 ms")):
        few = Kind(f"200/s {way} {transport}", 200, 4, task, transport=transport)
        many = Kind(f"1,000/s {way} {transport}", 1000, 2, task, transport=transport)
        kinds += [few._replace(p50=0.15, p99=0.5), many._replace(p50=0.2, p99=0.8)]
    single = Kind(f"single {transport}", 2, 8, transport=transport, p50=0.2, p99=0.5)
    return [*kinds, single]


_OTHER = Kind("", 200, 4, "stamp_in_thread", p50=0.35, p99=0.7)

KINDS = (
    *_streams("tcp"),
    *_streams("unix"),
    _OTHER._replace(name="200/s threads tcp", executor="thread"),
    _OTHER._replace(name="200/s processes tcp", executor="process"),
    Kind("200/s burning tcp", 200, 4, is_burning=True),
    Kind("200/s far tcp", 200, 4, is_far=True),
)


def run(lab: Lab) -> list[Report]:
    """Each kind, ahead and when due, in turn."""
    wanted = [kind for kind in KINDS if any(kind.name.startswith(name) for name in lab.only)]
    rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
    with Server.start(binary=lab.server.binary, tcp=True) as other:
        urls = {"unix": lab.server.url, "tcp": other.url}
        measures = {
            f"{kind.name}: {way}": partial(_measure, kind, way, urls[kind.transport], rows)
            for kind in wanted
            for way in _ways(kind)
        }
        in_turn(lab.seconds(QUICK_S, THOROUGH_S), measures)
    return [_report(kind, rows) for kind in wanted if rows[kind.name, "ahead"]]


def _report(kind: Kind, rows: dict[tuple[str, str], list[Row]]) -> Report:
    shown: Rows = {way: median(rows[kind.name, way]) for way in (*_ways(kind), "floor")}
    above = difference(shown["ahead"], shown["floor"])
    shown["ahead, above the floor"] = above
    aims = [Aim(f"{kind.name}: early jobs", shown["ahead"]["early"], at_most=0)]
    for percentile, bound in (("p50", kind.p50), ("p99", kind.p99)):
        if bound is not None:
            what = f"{kind.name}: {percentile} above the floor, ms"
            aims.append(Aim(what, above[percentile], at_most=bound))
    if kind.is_far:
        way_back = shown["ahead"]["round trip"] / 2
        what = f"{kind.name}: p50 above the floor, ms; half a round trip and 0.3"
        aims.append(Aim(what, above["p50"], at_most=way_back + 0.3))
    if kind.is_burning:
        twice = 2 * shown["floor"]["p99"]
        aims.append(
            Aim(f"{kind.name}: p99, ms, 2 x the floor", shown["ahead"]["p99"], at_most=twice)
        )
    if kind.rate == 200 and not (kind.is_burning or kind.is_far):
        share = shown["ahead"]["claims"] / shown["when due"]["claims"]
        aims.append(Aim(f"{kind.name}: claims per job, to those when due", share, at_most=2 / 3))
    return Report(
        f"Lateness in ms, {kind.name}",
        shown,
        "claimed",
        "medians of the rounds; earliest: the least late job of all rounds; claims: per job",
        aims,
    )


def _measure(kind: Kind, way: str, url: str, rows: dict[tuple[str, str], list[Row]]) -> Row:
    client: Any = redis.Redis.from_url(url, decode_responses=True)
    client.flushall()
    with TemporaryDirectory() as directory, ExitStack() as stack:
        log, floor_log = Path(directory, "jobs"), Path(directory, "floor")
        to = stack.enter_context(_far(url)) if kind.is_far else url
        options = ("-u", to, "-q", QUEUE, "-c", 100 if kind.executor != "process" else 8)
        role = "bide" if way == "ahead" else f"benchmarks.ahead.{way.replace(' ', '_')}"
        worker = (role, "worker", "benchmarks.tasks", *options, "--executor", kind.executor)
        stack.enter_context(child(*worker, log=log))
        floor = stack.enter_context(child("sleep", floor_log))
        _warm_up(url, kind.task, log)
        round_trip = _round_trip_ms(to) if kind.is_far else None
        if kind.is_burning:
            for _ in range(2):
                stack.enter_context(_burning())
        before = _claims(client)
        count = round(kind.rate * kind.seconds)
        start = time.time_ns() + round(AHEAD_S * 1e9)
        times = list(_moments(kind, count))
        for offset in _moments(kind, count):
            tell(floor, start + round((offset + DELAY_S) * 1e9))
        producer = stack.enter_context(child("benchmarks.ahead.produce", url, start, kind.task))
        for offset in times:
            tell(producer, round(offset * 1e9))
        tell(producer, "end")
        answer(producer, AHEAD_S + times[-1] + 30)
        time.sleep(DELAY_S + ENDED_S)
        notes = tasks.read_log(log)[WARM_UP:]
        if len(notes) != count:
            raise RuntimeError(f"{len(notes)} of {count} jobs ran")
        claims = _claims(client) - before
        floor_notes = tasks.read_log(floor_log)
    client.close()
    late = [note.late_ms for note in notes]
    row = percentiles(late) | {"early": sum(one < 0 for one in late), "earliest": min(late)}
    row["claims"] = claims / count
    if round_trip is not None:
        row["round trip"] = round_trip
    rows[kind.name, way].append(row)
    rows[kind.name, "floor"].append(percentiles(note.late_ms for note in floor_notes))
    return row


WARM_UP = 20
BOTH = ("ahead", "when due")
PARTS = ("not watched", "one reading")


def _ways(kind: Kind) -> tuple[str, ...]:
    if kind.rate <= 2:
        return (*BOTH, "not warmed up")
    return (*BOTH, *PARTS) if kind == KINDS[0] else BOTH


def _warm_up(url: str, task: str, log: Path) -> None:
    queue = Queue(QUEUE, url=url)
    function = getattr(tasks, task)
    for number in range(WARM_UP):
        queue.enqueue(function, number)
    end = time.monotonic() + 20
    while not log.exists() or len(tasks.read_log(log)) < WARM_UP:
        if time.monotonic() > end:
            raise RuntimeError("the worker did not start")
        time.sleep(0.05)
    time.sleep(0.2)


def _moments(kind: Kind, count: int) -> Iterator[float]:
    """When jobs fall due, in seconds from the start."""
    at = 0.0
    for _ in range(count):
        at += random.uniform(0.4, 0.7) if kind.rate <= 2 else random.expovariate(kind.rate)
        yield at


def _round_trip_ms(url: str) -> float:
    """Return the median time of a PING."""
    times = []
    with redis.Redis.from_url(url) as client:
        for _ in range(PINGS):
            begin = time.perf_counter()
            client.ping()
            times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def _claims(client: Any) -> int:
    """How many claims all workers that are there have made: each numbers its own."""
    told = client.hgetall(keys_of(QUEUE)["claims"])
    return sum(int(claim.split(" ", 2)[1]) for claim in told.values())


@contextmanager
def _burning() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _far(url: str) -> Iterator[str]:
    with child("benchmarks.ahead.proxy", url.rsplit(":", 1)[1].split("/")[0]) as process:
        assert process.stdout is not None
        yield f"redis://127.0.0.1:{int(process.stdout.readline())}"


# ----------------------------------------------------------------------------- inside the children


def when_due(*args: str) -> None:
    """The command line of bide, which claims jobs when they are due."""
    AheadWindow.lead = AheadWindow.length = 0.0  # type: ignore[assignment, method-assign]
    _run_command(args)


def not_warmed_up(*args: str) -> None:
    """The command line of bide, which claims jobs when they are due, and sends no PING before."""
    loop._SILENCE = float("inf")  # type: ignore[misc]
    when_due(*args)


def not_watched(*args: str) -> None:
    """The command line of bide, which sleeps until a job is due."""
    base.SPIN = 0.0  # type: ignore[misc]
    _run_command(args)


def one_reading(*args: str) -> None:
    """The command line of bide, which counts from the time that the claim read."""
    submit = Executor.submit

    def submit_as_read(
        self: Executor, queue_state: QueueState, reply: Claim, sent: float, arrived: float
    ) -> None:
        submit(self, queue_state, reply._replace(read_us=0), sent, arrived)

    Executor.submit = submit_as_read  # type: ignore[method-assign]
    _run_command(args)


def _run_command(args: tuple[str, ...]) -> None:
    sys.argv = ["bide", *args]
    bide_command()


def produce(url: str, start_ns: str, task: str) -> None:
    """Enqueue jobs at the moments that are told, in nanoseconds from the start."""
    queue = Queue(QUEUE, url=url)
    queue.counts()  # connects
    function = getattr(tasks, task)
    moments = []
    for line in iter(sys.stdin.readline, "end\n"):
        moments.append(int(start_ns) + int(line))
    for number, at_ns in enumerate(moments):
        time.sleep(max(0, at_ns - time.time_ns()) / 1e9)
        queue.enqueue(function, number, delay=f"{round(DELAY_S * 1e6)}us")
    print("{}")


def proxy(port: str) -> None:
    """Pass on all bytes `FAR_S` later; print the port."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(65536):
            loop.call_later(FAR_S, writer.write, data)
        loop.call_later(FAR_S, writer.close)

    async def serve() -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", int(port))
            await asyncio.gather(pump(reader, back), pump(there, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(serve())
