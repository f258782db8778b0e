"""The nursery: a clean process, of one thread and no connections, that forks children.

It is started afresh, imports what is served once, and from then on only forks, reaps and reports.
A child that has had its jobs is replaced as soon as nothing is left to it but to end, which takes
the system as long as a short job takes Python; after one that died, the worker says when. With one
job a child, those that come next are forked while others run (`spare`). When the worker is gone,
the line to it ends, and everything here is killed: children, what they started, and what that left
behind, for orphans of theirs become children of the nursery.
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
from typing import Final

from bide import config, logs
from bide.errors import BideError, TaskNotFound
from bide.logs import Log
from bide.task import Served, import_module
from bide.worker import eventloop
from bide.worker.processes import imported, kin
from bide.worker.processes.child import RETIRED, Child, be, flush, settle_in
from bide.worker.processes.lines import PID
from bide.worker.processes.memory import use_large_pages
from bide.worker.processes.rehearsal import rehearse
from bide.worker.processes.spare import Spare, fork, wait_at
from bide.worker.processes.table import Table
from bide.worker.processes.wire import (
    Born,
    Died,
    Failed,
    News,
    Reader,
    Setting,
    decode_setting,
    decode_spawn,
    encode,
    send,
)
from bide.worker.title import set_title

log = Log("bide.worker")

SWEEP_AFTER: Final = 0.5
"""Seconds after a child's death in which what it left behind is looked for."""


class Nursery:
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
        self._table = Table(table)
        self._slots: dict[int, int] = {}
        self._ending: set[int] = set()
        """Children that have handed their slots over, and have not died yet."""
        self._spares: deque[Spare] = deque()
        self._enough_spares = self._table.rows if setting.executor == "fork" else 0
        self._short = False
        self._sweep_at = 0.0
        if setting.executor == "fork":
            rehearse(setting)
        set_title(f"bide nursery of {setting.worker}")
        served = Served(setting.modules)
        for name in setting.also:
            _import_if_possible(name)
        served.find_all()
        logs.hold()
        imported.warn({line.fileno() for line in (control, orders, replies)})
        self._of_imports = set(kin.children())
        self._handed, hand_over = os.pipe()
        self._child = Child(orders, replies, hand_over, served, setting)

    def keep(self) -> None:
        """Go on until the worker has gone."""
        kin.adopt_orphans()
        # It hears of the worker's end by the line; standing still, it would not.
        kin.hear_of_parents_death(signal.SIGCONT)
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
        eventloop.preload()
        gc.collect()
        gc.freeze()  # so that children do not copy what the collector would touch
        if self._enough_spares:
            use_large_pages()
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
            self._tell(Failed(f"no process is to be had: {error}", slot))
            return
        self._slots[spare.pid] = slot
        self._tell(Born(slot, spare.pid))
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

    def _fork(self) -> Spare:
        """Make a child that waits until it is told its slot.

        Raises:
            OSError: no process is to be had.
        """
        me = os.getpid()
        pid, gate = fork()
        if pid:
            return Spare(pid, gate)
        self._control.close()
        for fd in (*self._bell, self._handed, *(spare.gate for spare in self._spares)):
            os.close(fd)
        settle_in(me)
        slot = wait_at(gate)
        be(self._child, slot, self._table.row(slot))

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
                self._tell(Died(slot, pid, status, usage.ru_maxrss * 1024))

    def _forget(self, pid: int) -> None:
        for spare in [spare for spare in self._spares if spare.pid == pid]:
            self._spares.remove(spare)
            os.close(spare.gate)

    def _sweep(self) -> None:
        """Kill what dead children have left behind, not what imports have started."""
        self._sweep_at = 0.0
        found = kin.children()
        self._of_imports.intersection_update(found)
        spared = {*self._slots, *(spare.pid for spare in self._spares), *self._of_imports}
        for pid in found:
            if pid not in spared:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                self._sweep_at = time.monotonic() + SWEEP_AFTER

    def _kill_all(self) -> None:
        for pid in (*self._slots, *self._ending, *(spare.pid for spare in self._spares)):
            kin.kill_session(pid)
        self._slots.clear()
        kin.kill_children()

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
            nursery = Nursery(setting, control, orders, replies, table)
        except BideError as error:
            send(control, encode(Failed(str(error))))
            while reader.read():  # leaving what was sent here unread would take the answer away
                pass
            return
        nursery.keep()
