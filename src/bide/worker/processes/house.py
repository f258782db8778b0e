"""The children of a worker, and the lines to them: made, replaced, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from bide.errors import BideError, ServerRefused, TaskNotFound
from bide.worker.leases import GRACE
from bide.worker.lifespan import CLOSING
from bide.worker.processes import kin
from bide.worker.processes.child import ASKED, ENDED
from bide.worker.processes.table import Row, Table
from bide.worker.processes.wire import (
    Born,
    Broken,
    Died,
    Reader,
    Ready,
    Reply,
    Setting,
    Spawn,
    decode_news,
    decode_reply,
    encode,
    pair,
    send,
)

log = logging.getLogger("bide.worker")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between a child, or nursery, that could not begin and the next."""

_LAST_MOMENT: Final = 5.0


class Slot:
    """The place of one child at a time."""

    def __init__(self, index: int, row: Row) -> None:
        self.index: Final = index
        self.row: Final = row
        self.pid = 0
        self.killed = False
        """The worker has killed the child that is here now."""
        self.failures = 0
        self._asked_at = 0.0

    def kill(self) -> None:
        """Kill the child, and what it has started."""
        if self.pid:
            self.killed = True
            kin.kill_session(self.pid)

    def ask(self, number: int, now: float) -> None:
        """Have the job end by an exception; if it does not within a grace, by force."""
        if self.row.asked != number:
            self.row.ask(number)
            self._asked_at = now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, ASKED)
        elif now - self._asked_at > GRACE:
            self.kill()

    def born(self, pid: int) -> None:
        """A child is here now."""
        self.pid = pid
        self.killed = False


class House:
    """The children of a worker, behind a nursery."""

    def __init__(self, setting: Setting, slots: int) -> None:
        self._setting = setting
        self._fd = Table.create(slots)
        self._table = Table(self._fd)
        self.slots: Final = [Slot(i, self._table.row(i)) for i in range(slots)]
        self._orders, self._orders_out = pair()
        self._replies, self._replies_in = pair()
        for line in (self._orders, self._replies):
            line.setblocking(False)
        self._reply_reader = Reader(self._replies)
        self._back_reader = Reader(self._orders_out)
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._nursery: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._failures = 0
        self._closing = False
        self._begun: asyncio.Future[None] | None = None
        self._empty = asyncio.Event()

    def hear(
        self, heard: Callable[[list[Reply]], None], learned: Callable[[Slot, Died], None]
    ) -> None:
        """Say who is told what children say, and of their deaths."""
        self._heard, self._learned = heard, learned

    async def open(self) -> None:
        """Make the children.

        Raises:
            BideError: a module cannot be imported, or a resource not opened; the message is theirs.
        """
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.create_future()
        self._loop.add_reader(self._replies, self._read_replies)
        self._start_nursery()
        await self._begun

    def send(self, order: bytes) -> bool:
        """Hand a job out; False while the line is full."""
        try:
            send(self._orders, order)
        except BlockingIOError:
            return False
        return True

    def take_back(self) -> list[bytes]:
        """What no child has taken; from now on none will."""
        taken = []
        with contextlib.suppress(BlockingIOError):
            while message := self._back_reader.read(socket.MSG_DONTWAIT):
                taken.append(bytes(message))
        return taken

    async def close(self) -> None:
        """End all children: those that are idle by themselves, the rest after a while by force."""
        self._closing = True
        self._orders.close()
        if any(slot.pid for slot in self.slots):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await self._empty.wait()
        nursery, control = self._nursery, self._control
        if control is not None:
            self._loop.remove_reader(control)
            control.close()
        if nursery is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(nursery.wait, _LAST_MOMENT)
            self._end_nursery(nursery)
        self._loop.remove_reader(self._replies)
        for line in (self._orders_out, self._replies, self._replies_in):
            line.close()
        self._table.close()
        os.close(self._fd)

    def _start_nursery(self) -> None:
        self._control, theirs = pair()
        fds = [theirs.fileno(), self._orders_out.fileno(), self._replies_in.fileno(), self._fd]
        with theirs:
            self._nursery = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "bide.worker.processes.nursery",
                    *map(str, fds),
                ],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # A title must not be written over the mark.
                env=os.environ | {kin.MARK: self._mark, "SPT_NOENV": "1"},
            )
        send(self._control, self._setting.encode())
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read_news, Reader(self._control))
        for slot in self.slots:
            self._spawn(slot)

    def _end_nursery(self, nursery: subprocess.Popen[bytes]) -> None:
        """See to it that nothing of a nursery is left."""
        nursery.kill()
        nursery.wait()
        for slot in self.slots:
            if slot.pid:
                kin.kill_session(slot.pid)
        kin.kill_marked(self._mark)

    def _spawn(self, slot: Slot) -> None:
        if self._closing or self._control is None:
            return
        with contextlib.suppress(OSError):  # it has died, which is heard too
            send(self._control, encode(Spawn(slot.index)))

    def _read_replies(self) -> None:
        replies = []
        with contextlib.suppress(BlockingIOError):
            while message := self._reply_reader.read():
                reply = decode_reply(message)
                if isinstance(reply, Ready):
                    self._is_ready(self.slots[reply.slot])
                elif isinstance(reply, Broken):
                    self._cannot_begin(ServerRefused(reply.why))
                else:
                    replies.append(reply)
        if replies:
            self._heard(replies)

    def _is_ready(self, slot: Slot) -> None:
        slot.failures = self._failures = 0
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(None)

    def _cannot_begin(self, error: BideError) -> None:
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(error)
        else:
            log.error("%s", error)

    def _read_news(self, reader: Reader) -> None:
        try:
            while True:
                message = reader.read()
                if message is None:
                    self._nursery_died()
                    return
                news = decode_news(message)
                if isinstance(news, Born):
                    self.slots[news.slot].born(news.pid)
                elif isinstance(news, Died):
                    self._died(self.slots[news.slot], news)
                elif news.slot < 0:
                    self._cannot_begin(TaskNotFound(news.why))
                else:
                    log.error("%s", news.why)
                    self._spawn_later(self.slots[news.slot])
        except BlockingIOError:
            return
        except OSError:
            self._nursery_died()

    def _died(self, slot: Slot, died: Died) -> None:
        self._read_replies()  # what it said before
        slot.pid = 0
        if not any(slot.pid for slot in self.slots):
            self._empty.set()
        self._learned(slot, died)
        if died.status != ENDED:
            self._spawn_later(slot)

    def _spawn_later(self, slot: Slot) -> None:
        """Make another child: at once where the last one had begun."""
        slot.failures += 1
        if slot.failures == 1:
            self._spawn(slot)
            return
        pause = min(FIRST_PAUSE * 2.0 ** min(slot.failures - 2, 16), LONGEST_PAUSE)
        self._loop.call_later(pause, self._spawn, slot)

    def _nursery_died(self) -> None:
        control, nursery = self._control, self._nursery
        assert control is not None
        assert nursery is not None
        self._loop.remove_reader(control)
        control.close()
        self._control = self._nursery = None
        self._end_nursery(nursery)
        self._cannot_begin(ServerRefused("The process that makes children died."))
        for slot in self.slots:
            if slot.pid:
                self._died(slot, Died(slot.index, slot.pid, signal.SIGKILL, 0))
        if not self._closing:
            self._failures += 1
            pause = min(FIRST_PAUSE * 2.0 ** min(self._failures - 1, 16), LONGEST_PAUSE)
            self._loop.call_later(pause, self._start_again)

    def _start_again(self) -> None:
        if not self._closing and self._nursery is None:
            self._start_nursery()
