"""The nursery: a clean process, of one thread and no connections, that forks children.

It is started afresh, imports what is served once, and from then on only forks, reaps and reports.
A child that has had its jobs is replaced as soon as nothing is left to it but to end, which takes
the system as long as a short job takes Python; after one that died, the worker says when. With one
job a child, those that come next are forked while others run (`spare`). When the worker is gone,
the line to it ends, and everything here is killed: children, what they started, and what that left
behind, for orphans of theirs become children of the nursery.

So no job waits for a fork. The child waits at a pipe of its own, from which it reads its slot.

What runs for the first time looks up attributes class by class, makes caches, and has memory made
its own. A child that runs one job does all of that for the first time, and has to copy a page of
the nursery's for most of it. What the nursery has gone through itself, its children find done.

It happens before anything of the users' is imported: nothing of theirs surrounds it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from typing import Final, NamedTuple

from bide import logs
from bide.client import config
from bide.errors import BideError, TaskNotFound
from bide.logs import Log
from bide.model.ids import new_id
from bide.model.job import Claimed
from bide.model.payload.body import Body, encode_body
from bide.tasks.task import TaskRegistry, import_module
from bide.worker import lifespan
from bide.worker.metrics import set_title
from bide.worker.processes import linux
from bide.worker.processes.child import RETIRED, Child, flush, run_child, set_up
from bide.worker.processes.ipc import (
    PID,
    Assign,
    Exited,
    News,
    Reader,
    Setting,
    Spawned,
    SpawnFailed,
    decode_setting,
    decode_spawn,
    encode,
    pair,
    send,
)
from bide.worker.processes.job_table import JobTable
from bide.worker.processes.linux import use_huge_pages


class PreforkedChild(NamedTuple):
    """A child that waits, as the nursery sees it."""

    pid: int
    gate: int
    """Where it is told its slot: the end to write to."""

    def begin(self, slot: int) -> None:
        """Tell it its slot; one that has died meanwhile is reaped like any other."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.gate, slot.to_bytes(4))
        os.close(self.gate)


def fork() -> tuple[int, int]:
    """Fork a child that is to wait: its number, and where to tell it its slot.

    In the child, the number is 0, and it can be told there.

    Raises:
        OSError: no process is to be had.
    """
    outlet, gate = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(outlet)
        os.close(gate)
        raise
    mine, other = (gate, outlet) if pid else (outlet, gate)
    os.close(other)
    return pid, mine


def wait_for_start(gate: int) -> int:
    """Wait for a slot; without a nursery there will be none, and this process ends."""
    told = os.read(gate, 4)
    os.close(gate)
    if not told:
        os._exit(0)
    return int.from_bytes(told)


TIMES: Final = 12
"""Until Python has seen enough of it."""


def nothing(number: int) -> None:
    """What is rehearsed."""


def warm_up(setting: Setting) -> None:
    """Run a job that does nothing, here."""
    body = encode_body(Body(f"{__name__}:{nothing.__name__}", [1]))
    fd = JobTable.create(1)
    row = JobTable(fd).row(0)
    os.close(fd)
    for number in range(1, TIMES + 1):
        (orders, orders_in), (replies, replies_in) = pair(), pair()
        with orders, orders_in, replies, replies_in:
            child = Child(
                orders, replies_in, replies_in.fileno(), TaskRegistry([__name__]), setting
            )
            claimed = Claimed(new_id(), body, 1, 1, 0, 1, 1)
            send(orders_in, encode(Assign(number, "rehearsal", claimed, time.monotonic())))
            child.live(0, row)


log = Log("bide.worker")

SWEEP_AFTER: Final = 0.5
"""Seconds after a child's death in which what it left behind is looked for."""


class ForkServer:
    """Forks, reaps and reports."""

    def __init__(
        self,
        setting: Setting,
        control: socket.socket,
        orders: socket.socket,
        replies: socket.socket,
        table: int,
    ) -> None:
        self._control = control
        self._table = JobTable(table)
        self._slots: dict[int, int] = {}
        self._ending: set[int] = set()
        """Children that have handed their slots over, and have not died yet."""
        self._spares: deque[PreforkedChild] = deque()
        self._enough_spares = self._table.rows if setting.executor == "fork" else 0
        self._short = False
        self._sweep_at = 0.0
        if setting.executor == "fork":
            warm_up(setting)
        set_title(f"bide nursery of {setting.worker}")
        served = TaskRegistry(setting.modules)
        for name in setting.also:
            _import_if_possible(name)
        served.find_all()
        logs.hold()
        linux.warn({line.fileno() for line in (control, orders, replies)})
        self._of_imports = set(linux.children())
        self._handed, hand_over = os.pipe()
        self._child = Child(orders, replies, hand_over, served, setting)

    def keep(self) -> None:
        """Go on until the worker has gone."""
        linux.become_subreaper()
        # It hears of the worker's end by the line; standing still, it would not.
        linux.set_pdeathsig(signal.SIGCONT)
        flush()  # or each child would say again what was said here
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(reader, False)
        self._bell = (reader, writer)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the worker says when
        self._child.prepare()
        lifespan.preload()
        gc.collect()
        gc.freeze()  # so that children do not copy what the collector would touch
        if self._enough_spares:
            use_huge_pages()
        orders, line = Reader(self._control), self._control.fileno()
        try:
            while True:
                wait = None
                if self._sweep_at:
                    wait = max(0.0, self._sweep_at - time.monotonic())
                lacks = len(self._spares) < self._enough_spares and not self._short
                ready, _, _ = select.select(
                    [line, reader, self._handed], [], [], 0 if lacks else wait
                )
                if lacks and not ready:
                    self._make_spare()
                if self._handed in ready:
                    self._take_over()
                if reader in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(reader, 4096)
                    self._reap()
                if line in ready:
                    message = orders.read()
                    if message is None:
                        return
                    self._spawn(decode_spawn(message).slot)
                if self._sweep_at and time.monotonic() >= self._sweep_at:
                    self._sweep()
        finally:
            self._kill_all()

    def _spawn(self, slot: int) -> None:
        if slot in self._slots.values():
            return
        self._table.row(slot).end()
        self._short = False
        try:
            spare = self._spares.popleft() if self._spares else self._fork()
        except OSError as error:
            self._tell(SpawnFailed(f"no process is to be had: {error}", slot))
            return
        self._slots[spare.pid] = slot
        self._tell(Spawned(slot, spare.pid))
        spare.begin(slot)

    def _take_over(self) -> None:
        """Have a child in the place of one that is about to end."""
        pid = int.from_bytes(os.read(self._handed, PID))
        if pid in self._slots and len(self._ending) < self._table.rows:
            self._ending.add(pid)
            self._sweep_at = self._sweep_at or time.monotonic() + SWEEP_AFTER
            self._spawn(self._slots.pop(pid))

    def _make_spare(self) -> None:
        try:
            self._spares.append(self._fork())
        except OSError:  # whoever needs one will be told
            self._short = True

    def _fork(self) -> PreforkedChild:
        """Make a child that waits until it is told its slot.

        Raises:
            OSError: no process is to be had.
        """
        me = os.getpid()
        pid, gate = fork()
        if pid:
            return PreforkedChild(pid, gate)
        self._control.close()
        for fd in (*self._bell, self._handed, *(spare.gate for spare in self._spares)):
            os.close(fd)
        set_up(me)
        slot = wait_for_start(gate)
        run_child(self._child, slot, self._table.row(slot))

    def _reap(self) -> None:
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            pid = dead.si_pid
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # while it is not reaped, the number is its own
            _, status, usage = os.wait4(pid, 0)
            slot = self._slots.pop(pid, None)
            if slot is None and pid not in self._ending:  # an orphan, or a spare
                self._forget(pid)
                continue
            self._sweep_at = self._sweep_at or time.monotonic() + SWEEP_AFTER
            if slot is None:
                self._ending.remove(pid)
            elif os.waitstatus_to_exitcode(status) == RETIRED and not self._table.row(slot).job:
                self._spawn(slot)
            else:
                self._tell(Exited(slot, pid, status, usage.ru_maxrss * 1024))

    def _forget(self, pid: int) -> None:
        for spare in [spare for spare in self._spares if spare.pid == pid]:
            self._spares.remove(spare)
            os.close(spare.gate)

    def _sweep(self) -> None:
        """Kill what dead children have left behind, not what imports have started."""
        self._sweep_at = 0.0
        found = linux.children()
        self._of_imports.intersection_update(found)
        spared = {*self._slots, *(spare.pid for spare in self._spares), *self._of_imports}
        for pid in found:
            if pid not in spared:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                self._sweep_at = time.monotonic() + SWEEP_AFTER

    def _kill_all(self) -> None:
        for pid in (*self._slots, *self._ending, *(spare.pid for spare in self._spares)):
            linux.kill_session(pid)
        self._slots.clear()
        linux.kill_children()

    def _tell(self, news: News) -> None:
        with contextlib.suppress(OSError):  # the worker has gone: the line's end says so too
            send(self._control, encode(news))


def _import_if_possible(name: str) -> None:
    try:
        import_module(name)
    except TaskNotFound as error:
        log.warning("%s Its tasks are not run here.", error)


def main() -> None:
    """Keep a nursery: the program that a worker starts."""
    fds = [int(fd) for fd in sys.argv[-4:]]
    for fd in fds:
        os.set_inheritable(fd, False)
    control, orders, replies = (socket.socket(fileno=fd) for fd in fds[:3])
    for line in (control, orders, replies):
        line.setblocking(True)
    with control, orders, replies:  # closed by name: what is merely dropped is warned of
        _keep(control, orders, replies, fds[3])


def _keep(
    control: socket.socket, orders: socket.socket, replies: socket.socket, table: int
) -> None:
    reader = Reader(control)
    message = reader.read()
    if message is None:
        return
    setting = decode_setting(message)
    if setting.log is not None:
        logs.setup(*setting.log)
    with config.override(url=setting.url, prefix=setting.prefix, signing_keys=setting.signing_keys):
        try:
            nursery = ForkServer(setting, control, orders, replies, table)
        except BideError as error:
            send(control, encode(SpawnFailed(str(error))))
            while reader.read():  # leaving what was sent here unread would take the answer away
                pass
            return
        nursery.keep()
