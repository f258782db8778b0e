"""Measures what shortcuts save: code that exists only to save time, and the same work without it.

Both run in one process, in turn and in changing order. A figure is the median over the rounds of
the CPU time of the process; `less, %` is the median of the rounds' ratios, so a slower machine in
some rounds does not matter. Cached functions are replaced by the function below their cache.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from statistics import median
from types import TracebackType
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks import tasks
from benchmarks.alone import pack
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Report, Row, Rows
from bide import Queue, Retry
from bide.client.coalesce import Coalescer, _Caller
from bide.model import ids, retry
from bide.model.payload import body, convert
from bide.model.payload.body import decode_body, encode_error
from bide.model.payload.signature import Signature
from bide.protocol import commands
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.keys import keys_of
from bide.queue.batches import Batches
from bide.tasks import registry, task
from bide.worker.executors.local import Deadlines
from bide.worker.lifespan import new_event_loop

QUICK_ROUNDS, ROUNDS = 15, 61
FEWEST_S = 0.02
"""CPU seconds of one measurement: large beside the clock's resolution and a cache's first miss."""
JOBS, MANY = 100, 5_000


class Shortcut(NamedTuple):
    """Work, and how it is done without the shortcut."""

    name: str
    work: Callable[[], object]
    without: Callable[[], AbstractContextManager[object]] = nullcontext
    """Takes the shortcut away while the same work is measured."""
    other: Callable[[], object] | None = None
    """The work without the shortcut, if it is other code."""
    jobs: int = 1
    """How many jobs one call of `work` is for."""


def run(lab: Lab) -> list[Report]:
    """Measure each with and without, in turn."""
    rounds = QUICK_ROUNDS if lab.quick else ROUNDS
    queue = Queue(QUEUE, url=lab.server.url)
    rows: Rows = {}
    for shortcut in chain(_of_values(queue), _of_loops()):
        rows[shortcut.name] = _compare(shortcut, rounds)
    rows["batches drawn ahead: add a job (wall time)"] = _drawing(queue, rounds)
    note = "CPU µs of a job, medians; less: what the shortcut saves, median of the rounds' ratios"
    return [Report("What shortcuts save", rows, "shortcut", note)]


def _compare(shortcut: Shortcut, rounds: int) -> Row:
    times = 1
    while _cpu_s(shortcut.work, times) < FEWEST_S:
        times *= 2
    ways = {
        "with": (nullcontext, shortcut.work),
        "without": (shortcut.without, shortcut.other or shortcut.work),
    }
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        took = {}
        for way in sorted(ways, reverse=bool(number % 2)):
            around, work = ways[way]
            with around():
                work()
                took[way] = _cpu_s(work, times) * 1e6 / times / shortcut.jobs
        found.append((took["with"], took["without"]))
    return _row(found)


def _row(found: Sequence[tuple[float, float]]) -> Row:
    return {
        "with": median(with_it for with_it, _ in found),
        "without": median(without for _, without in found),
        "less, %": median((1 - with_it / without) * 100 for with_it, without in found),
        "rounds": len(found),
    }


def _cpu_s(work: Callable[[], object], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - begun


def _uncached(*places: tuple[Any, str]) -> Callable[[], AbstractContextManager[object]]:
    """Replace cached functions by what is below their caches."""

    @contextmanager
    def without() -> Iterator[None]:
        with ExitStack() as stack:
            for module, name in places:
                below = getattr(module, name).__wrapped__
                stack.enter_context(patch.object(module, name, below))
            yield

    return without


# ----------------------------------------------------------------------------- bodies, ids, keys


def _typed(number: int, name: str, at: float) -> None:
    """A task whose arguments are plain, as most are."""


def _of_values(queue: Queue) -> Iterator[Shortcut]:
    keys = keys_of(QUEUE)
    with_policy = queue.prepare(tasks.nothing, (0,), retry=Retry(5, base=2.0)).body
    plain, converted = Signature.of(_typed), Signature.of(_typed)
    plain.compile()
    with patch.object(convert, "_scalar", convert._native):
        converted.compile()
    prepare = partial(queue.prepare, tasks.nothing, (0,), delay=3600)
    error = _raised()
    yield Shortcut(
        "text of frames cached: write a job's error",
        partial(encode_error, error),
        lambda: patch.object(body, "_frame", _formatted),
    )
    yield Shortcut(
        "retry policies cached: read a body with one",
        partial(decode_body, with_policy),
        _uncached((retry, "_from_wire")),
    )
    yield Shortcut(
        "plain values not converted: three arguments",
        partial(plain.bind, (1, "a", 0.5), {}, "task"),
        other=partial(converted.bind, (1, "a", 0.5), {}, "task"),
    )
    yield Shortcut(
        "tasks looked up once: prepare a job",
        prepare,
        _uncached(
            (task, "_kept"),
            (task, "_signature"),
            (registry, "_checked_name"),
            (registry, "_name_of_function"),
        ),
    )
    yield Shortcut(
        "random parts of 128 ids drawn at once: prepare a job",
        prepare,
        lambda: patch.object(ids, "_DRAW_AHEAD", 1),
    )
    one = [prepare()]

    def packed(*, with_all_keys: bool = False) -> object:
        return pack(enqueue_commands.enqueue(keys, one, with_all_keys=with_all_keys))

    yield Shortcut(
        "keys of a script cached: make and pack an enqueue",
        packed,
        _uncached((commands, "_keys_for"), (enqueue_commands, "_few_keys")),
    )
    yield Shortcut(
        "few keys for a single job: make and pack an enqueue",
        packed,
        other=partial(packed, with_all_keys=True),
    )


def _formatted(at: TracebackType) -> str:
    return "".join(traceback.format_tb(at, limit=1))


def _raised(depth: int = 3) -> BaseException:
    """An error with four frames."""
    try:
        if depth:
            raise _raised(depth - 1)
        raise ConnectionError("the service is down")
    except ConnectionError as error:
        return error


# ----------------------------------------------------------------------------- event loops


class _PlainCoalescer(Coalescer[int, int]):
    """Serves a single caller as it serves many: by a task of its own."""

    async def run(self, request: int) -> int:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()
        self._waiting.append(_Caller(request, answer))
        if not self._busy:
            self._busy = True
            await asyncio.sleep(0)
            self._go_on(loop)
        return await answer


class _Entry:
    """A job whose time-out is watched."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.ended = False


def _of_loops() -> Iterator[Shortcut]:
    """Those of event loops, each for 100 jobs."""
    loop = new_event_loop()
    runner = asyncio.Runner(loop_factory=new_event_loop)

    async def answered(requests: list[int]) -> list[int]:
        await asyncio.sleep(0)  # as when it waits for a reply
        return requests

    async def call(make: Callable[..., Coalescer[int, int]]) -> None:
        one = make(answered)
        for number in range(JOBS):
            await one.run(number)

    yield Shortcut(
        "no task for a single caller: an awaited call",
        lambda: loop.run_until_complete(call(Coalescer)),
        other=lambda: loop.run_until_complete(call(_PlainCoalescer)),
        jobs=JOBS,
    )
    deadlines: Deadlines[_Entry] = Deadlines(loop, lambda _entry: None)

    def watch_together() -> None:
        entries = [_Entry(loop.time() + 300) for _ in range(JOBS)]
        for entry in entries:
            deadlines.add(entry)
        for entry in entries:
            entry.ended = True

    def watch_each() -> None:
        timers = [loop.call_at(loop.time() + 300, lambda: None) for _ in range(JOBS)]
        for timer in timers:
            timer.cancel()

    yield Shortcut(
        "one timer for all time-outs: watch a job",
        watch_together,
        other=watch_each,
        jobs=JOBS,
    )

    def run_each() -> None:
        for _ in range(JOBS):
            loop.run_until_complete(loop.create_task(tasks.nothing()))

    def run_by_runner() -> None:
        for _ in range(JOBS):
            runner.run(tasks.nothing())

    yield Shortcut(
        "no asyncio.Runner in a child: run an empty job",
        run_each,
        other=run_by_runner,
        jobs=JOBS,
    )
    runner.close()
    loop.close()


def _drawing(queue: Queue, rounds: int) -> Row:
    """The next batch of an iterator is drawn while the server works."""

    def wall_us() -> float:
        begun = time.perf_counter()
        queue.enqueue_many(queue.prepare(tasks.nothing, (n,), delay=3600) for n in range(MANY))
        took = (time.perf_counter() - begun) * 1e6 / MANY
        queue.purge()
        return took

    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        with_it = wall_us()
        with patch.object(Batches, "look_ahead", lambda self: None):
            found.append((with_it, wall_us()))
    return _row(found)
