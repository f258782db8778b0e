"""The fork server: a process with one thread and without connections, which forks children.

It starts as a new process and imports the served modules once. After that it only forks, reaps and
reports. If a child has run its last job, the fork server replaces it before it exits, because an
exit takes as long as a short job. If a child has died, the worker decides when to replace it.

If the worker has ended, the control socket ends. The fork server then kills its children, the
processes that they started, and orphans of these, which become children of the fork server.

Code that runs for the first time looks up attributes, fills caches and writes to memory pages. A
child that runs a single job does all of that for the first time, and copies a page of the fork
server for most of it. So the fork server runs a job itself before it forks (`warm_up`), and its
children inherit the result. This happens before any module of the application is imported, so no
middleware of the application is called.
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
from typing import Final

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
    JobTable,
    PoolEvent,
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
from bide.worker.processes.linux import use_huge_pages

WARMUP_RUNS: Final = 12
"""Runs after which Python has specialised the code and filled its caches."""


def do_nothing(number: int) -> None:
    """The job of the warm-up."""


def warm_up(setting: Setting) -> None:
    """Run an empty job in this process, so that children inherit warm caches."""
    body = encode_body(Body(f"{__name__}:{do_nothing.__name__}", [1]))
    fd = JobTable.create(1)
    row = JobTable(fd).row(0)
    os.close(fd)
    for number in range(1, WARMUP_RUNS + 1):
        (assigns, assigns_child), (replies, replies_child) = pair(), pair()
        with assigns, assigns_child, replies, replies_child:
            child = Child(
                assigns, replies_child, replies_child.fileno(), TaskRegistry([__name__]), setting
            )
            claimed = Claimed(new_id(), body, 1, 1, 0, 1, 1)
            send(assigns_child, encode(Assign(number, "warmup", claimed, time.monotonic())))
            child.live(0, row)


log = Log("bide.worker")

_START: Final = b"."

SWEEP_AFTER: Final = 0.5
"""Seconds from a child's death to the search for processes that it left behind."""


class ForkServer:
    """Forks, reaps and reports."""

    def __init__(
        self,
        setting: Setting,
        control: socket.socket,
        assigns: socket.socket,
        replies: socket.socket,
        table: int,
    ) -> None:
        self._control = control
        self._table = JobTable(table)
        self._slots: dict[int, int] = {}
        self._ending: set[int] = set()
        """Children that have handed their slots over and have not ended yet."""
        self._sweep_at = 0.0
        self._forks_often = setting.executor == "fork"
        if self._forks_often:
            warm_up(setting)
        set_title(f"bide fork server of {setting.worker}")
        served = TaskRegistry(setting.modules)
        for name in setting.also:
            try:
                import_module(name)
            except TaskNotFound as error:
                log.warning("%s Its tasks are not run here.", error)
        served.find_all()
        logs.hold()
        linux.warn({line.fileno() for line in (control, assigns, replies)})
        self._children_of_imports = set(linux.children())
        self._handover_pipe, hand_over = os.pipe()
        self._child = Child(assigns, replies, hand_over, served, setting)

    def serve(self) -> None:
        """Serve until the worker has ended."""
        linux.become_subreaper()
        # The control socket ends with the worker. A stopped fork server must continue to see that.
        linux.set_pdeathsig(signal.SIGCONT)
        flush()  # otherwise each child would print the buffered output again
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(reader, False)
        self._wakeup_pipe = (reader, writer)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the worker decides when to stop
        self._child.prepare()
        lifespan.preload()
        gc.collect()
        gc.freeze()  # children then do not copy pages that the collector would touch
        if self._forks_often:
            use_huge_pages()
        requests, control = Reader(self._control), self._control.fileno()
        try:
            while True:
                wait = None
                if self._sweep_at:
                    wait = max(0.0, self._sweep_at - time.monotonic())
                ready, _, _ = select.select([control, reader, self._handover_pipe], [], [], wait)
                if self._handover_pipe in ready:
                    self._replace_retiring()
                if reader in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(reader, 4096)
                    self._reap()
                if control in ready:
                    message = requests.read()
                    if message is None:
                        return
                    self._spawn(decode_spawn(message).slot)
                if self._sweep_at and time.monotonic() >= self._sweep_at:
                    self._sweep()
        finally:
            for pid in (*self._slots, *self._ending):
                linux.kill_session(pid)
            linux.kill_children()

    def _spawn(self, slot: int) -> None:
        if slot in self._slots.values():
            return
        self._table.row(slot).end()
        try:
            pid, start_pipe = self._fork(slot)
        except OSError as error:
            self._report(SpawnFailed(f"no process can be started: {error}", slot))
            return
        self._slots[pid] = slot
        self._report(Spawned(slot, pid))
        with contextlib.suppress(BrokenPipeError):  # it has died, and is reaped like any other
            os.write(start_pipe, _START)
        os.close(start_pipe)

    def _replace_retiring(self) -> None:
        """Start a child in the slot of a child that is about to end."""
        pid = int.from_bytes(os.read(self._handover_pipe, PID))
        if pid in self._slots and len(self._ending) < self._table.rows:
            self._ending.add(pid)
            self._sweep_at = self._sweep_at or time.monotonic() + SWEEP_AFTER
            self._spawn(self._slots.pop(pid))

    def _fork(self, slot: int) -> tuple[int, int]:
        """Fork a child, which waits until the worker knows it.

        Returns:
            Its process id, and the pipe end on which it waits for the order to start.
        """
        me = os.getpid()
        outlet, start_pipe = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(outlet)
            os.close(start_pipe)
            raise
        os.close(outlet if pid else start_pipe)
        if pid:
            return pid, start_pipe
        self._control.close()
        for fd in (*self._wakeup_pipe, self._handover_pipe):
            os.close(fd)
        set_up(me)
        start = os.read(outlet, len(_START))
        os.close(outlet)
        if not start:  # the fork server has died
            os._exit(0)
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
                os.killpg(pid, signal.SIGKILL)  # until it is reaped, its id is not reused
            _, status, usage = os.wait4(pid, 0)
            slot = self._slots.pop(pid, None)
            if slot is None and pid not in self._ending:  # an orphan
                continue
            self._sweep_at = self._sweep_at or time.monotonic() + SWEEP_AFTER
            if slot is None:
                self._ending.remove(pid)
            elif os.waitstatus_to_exitcode(status) == RETIRED and not self._table.row(slot).job:
                self._spawn(slot)
            else:
                self._report(Exited(slot, pid, status, usage.ru_maxrss * 1024))

    def _sweep(self) -> None:
        """Kill processes that dead children left behind, but not processes that imports started."""
        self._sweep_at = 0.0
        found = linux.children()
        self._children_of_imports.intersection_update(found)
        spared = {*self._slots, *self._children_of_imports}
        for pid in found:
            if pid not in spared:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                self._sweep_at = time.monotonic() + SWEEP_AFTER

    def _report(self, event: PoolEvent) -> None:
        with contextlib.suppress(OSError):  # the worker has ended; `serve` sees that too
            send(self._control, encode(event))


def main() -> None:
    """Run a fork server: the program that a worker starts."""
    fds = [int(fd) for fd in sys.argv[-4:]]
    for fd in fds:
        os.set_inheritable(fd, False)
    control, assigns, replies = (socket.socket(fileno=fd) for fd in fds[:3])
    for line in (control, assigns, replies):
        line.setblocking(True)
    with control, assigns, replies:  # an unclosed socket causes a ResourceWarning
        reader = Reader(control)
        message = reader.read()
        if message is None:
            return
        setting = decode_setting(message)
        if setting.log is not None:
            logs.setup(*setting.log)
        with config.override(
            url=setting.url, prefix=setting.prefix, signing_keys=setting.signing_keys
        ):
            try:
                fork_server = ForkServer(setting, control, assigns, replies, fds[3])
            except BideError as error:
                send(control, encode(SpawnFailed(str(error))))
                while reader.read():  # leaving what was sent here unread would take the answer away
                    pass
                return
            fork_server.serve()
