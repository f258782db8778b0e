"""The children of a worker, and the lines to them: made, replaced, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import termios
from collections.abc import Callable
from fcntl import ioctl
from typing import Final

from bide.errors import BideError, TaskNotFound
from bide.logs import Log
from bide.worker.lifespan import CLOSING
from bide.worker.processes import kin
from bide.worker.processes.control import Control
from bide.worker.processes.evidence import obituary
from bide.worker.processes.slot import Slot
from bide.worker.processes.table import Table
from bide.worker.processes.wire import (
    Born,
    Broken,
    Decided,
    Died,
    Done,
    News,
    Reader,
    Ready,
    Reply,
    Said,
    Setting,
    decode_reply,
    pair,
    send,
)

log = Log("bide.worker")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between a child, or nursery, that could not begin and the next."""

_LAST_MOMENT: Final = 5.0
_OF_JOBS: Final = (Done, Said, Decided)
_LEAST_ROOM: Final = 256
"""Bytes of a line's room that a message takes at least, however short it is."""

Learned = Callable[[Slot, Died, int], None]
"""Told of a child's death, and of how many died at once."""


class House:
    """The children of a worker, behind a nursery."""

    def __init__(self, setting: Setting, slots: int) -> None:
        self._setting = setting
        self._fd = Table.create(slots)
        self._table = Table(self._fd)
        self.slots: Final = [Slot(i, self._table.row(i)) for i in range(slots)]
        self._make_lines()
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._most = self._replies_in.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // _LEAST_ROOM
        self._nursery: Control | None = None
        self.has_lost = False
        """What a child said was lost; whoever sees to it says so here."""
        self._failures = 0
        self._closing = False
        self._begun: asyncio.Future[None] | None = None
        self._empty = asyncio.Event()

    def _make_lines(self) -> None:
        self._orders, self._orders_out = pair()
        self._replies, self._replies_in = pair()
        for line in (self._orders, self._replies):
            line.setblocking(False)
        self._reply_reader = Reader(self._replies)
        self._back_reader = Reader(self._orders_out)
        self._are_broken = False

    def hear(
        self,
        heard: Callable[[list[Reply]], None],
        learned: Learned,
        changed: Callable[[], None],
    ) -> None:
        """Say who is told what children say, of their deaths, and that more can take jobs."""
        self._heard, self._learned, self._changed = heard, learned, changed

    async def open(self) -> None:
        """Make the children.

        Raises:
            BideError: a module cannot be imported, or a resource not opened; the message is theirs.
        """
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.create_future()
        self._loop.add_reader(self._replies, self.listen)
        self._start_nursery()
        await self._begun

    def send(self, order: bytes) -> bool:
        """Hand a job out; False while the line is full."""
        try:
            send(self._orders, order)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._replace_lines()
            return False
        except OSError as error:  # no descriptor for a large message, say: later there may be
            log.error("A job cannot be handed out: %s", error)
            return False
        return True

    def _replace_lines(self) -> None:
        """Have other lines, and all children anew: a job has shut down those that they share."""
        if self._nursery is not None and not self._are_broken and not self._closing:
            self._are_broken = True
            log.error("a job has shut down the lines to all children; they are replaced")
            self._loop.remove_reader(self._replies)
            self._nursery.kill()

    def take_back(self) -> list[bytes]:
        """What no child has taken; from now on none will."""
        taken = []
        with contextlib.suppress(BlockingIOError):
            while message := self._back_reader.read(socket.MSG_DONTWAIT):
                taken.append(bytes(message))
        return taken

    @property
    def is_line_empty(self) -> bool:
        """Whether children have taken all that was handed out."""
        size = ioctl(self._orders_out, termios.FIONREAD, bytes(4))
        return not any(size)

    async def close(self) -> None:
        """End all children: those that are idle by themselves, the rest after a while by force."""
        self._closing = True
        self._orders.close()
        if any(slot.pid for slot in self.slots):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await self._empty.wait()
        nursery = self._nursery
        if nursery is not None:
            nursery.close()
            await nursery.wait(_LAST_MOMENT)
            self._end_nursery(nursery)
        self._loop.remove_reader(self._replies)
        for line in (self._orders_out, self._replies, self._replies_in):
            line.close()
        self._table.close()
        os.close(self._fd)

    def _start_nursery(self) -> None:
        """Start a nursery, and have it make children.

        Raises:
            OSError: no process is to be had.
        """
        fds = [self._orders_out.fileno(), self._replies_in.fileno(), self._fd]
        heard, died = self._read_news, self._nursery_died
        self._nursery = Control(self._setting, fds, self._mark, heard, died)
        for slot in self.slots:
            self._spawn(slot)

    def _end_nursery(self, nursery: Control) -> None:
        """See to it that nothing of a nursery is left."""
        nursery.kill()
        for slot in self.slots:
            if slot.pid:
                kin.kill_session(slot.pid)
        kin.kill_marked(self._mark)

    def _spawn(self, slot: Slot) -> None:
        """Have a child made now, and not once more; a nursery that is to come makes all."""
        if slot.spawning is not None:
            slot.spawning.cancel()
            slot.spawning = None
        if not self._closing and self._nursery is not None:
            self._nursery.spawn(slot.index)

    def listen(self) -> None:
        """Hear what children have said by now.

        That is no more than the line can hold, so that those who never fall silent do not keep the
        worker; and no less, so that all is heard that one had said who is dead.
        """
        replies: list[Reply] = []
        for _ in range(self._most):
            try:
                message = self._reply_reader.read()
            except BlockingIOError:
                break
            except OSError as error:
                log.error("What a child said is lost: %s", error)
                self.has_lost = True
                continue
            if message is None:
                self._replace_lines()
                break
            reply = decode_reply(message)
            if isinstance(reply, _OF_JOBS):
                replies.append(reply)
            elif isinstance(reply, Ready):
                self._is_ready(self.slots[reply.slot], reply.pid)
            elif isinstance(reply, Broken):
                self._cannot_begin(BideError(f"A child cannot begin: {reply.why}"))
            else:
                self.slots[reply.slot].leaves(reply.pid)
                self._changed()
        if replies:
            self._heard(replies)

    def _is_ready(self, slot: Slot, pid: int) -> None:
        self._failures = 0
        if slot.is_ready(pid):
            self._changed()
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(None)

    def _cannot_begin(self, error: BideError) -> None:
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(error)
        else:
            log.error("%s", error)

    def _read_news(self, news: News) -> None:
        if isinstance(news, Born):
            self._born(self.slots[news.slot], news.pid)
        elif isinstance(news, Died):
            self._died(self.slots[news.slot], news)
        elif news.slot < 0:
            self._nursery_died(TaskNotFound(news.why))
        else:
            self._cannot_begin(BideError(news.why))
            self._spawn_later(self.slots[news.slot])

    def _born(self, slot: Slot, pid: int) -> None:
        self._empty.clear()
        if slot.born(pid):
            self._changed()

    def _died(self, slot: Slot, died: Died, among: int = 1) -> None:
        self.listen()  # what it said before
        if self._begun is not None and not self._begun.done():
            self._cannot_begin(BideError(f"A child cannot begin. {obituary(died)}"))
        if slot.row.job or slot.age > LONGEST_PAUSE:
            slot.failures = 0
        slot.died()
        if not any(slot.pid for slot in self.slots):
            self._empty.set()
        self._learned(slot, died, among)
        self._spawn_later(slot)

    def _spawn_later(self, slot: Slot) -> None:
        """Make another child: at once where the last one ran a job."""
        slot.failures += 1
        if slot.spawning is not None:
            slot.spawning.cancel()
        if slot.failures == 1:
            self._spawn(slot)
            return
        slot.spawning = self._loop.call_later(_pause(slot.failures - 1), self._spawn, slot)

    def _nursery_died(self, why: BideError | None = None) -> None:
        nursery = self._nursery
        assert nursery is not None
        nursery.close()
        self._nursery = None
        self._end_nursery(nursery)
        self._cannot_begin(why or BideError("The process that makes children died."))
        self.listen()
        if self._are_broken:
            waiting = self.take_back()
            for line in (self._orders, self._orders_out, self._replies, self._replies_in):
                line.close()
            self._make_lines()
            self._loop.add_reader(self._replies, self.listen)
            for message in waiting:
                send(self._orders, message)
        lost = [slot for slot in self.slots if slot.pid]
        busy = sum(slot.row.job != 0 for slot in lost)
        for slot in lost:
            self._died(slot, Died(slot.index, slot.pid, signal.SIGKILL, 0), busy)
        self._start_later()

    def _start_later(self) -> None:
        self._failures += 1
        self._loop.call_later(_pause(self._failures), self._start_again)

    def _start_again(self) -> None:
        if self._closing or self._nursery is not None:
            return
        try:
            self._start_nursery()
        except OSError as error:
            log.error("No process is to be had: %s", error)
            self._start_later()


def _pause(failures: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE)
