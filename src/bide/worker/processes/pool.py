"""The children of a worker, and the lines to them: made, replaced, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import termios
import time
from collections import deque
from collections.abc import Callable, Sequence
from fcntl import ioctl
from typing import Final

from bide.errors import BideError, TaskNotFound
from bide.logs import Log
from bide.model.payload.body import DEFAULT_TIMEOUT
from bide.worker.heartbeat import GRACE
from bide.worker.lifespan import CLOSING
from bide.worker.processes import linux
from bide.worker.processes.child import ASKED
from bide.worker.processes.ipc import (
    Decided,
    Done,
    Exited,
    InitFailed,
    News,
    NoteAdded,
    Reader,
    Ready,
    Reply,
    Setting,
    Spawn,
    Spawned,
    decode_news,
    decode_reply,
    encode,
    pair,
    send,
)
from bide.worker.processes.job_table import JobTable, Row
from bide.worker.processes.linux import describe_exit, python_command

log = Log("bide.worker")

BEGINNING: Final = 0.05
"""Seconds after which a child that has not begun yet is not counted on."""

OPENING: Final = DEFAULT_TIMEOUT
"""Seconds that a child may take to open its resources: as long as a job that says nothing of it."""


class Slot:
    """One of the places for children that a worker has."""

    def __init__(self, index: int, row: Row) -> None:
        self.index: Final = index
        self.row: Final = row
        self.pid = 0
        self.killed = False
        """The worker has killed the child that is here now."""
        self.takes_jobs = False
        """There is a child here that takes jobs, or will in a moment."""
        self.stopped_at = 0.0
        """Since when the child stands still (`time.monotonic()`); 0 for not."""
        self.failures = 0
        self.spawning: asyncio.TimerHandle | None = None
        """When the next child will be asked for."""
        self._asked_at = 0.0
        self._born_at = 0.0
        self._ready = 0
        self._left = 0
        self._left_at = 0.0

    @property
    def age(self) -> float:
        """For how many seconds the child has lived."""
        return time.monotonic() - self._born_at

    @property
    def is_free(self) -> bool:
        """Whether there is a child that waits for a job."""
        return self.takes_jobs and self._is_ready and not self.row.job

    @property
    def is_unsettled(self) -> bool:
        """Whether there is a child here that may hang in what it does before or after its jobs."""
        return bool(self.pid) and not (self.takes_jobs and self._is_ready)

    @property
    def _is_ready(self) -> bool:
        return self._ready == self.pid

    @property
    def _is_leaving(self) -> bool:
        return self._left == self.pid

    def check(self) -> None:
        """See whether the child can do anything: one that is stopped, or not reaped, cannot.

        One that takes too long to open or to close what it has is killed.
        """
        if not self.pid:
            return
        if self._is_leaving:
            self.takes_jobs = False
            if not self.killed and time.monotonic() - self._left_at > CLOSING + GRACE:
                self._give_up("its resources and tasks to close", CLOSING + GRACE)
            return
        stands = linux.is_idle(self.pid)
        self.stopped_at = (self.stopped_at or time.monotonic()) if stands else 0.0
        self.takes_jobs = (self._is_ready or self.age < BEGINNING) and not stands
        if not self._is_ready and not self.killed and self.age > OPENING:
            self._give_up("its resources to open", OPENING)

    def _give_up(self, what: str, seconds: float) -> None:
        log.error("a child took more than %g s for %s, and is killed", seconds, what)
        self.kill()

    def kill(self) -> None:
        """Kill the child, and what it has started."""
        if self.pid:
            self.killed = True
            linux.kill_session(self.pid)

    def ask(self, number: int, now: float) -> None:
        """Have the job end by an exception; if it does not within a grace, by force.

        It is asked at each look: the child that runs it may not be known to be here yet.
        """
        if self.row.asked != number:
            self.row.ask(number)
            self._asked_at = now
        elif now - self._asked_at > GRACE:
            self.kill()
            return
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, ASKED)

    def on_spawned(self, pid: int) -> bool:
        """A child is here now; whether none was before that could take jobs."""
        was_able, self.takes_jobs = self.takes_jobs, pid != self._left
        self.pid = pid
        self.stopped_at = 0.0
        self.killed = False
        self.row.ask(0)
        self._born_at = time.monotonic()
        return self.takes_jobs and not was_able

    def is_ready(self, pid: int) -> bool:
        """A child, which may not be known to be here yet, takes jobs; whether that is news."""
        was_able, self._ready = self.takes_jobs, pid
        if self._left == pid:  # that was another child of this number
            self._left = 0
        self.takes_jobs = was_able or pid == self.pid
        return self.takes_jobs and not was_able

    def on_leaving(self, pid: int) -> None:
        """A child, which may not be known to be here yet, takes no more jobs."""
        self._left, self._left_at = pid, time.monotonic()
        if pid == self.pid:
            self.takes_jobs = False

    def on_exited(self) -> None:
        """There is none here any more."""
        self.pid = 0
        self.takes_jobs = False


_LOOK_EVERY: Final = 0.01


class Control:
    """Starts a nursery, tells it which children to make, and hears what becomes of them."""

    def __init__(
        self,
        setting: Setting,
        fds: Sequence[int],
        mark: str,
        heard: Callable[[News], None],
        died: Callable[[], None],
    ) -> None:
        """Start it, in the event loop that will hear it.

        Args:
            setting: what it needs to know.
            fds: the descriptors that it takes over: orders, replies, the table.
            mark: what all of its descendants are known by.
            heard: called with each of its news.
            died: called when there will be none any more.

        Raises:
            OSError: no process is to be had, or it died at once.
        """
        self._heard, self._died = heard, died
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[bytes] = deque()
        self._line, theirs = pair()
        try:
            with theirs:
                self._process = _start([theirs.fileno(), *fds], mark)
            try:
                send(self._line, encode(setting))
            except OSError:
                self.kill()
                raise
        except BaseException:
            self._line.close()
            raise
        self._line.setblocking(False)
        self._reader = Reader(self._line)
        self._loop.add_reader(self._line, self._read)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def spawn(self, slot: int) -> None:
        """Have a child made for a slot."""
        self._unsent.append(encode(Spawn(slot)))
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                send(self._line, self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:  # it is at its imports, say, and reads later
            self._loop.add_writer(self._line, self._send)
            return
        except OSError:  # it has died, which is heard too
            self._unsent.clear()
        self._loop.remove_writer(self._line)

    def _read(self) -> None:
        try:
            while not self._is_closed:
                message = self._reader.read()
                if message is None:
                    self._died()
                    return
                self._heard(decode_news(message))
        except BlockingIOError:
            return
        except OSError:
            self._died()

    @property
    def _is_closed(self) -> bool:
        return self._line.fileno() < 0

    def close(self) -> None:
        """Hear no more of it, and let it end: it kills all that is its own first."""
        if not self._is_closed:
            self._loop.remove_reader(self._line)
            self._loop.remove_writer(self._line)
            self._line.close()

    async def wait(self, seconds: float) -> None:
        """Wait until its process has ended, but not for longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._process.poll() is None:  # noqa: ASYNC110 - no event tells of it
                    await asyncio.sleep(_LOOK_EVERY)

    def kill(self) -> None:
        """End its process, whatever it is at."""
        self._process.kill()
        self._process.wait()


def _start(fds: Sequence[int], mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        python_command("bide.worker.processes.forkserver:main", *map(str, fds)),
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {linux.MARK: mark},
    )


FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between a child, or nursery, that could not begin and the next."""

_LAST_MOMENT: Final = 5.0
_OF_JOBS: Final = (Done, NoteAdded, Decided)
_LEAST_ROOM: Final = 256
"""Bytes of a line's room that a message takes at least, however short it is."""

Learned = Callable[[Slot, Exited, int], None]
"""Told of a child's death, and of how many died at once."""


class ProcessPool:
    """The children of a worker, behind a nursery."""

    def __init__(self, setting: Setting, slots: int) -> None:
        self._setting = setting
        self._fd = JobTable.create(slots)
        self._table = JobTable(self._fd)
        self.slots: Final = [Slot(i, self._table.row(i)) for i in range(slots)]
        self._make_lines()
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._most = self._replies_in.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // _LEAST_ROOM
        self._fork_server: Control | None = None
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

    def on_messages(
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
        self._loop.add_reader(self._replies, self.read_messages)
        self._start_fork_server()
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
        if self._fork_server is not None and not self._are_broken and not self._closing:
            self._are_broken = True
            log.error("a job has shut down the lines to all children; they are replaced")
            self._loop.remove_reader(self._replies)
            self._fork_server.kill()

    def reclaim(self) -> list[bytes]:
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
        nursery = self._fork_server
        if nursery is not None:
            nursery.close()
            await nursery.wait(_LAST_MOMENT)
            self._end_fork_server(nursery)
        self._loop.remove_reader(self._replies)
        for line in (self._orders_out, self._replies, self._replies_in):
            line.close()
        self._table.close()
        os.close(self._fd)

    def _start_fork_server(self) -> None:
        """Start a nursery, and have it make children.

        Raises:
            OSError: no process is to be had.
        """
        fds = [self._orders_out.fileno(), self._replies_in.fileno(), self._fd]
        heard, died = self._read_events, self._fork_server_exited
        self._fork_server = Control(self._setting, fds, self._mark, heard, died)
        for slot in self.slots:
            self._spawn(slot)

    def _end_fork_server(self, nursery: Control) -> None:
        """See to it that nothing of a nursery is left."""
        nursery.kill()
        for slot in self.slots:
            if slot.pid:
                linux.kill_session(slot.pid)
        linux.kill_marked(self._mark)

    def _spawn(self, slot: Slot) -> None:
        """Have a child made now, and not once more; a nursery that is to come makes all."""
        if slot.spawning is not None:
            slot.spawning.cancel()
            slot.spawning = None
        if not self._closing and self._fork_server is not None:
            self._fork_server.spawn(slot.index)

    def read_messages(self) -> None:
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
            elif isinstance(reply, InitFailed):
                self._on_init_failed(BideError(f"A child cannot begin: {reply.why}"))
            else:
                self.slots[reply.slot].on_leaving(reply.pid)
                self._changed()
        if replies:
            self._heard(replies)

    def _is_ready(self, slot: Slot, pid: int) -> None:
        self._failures = 0
        if slot.is_ready(pid):
            self._changed()
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(None)

    def _on_init_failed(self, error: BideError) -> None:
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(error)
        else:
            log.error("%s", error)

    def _read_events(self, news: News) -> None:
        if isinstance(news, Spawned):
            self._on_spawned(self.slots[news.slot], news.pid)
        elif isinstance(news, Exited):
            self._on_exited(self.slots[news.slot], news)
        elif news.slot < 0:
            self._fork_server_exited(TaskNotFound(news.why))
        else:
            self._on_init_failed(BideError(news.why))
            self._spawn_later(self.slots[news.slot])

    def _on_spawned(self, slot: Slot, pid: int) -> None:
        self._empty.clear()
        if slot.on_spawned(pid):
            self._changed()

    def _on_exited(self, slot: Slot, died: Exited, among: int = 1) -> None:
        self.read_messages()  # what it said before
        if self._begun is not None and not self._begun.done():
            self._on_init_failed(BideError(f"A child cannot begin. {describe_exit(died)}"))
        if slot.row.job or slot.age > LONGEST_PAUSE:
            slot.failures = 0
        slot.on_exited()
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

    def _fork_server_exited(self, why: BideError | None = None) -> None:
        nursery = self._fork_server
        assert nursery is not None
        nursery.close()
        self._fork_server = None
        self._end_fork_server(nursery)
        self._on_init_failed(why or BideError("The process that makes children died."))
        self.read_messages()
        if self._are_broken:
            waiting = self.reclaim()
            for line in (self._orders, self._orders_out, self._replies, self._replies_in):
                line.close()
            self._make_lines()
            self._loop.add_reader(self._replies, self.read_messages)
            for message in waiting:
                send(self._orders, message)
        lost = [slot for slot in self.slots if slot.pid]
        busy = sum(slot.row.job != 0 for slot in lost)
        for slot in lost:
            self._on_exited(slot, Exited(slot.index, slot.pid, signal.SIGKILL, 0), busy)
        self._start_later()

    def _start_later(self) -> None:
        self._failures += 1
        self._loop.call_later(_pause(self._failures), self._start_again)

    def _start_again(self) -> None:
        if self._closing or self._fork_server is not None:
            return
        try:
            self._start_fork_server()
        except OSError as error:
            log.error("No process is to be had: %s", error)
            self._start_later()


def _pause(failures: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE)
