"""What Python takes for a job when the server costs nothing: its replies are made here.

Bide's own clients run; what they would send is answered instead of sent. So the client library, the
sockets and the server are left out, and all that bide does is in. Roles of `child`, which tell what
a job took.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import hiredis

from benchmarks import tasks
from benchmarks.lab import QUEUE
from bide import Queue, Worker
from bide.client import aio, blocking
from bide.client.blocking import Connections
from bide.client.execute import Call
from bide.client.topology import NodeRequest
from bide.model.ids import new_id
from bide.model.payload.body import decode_envelope
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from bide.protocol.scripts import load
from bide.worker.supervisor import report

_SETTLE = load("settle").sha
_TIME = load("server_time").sha
_OURS = ((_SETTLE,), (_TIME,), (load("claim").sha,))
_MANY = 500


def work(url: str, jobs: str, concurrency: str, counts: str = "") -> None:
    """Run jobs that no server knows; the server is asked only for what else a worker needs.

    With `counts` the worker counts its metrics, and reports them every second.
    """
    queue = Queue(QUEUE, url=url)
    ids = [new_id() for _ in range(int(jobs))]
    first = cpu = 0.0
    body = queue.prepare(tasks.nothing, (0,)).body
    visit = aio.AsyncClient._visit

    async def answered(self: aio.AsyncClient, trip: NodeRequest, *rest: Any) -> Any:
        nonlocal first, cpu
        is_other = self.url != queue.url  # another worker of this process
        if is_other or not all(call[1:2] in _OURS for call in trip.calls):
            return await visit(self, trip, *rest)
        await asyncio.sleep(0)  # as when it waits for a reply
        if not first:
            first, cpu = time.perf_counter(), time.process_time()
        replies: list[Any] = []
        for call in trip.calls:
            if call[1] == _SETTLE:
                settled = call[3 + call[2] :]
                settled = settled[: len(settled) // 5 * 5]  # how late jobs were may stand behind
                # What waited too long for a slot is released, and claimed again.
                released = [i for i in range(0, len(settled), 5) if settled[i + 2] == "release"]
                ids.extend(settled[i] for i in released)
                replies.append([b"ok", 0, *[b"ok"] * (len(settled) // 5)])
            elif call[1] == _TIME:
                replies.append([b"ok", time.time_ns() // 1000])
            else:
                count = call[-7]
                taken = ids[:count]
                del ids[:count]
                replies.append(_claimed(taken, body, more=bool(ids)))
        self.answered = time.monotonic()
        return replies

    aio.AsyncClient._visit = answered  # type: ignore[method-assign, assignment]
    worker = Worker([queue], modules=[tasks.__name__], concurrency=int(concurrency))
    worker.metrics = {} if counts else None
    ours, supervisors = socket.socketpair()
    with ours, supervisors:
        executed = worker.run(True, beside=lambda: report(worker, ours))
    wall, cpu = time.perf_counter() - first, time.process_time() - cpu
    if executed != int(jobs):
        raise RuntimeError(f"the worker ran {executed} of {jobs} jobs")
    print(json.dumps({"wall µs": wall * 1e6 / executed, "CPU µs": cpu * 1e6 / executed}))


def add(url: str, jobs: str) -> None:
    """Enqueue jobs, one by one and many at once, that reach no server."""

    def answered(self: blocking.Client, trip: NodeRequest, *rest: Any) -> Any:
        counts = [(len(call) - 3 - call[2]) // 4 for call in trip.calls]
        return [[b"ok", 0, *[1] * count] for count in counts]

    def exchanged(
        self: Connections, calls: Sequence[Call], behind: Any = None, *, pauses: bool = False
    ) -> Iterator[Any]:
        if pauses:
            yield "a connection"
        counts = [(len(call) - 3 - call[2]) // 4 for call in calls]
        yield [[b"ok", 0, *[1] * count] for count in counts]

    queue = Queue(QUEUE, url=url)
    queue.enqueue(tasks.nothing, delay=3600)  # makes the queue known
    blocking.Client._talk = answered  # type: ignore[method-assign, assignment]
    Connections.exchange = exchanged  # type: ignore[method-assign, assignment]
    count = int(jobs)
    one = _timed(count, lambda: _one_by_one(queue, count))
    many = _timed(10 * count, lambda: _many(queue, 10 * count))
    print(json.dumps({"one": one, "many": many}))


def stages(url: str, jobs: str) -> None:
    """The stages that can be run by themselves, µs per job."""
    count = int(jobs)
    queue = Queue(QUEUE, url=url)
    keys = keys_of(QUEUE)
    prepared = [queue.prepare(tasks.nothing, (n,), delay=3600) for n in range(100)]
    body = prepared[0].body
    ids = [job.id for job in prepared]
    claim = worker_commands.claim(keys, "worker-0123456789", 1, 100, 60_000_000, 100)
    settles = [Settle(id, 1_800_000_000_000_000, "complete") for id in ids]
    enqueue = enqueue_commands.enqueue(keys, prepared[:1])
    claimed = _claimed(ids, body, more=True)
    told: dict[str, Callable[[], object]] = {
        "prepare: id, options, encoding": partial(queue.prepare, tasks.nothing, (0,), delay=3600),
        "write one enqueue": partial(pack, enqueue),
        "decode a body": partial(decode_envelope, body),
    }
    found = {what: _each(do, count) for what, do in told.items()}
    by_hundred: dict[str, Callable[[], object]] = {
        "write claim and settle, 100 jobs": lambda: (pack(claim), _pack_settle(settles)),
        "read a claim's reply, 100 jobs": partial(_read, _resp(claimed), claim.parse),
    }
    for what, do in by_hundred.items():
        found[what] = _each(do, count // 100) / 100
    found["a task of the event loop"] = asyncio.run(_bare_tasks(count))
    print(json.dumps(found))


def _claimed(ids: list[str], body: bytes, more: bool) -> list[Any]:
    now = time.time_ns() // 1000
    until = 0 if more else now + 60_000_000
    reply: list[Any] = [b"ok", now, until, 0, int(more), 0, 0, 0, 0, 0, 0]
    for id in ids:
        reply += (id.encode(), body, now, 1, now)
    return reply


def _one_by_one(queue: Queue, count: int) -> None:
    for number in range(count):
        queue.enqueue(tasks.nothing, number, delay=3600)


def _many(queue: Queue, count: int) -> None:
    for i in range(0, count, _MANY):
        batch = range(i, i + _MANY)
        queue.enqueue_many(queue.prepare(tasks.nothing, (n,), delay=3600) for n in batch)


def _timed(count: int, do: Callable[[], None]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    do()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall µs": wall * 1e6 / count, "CPU µs": cpu * 1e6 / count}


def _each(do: Callable[[], object], count: int) -> float:
    cpu = time.process_time()
    for _ in range(count):
        do()
    return (time.process_time() - cpu) * 1e6 / count


def pack(command: Any) -> bytes:
    sha = load(command.script).sha
    call = ("EVALSHA", sha, len(command.keys), *command.keys, *command.args)
    packed: bytes = hiredis.pack_command(call)
    return packed


def _pack_settle(settles: list[Settle]) -> bytes:
    return pack(worker_commands.settle(keys_of(QUEUE), settles))


def _resp(value: Any) -> bytes:
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(_resp, value))
    if isinstance(value, int):
        return b":%d\r\n" % value
    return b"$%d\r\n%s\r\n" % (len(value), value)


def _read(reply: bytes, parse: Callable[[Any], Any]) -> Any:
    reader = hiredis.Reader()
    reader.feed(reply)
    return parse(reader.gets())


async def _bare_tasks(count: int) -> float:
    loop = asyncio.get_running_loop()
    cpu = time.process_time()
    for _ in range(count // 100):
        await asyncio.wait([loop.create_task(tasks.nothing()) for _ in range(100)])
    return (time.process_time() - cpu) * 1e6 / count
