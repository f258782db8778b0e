"""A server, workers as real processes, a load, and one kind of fault, injected on schedule.

    with Scene(fault, home, seed) as scene:
        verdict = scene.play()

A worker that has died is started again, as a supervisor would do.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import redis

from bide import Queue
from bide.worker.processes import linux
from tests.chaos.books import Account, Books, Happened, missed_in, starvations
from tests.chaos.fault import Fault, Role
from tests.chaos.jobs import QUEUE
from tests.chaos.load import Given, Load, now_us
from tests.chaos.plan import Injection, dice, schedule
from tests.chaos.server_setup import ServerSetup
from tests.support.cpu_waits import waited_us
from tests.support.eventually import eventually
from tests.support.invariants import Holding, assert_legal, hold
from tests.support.ledger import Ledger
from tests.support.nodes import ERRORS
from tests.support.worker_pool import WorkerPool, WorkerProcess

MODULE = "tests.chaos.jobs"
DRAIN = 10.0
"""Seconds that a queue may take to drain after the last fault, beyond a lease and the back-off."""
LOAD = 600.0
"""Seconds after which a load that is not yet through has stopped."""


@dataclass
class Verdict:
    """What one fault did, and whether everything held."""

    fault: str
    seed: int
    injections: int
    account: Account
    longest_us: int
    """The longest run of a script; 0 where none took `SLOW_US`."""
    longest: str
    seconds: float
    told: dict[str, int] = field(default_factory=dict)
    """What else is worth telling: errors that the producer was told, and what a fault counted."""

    @property
    def holds(self) -> bool:
        return not self.account.findings


class Scene:
    """Everything that one fault needs."""

    def __init__(
        self,
        fault: Fault,
        home: Path,
        seed: int,
        scale: float = 1.0,
        binary: str | None = None,
    ) -> None:
        """Set up; nothing starts before the `with` block.

        Args:
            fault: what goes wrong.
            home: an empty directory.
            seed: of the schedule and of the jobs.
            scale: how many times as many jobs and injections as usual.
            binary: the server's program.
        """
        self.fault = fault
        self.home = home
        self.seed = seed
        self.binary = binary
        self.dice = dice(seed, fault.name, "jobs")
        self.jobs = max(20, round(fault.jobs * scale))
        self.plan = schedule(
            seed, fault.name, self.jobs, max(1, round(fault.injections * scale)), fault.draw
        )
        self.happened: list[Happened] = []
        self.told: dict[str, int] = {}
        self.serving: list[tuple[Role, WorkerProcess]] = []
        self.quiet = threading.Event()
        """While it is set the producer hands in nothing."""
        self._stack = ExitStack()
        self._counted = (0, 0)

    def __enter__(self) -> Self:
        home = self.home
        home.mkdir(exist_ok=True)
        enter = self._stack.enter_context
        try:
            self.setup = ServerSetup(self.fault, home, self.binary, self._stack)
            self.queue = Queue(QUEUE, url=self.setup.url)
            self._stack.callback(self.queue.close)
            (home / "workers").mkdir()
            self.worker_pool = enter(WorkerPool(home / "workers"))
            self.worker_pool.beside.append(lambda: [server.pid for server in self.setup.servers])
            if self.fault.proxied:
                # The proxy is a thread of this process.
                self.worker_pool.beside.append(lambda: [os.getpid()])
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    @property
    def direct(self) -> redis.Redis:
        """The server that has the queue now, past the proxy."""
        return self.setup.direct

    @property
    def ledger(self) -> Ledger:
        return self.worker_pool.ledger

    # -- workers

    def start(self, role: Role) -> WorkerProcess:
        """Start a worker; does not wait for it to serve."""
        options = ["-q", QUEUE, "--lease", f"{self.fault.lease:g}s", *role.options]
        worker = self.worker_pool.worker(
            self.setup.url, MODULE, *options, skew=role.skew, program=self.fault.program
        )
        self.serving.append((role, worker))
        return worker

    def start_all(self) -> None:
        """Start the worker_pool, and wait until each serves."""
        for role in self.fault.roles:
            self.start(role)
        for _, worker in self.serving:
            worker.says(" serves ")

    def replace_the_dead(self) -> None:
        """Start again who has ended."""
        for pair in list(self.serving):
            if pair[1].ended:
                self.serving.remove(pair)
                self.start(pair[0])

    def victim(self, number: float) -> WorkerProcess:
        """One of those that serve.

        One that found no server when it started has ended, and is started again until it finds it.
        """

        def serves() -> WorkerProcess | None:
            self.replace_the_dead()
            worker = self.serving[int(number) % len(self.serving)][1]
            return worker if " serves " in worker.log else None

        worker = eventually(serves)
        assert worker is not None
        return worker

    # -- faults

    def hit(self, workers: Sequence[WorkerProcess] | None = None, excuses: bool = True) -> Happened:
        """Note a fault that begins now and is over now; `until` says otherwise."""
        names = None if workers is None else frozenset(worker.name for worker in workers)
        now = now_us()
        self.happened.append(Happened(now, now, names, excuses))
        return self.happened[-1]

    def over(self, happened: Happened) -> None:
        """Note that a fault has ended now."""
        self.happened[self.happened.index(happened)] = happened._replace(until_us=now_us())

    def last(self, seconds: float) -> None:
        """Let a fault last; meanwhile who dies is replaced."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.replace_the_dead()
            time.sleep(min(0.05, left))

    def count(self, what: str, by: int = 1) -> None:
        """Count something for the report."""
        self.told[what] = self.told.get(what, 0) + by

    def enter(self, context: AbstractContextManager[object]) -> None:
        """Be in this context until the end of the scene."""
        self._stack.enter_context(context)

    def due(self) -> dict[str, int]:
        """When everything is due that waits, by the server's clock."""
        return hold(self.direct, QUEUE).due

    def begun(self) -> int:
        """How many runs have begun."""
        at, count = self._counted
        with self.ledger.path.open("rb") as file:
            file.seek(at)
            whole, newline, _ = file.read().rpartition(b"\n")
        count += whole.count(b'"what": "begun"')
        self._counted = (at + len(whole) + len(newline), count)
        return count

    def also(self, *jobs: Given, asked_us: int = 0) -> None:
        """Hand in jobs that belong to a fault; `asked_us`: when others have tried to."""
        self.load.hand_in(jobs, asked_us)

    # -- the play

    def play(self) -> Verdict:
        """Run the load with its faults, let it drain, and check the books."""
        started = time.monotonic()
        fault = self.fault
        fault.set_up(self)
        self.start_all()
        self.load: Load = fault.producer(self, list(fault.load(self, self.jobs)))
        before = self._holdings_of_workers()
        self.load.start()
        for injection in self.plan:
            self._await(injection)
            fault.inject(self, injection)
            self.replace_the_dead()
        self._await_load()
        fault.heal(self)
        last_us = now_us()
        holding = self._drained()
        took = (now_us() - last_us) / 1e6
        self.setup.look_at_scripts()
        missed = [one for w in self.worker_pool.workers for one in missed_in(w.name, w.log)]
        waits = starvations(self.worker_pool.witness.looks, fault.lease, missed)
        books = Books(
            self.load.jobs,
            self.load.asked,
            self.ledger.lines(),
            holding,
            [*self.happened, *fault.also_happened(self), *waits],
            fault.real_clock,
        )
        account = books.account()
        if account.starved:
            self.count("runs again for want of a processor", account.starved)
        if not fault.recovers:
            account.recoveries.clear()
        account.findings += self._illegal()
        account.findings += fault.check(self, books)
        if not fault.leases_end:
            account.findings += self._taken(holding, waits)
        self.told["drained after ms"] = round(took * 1000)
        account.findings += self._left_by_the_living(before)
        account.findings += self._stopped()
        for kind, count in self.load.refusals.items():
            self.count(f"enqueue raised {kind}", count)
        return Verdict(
            fault.name,
            self.seed,
            len(self.plan),
            account,
            *self.setup.longest,
            seconds=time.monotonic() - started,
            told=self.told,
        )

    def _await(self, injection: Injection) -> None:
        def reached() -> bool:
            self.replace_the_dead()
            self._fail_with_the_load()
            return self.begun() >= injection.after

        eventually(reached, LOAD)

    def _await_load(self) -> None:
        def handed_in() -> bool:
            self.replace_the_dead()
            self._fail_with_the_load()
            return not self.load.is_alive()

        eventually(handed_in, LOAD)

    def _fail_with_the_load(self) -> None:
        if self.load.failure is not None:
            raise self.load.failure

    def _drained(self) -> Holding:
        """8: everything ends within a lease, the back-off and ten seconds of the last fault.

        Time that a busy machine kept from a worker and its server does not count. What has not
        ended by then is found where the books are checked.
        """
        limit_us = (self.fault.lease + self.fault.back_off + DRAIN) * 1e6
        since_us = now_us()

        def is_over() -> bool:
            self.replace_the_dead()
            now = now_us()
            if now - since_us - waited_us(self.worker_pool.witness.looks, since_us, now) > limit_us:
                return True
            try:
                return self.fault.is_drained(self)
            except ERRORS:  # the one that had it is not yet followed by another
                return False

        eventually(is_over, LOAD)
        return hold(self.direct, QUEUE)

    def _taken(self, holding: Holding, waits: Sequence[Happened]) -> Iterator[str]:
        """No job was taken from its worker, and no worker was told so.

        But for workers that had no processor. The server counts the leases of all together.
        """
        if not waits and (ended := holding.total("reclaimed")):
            yield f"{ended} leases ended, and nobody had died"
        starved = frozenset().union(*(wait.workers or () for wait in waits))
        for worker in self.worker_pool.workers:
            if worker.name not in starved and (refused := worker.log.count("was refused")):
                yield f"{worker.name} was refused {refused} outcomes"

    def _illegal(self) -> list[str]:
        """7: sets and hashes agree, and there is no key that the documentation does not name."""
        try:
            assert_legal(self.direct, QUEUE, unreadable=self.fault.unreadable)
        except AssertionError as error:
            return [str(error)]
        return []

    # -- what is left behind

    def _holdings_of_workers(self) -> dict[int, int]:
        return {worker.pid: _descriptors(worker.pid) for _, worker in self.serving}

    def _left_by_the_living(self, before: dict[int, int]) -> list[str]:
        """9: the workers that went through all of it hold little more than at their beginning."""

        def more(pid: int) -> int:
            return _descriptors(pid) - before[pid]

        found = []
        for _, worker in self.serving:
            if worker.pid in before and not worker.ended:
                try:
                    eventually(lambda pid=worker.pid: more(pid) <= self.fault.descriptors)  # type: ignore[misc]
                except AssertionError:
                    text = f"{worker.name} holds {more(worker.pid)} descriptors more than before"
                    found.append(text)
        return found

    def _stopped(self) -> list[str]:
        """9: all workers stop when they are told to, and leave no process behind."""
        found = []
        for i in range(len(self.serving)):
            self.victim(i)
        for _, worker in self.serving:
            worker.terminate()
        for _, worker in self.serving:
            if (code := worker.wait()) != 0:
                found.append(f"{worker.name} ended with {code}")
        found += [
            f"{worker.name} has left threads behind"
            for worker in self.worker_pool.workers
            if "threads still run" in worker.log
        ]
        marks = [f"{linux.MARK}={worker.pid}-".encode() for worker in self.worker_pool.workers]
        try:
            eventually(lambda: not _marked(marks))
        except AssertionError:
            found.append(f"processes are left behind: {_marked(marks)}")
        return found


def _descriptors(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def _marked(marks: Sequence[bytes]) -> list[int]:
    found = []
    for pid in linux._all():
        with suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            if any(mark in environ for mark in marks):
                found.append(pid)
    return found
