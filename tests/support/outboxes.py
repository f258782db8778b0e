"""Helpers for the tests of outboxes, whichever library has the database.

`books_of_kills` repeats a scene of an order desk. In each repeat one process, the producer, a relay
or a worker, kills itself one step later than in the repeat before: before or after a statement, a
commit, or a round trip to the server. Then two relays and two workers finish the work, and the
books must balance. All processes are forked, and the first one has no connections that they could
inherit.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import redis

from bide import Worker
from bide.client import blocking
from bide.contrib.outbox import sending
from bide.contrib.outbox.sending import Sender, Sent, Written
from bide.model.context import CurrentJob, within
from bide.model.job import Claimed
from bide.protocol import scripts
from bide.protocol.keys import PREFIX
from bide.worker.relay import OutboxLike

ROOT = Path(__file__).parents[2]

LEASE = "500ms"


@contextmanager
def run_of(id: str, token: int, prefix: str = PREFIX) -> Iterator[None]:
    """As if this were a run of a job."""
    mute: Any = SimpleNamespace(prefix=prefix)  # `once` reads no more than who the job is
    claimed = Claimed(id, b"", token, 1, 0, 0, 0)
    with within(CurrentJob("orders", "worker", "charge", claimed, mute)):
        yield


class Held(Sender):
    """A sender that stops between the claim and the sending."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reached = threading.Event()
        self.released = threading.Event()

    def send(self, rows: Sequence[Written]) -> Sent:
        self.reached.set()
        assert self.released.wait(30)
        return super().send(rows)


@contextmanager
def relaying(outbox: OutboxLike, relay: Callable[..., Any] | None = None) -> Iterator[None]:
    """A relay in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=relay or outbox.relay, kwargs={"stop": stop})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


# -- kills


class Desk(Protocol):
    """An order desk, in one of its processes."""

    outbox: Any
    queue: Any

    def clear(self) -> None:
        """Empty the database."""

    def books(self) -> list[Any]:
        """The order's state, its jobs, its parcels, and what the outbox has left."""

    def produce(self) -> None:
        """Place an order, and pay it."""


MakeDesk = Callable[[str, str, int], Desk]
"""From a database, the server's URL, and the step at which the process kills itself, or 0."""


def work(desk: Desk) -> None:
    Worker(queues=[desk.queue], lease=LEASE, name=f"worker-{os.getpid()}").run(burst=True)


def die_at(number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Kill this process at a step: a round trip to the server has two, before it and after it.

    Returns:
        A decorator of other functions that have two steps.
    """
    left = number

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            step()
            result = call(*args, **kwargs)
            step()
            return result

        return stepped

    exchange: Any = blocking.Connections.exchange

    def exchanged(*args: Any, **kwargs: Any) -> Any:
        step()
        for reply in exchange(*args, **kwargs):
            step()
            yield reply

    connections: Any = blocking.Connections
    connections.exchange = exchanged
    return around


def forked(call: Callable[[], Any]) -> Callable[[], Any]:
    """Run a call in another process; return what waits for its result, None if it was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            os.write(writer, json.dumps([call()]).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)

    def wait() -> Any:
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        assert status in (0, signal.SIGKILL), status
        return json.loads(text)[0] if text else None

    return wait


BALANCED = {
    "nothing": [None, None, None, 0, 0],
    "placed": ["open", "delayed", "completed", 1, 0],
    "paid": ["paid", "cancelled", "completed", 1, 0],
}


def _finish(desk: Callable[[], Desk]) -> None:
    """Have two relays and two workers finish what a process has left."""
    balanced = [*BALANCED.values()]
    for wait in [forked(lambda: desk().outbox.relay(burst=True)) for _ in range(2)]:
        wait()
    until = time.monotonic() + 90
    while time.monotonic() < until and forked(lambda: desk().books())() not in balanced:
        for wait in [forked(lambda: work(desk())) for _ in range(2)]:
            wait()
        time.sleep(0.1)  # the lease of the killed worker


def _scene(actor: str, make: Callable[[int], Desk], url: str) -> Callable[[int], bool]:
    def cleared() -> bool:
        with redis.Redis.from_url(url) as direct:
            direct.flushall()
        make(0).clear()
        return True

    def produce(fast: bool) -> bool:
        desk = make(0)
        desk.outbox.fast = fast
        desk.produce()
        return True

    def play(dies_at: int) -> bool:
        """Return whether the actor lived to its end."""
        assert forked(cleared)()

        def act() -> bool:
            desk = make(dies_at)
            if actor == "producer":
                desk.produce()
            elif actor == "relay":
                desk.outbox.relay(burst=True)
            else:
                work(desk)
            return True

        if actor != "producer":
            assert forked(lambda: produce(fast=actor == "worker"))()
        return bool(forked(act)())

    return play


PARTS = 3


def books_of_kills(
    make: MakeDesk, actor: str, database: str, url: str, part: str
) -> list[list[Any]]:
    """Kill an actor at every third of its steps; return the books after each, and without one.

    `part` is 1, 2 or 3: together they are all steps.
    """
    # Done once, not in each of some hundred processes: the assembly of the scripts, and what the
    # garbage collection at a worker's start looks at.
    for name in scripts.names():
        scripts.load(name)
    gc.freeze()
    found = []
    play = _scene(actor, lambda dies_at: make(database, url, dies_at), url)
    for dies_at in range(int(part), 200, PARTS):
        lived = play(dies_at)
        _finish(lambda: make(database, url, 0))
        found.append(forked(lambda: make(database, url, 0).books())())
        if lived:
            return found
    raise AssertionError("the actor never ends")


def print_books_of_kills(make: MakeDesk) -> None:
    """The program that `assert_balanced` starts."""
    patient: Any = sending
    patient.REPLY_TIMEOUT = 60.0  # a busy machine may need more than the usual second
    actor, database, url, part = sys.argv[1:]
    for kept in books_of_kills(make, actor, database, url, part):
        print(json.dumps(kept))


def assert_balanced(
    program: str,
    actor: str,
    ends: tuple[str, ...],
    steps: int,
    part: int,
    database: str,
    url: str,
) -> None:
    """Kill an actor of a program at its steps: the books have one of the ends, and reach each."""
    done = subprocess.run(
        [sys.executable, "-m", program, actor, database, url, f"{part}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) * PARTS > steps, (
        "each statement, each commit and each round trip has two steps"
    )
    allowed = [BALANCED[name] for name in ends]
    assert [kept for kept in found if kept not in allowed] == []
    seen = [name for name in ends if BALANCED[name] in found]
    assert seen == [*ends], "the kills reached each of the ends"
