"""The child processes of a worker and the sockets to them: starts, replacements, and the end."""

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
from bide.worker.processes.child import CANCEL_SIGNAL
from bide.worker.processes.ipc import (
    ChildRow,
    Decided,
    Exited,
    InitFailed,
    JobDone,
    JobTable,
    NoteAdded,
    Reader,
    Ready,
    Reply,
    Setting,
    Spawn,
    Spawned,
    decode_pool_event,
    decode_reply,
    encode,
    pair,
    send,
)
from bide.worker.processes.linux import describe_exit, python_command

log = Log("bide.worker")

BEGINNING: Final = 0.05
"""Seconds after which a child that is not ready yet does not count as able to take jobs."""

OPENING: Final = DEFAULT_TIMEOUT
"""Seconds that a child may take to open its resources: the default time-out of a job."""


class Slot:
    """The place of one child at a time."""

    def __init__(self, index: int, row: ChildRow) -> None:
        self.index: Final = index
        self.row: Final = row
        self.pid = 0
        self.killed = False
        """Whether the worker has killed the current child."""
        self.takes_jobs = False
        """Whether the current child takes jobs, or will in a moment."""
        self.stopped_at = 0.0
        """Since when the child is stopped (`time.monotonic()`); 0 if it is not."""
        self.failures = 0
        self.spawning: asyncio.TimerHandle | None = None
        """The timer for the start of the next child."""
        self._cancel_requested_at = 0.0
        self._spawned_at = 0.0
        self._ready = 0
        self._left = 0
        self._left_at = 0.0

    @property
    def age(self) -> float:
        """Seconds since the child was forked."""
        return time.monotonic() - self._spawned_at

    @property
    def is_free(self) -> bool:
        """Whether the child waits for a job."""
        return self.takes_jobs and self._is_ready and not self.row.job

    @property
    def is_unsettled(self) -> bool:
        """Whether the child may hang before its first job or after its last one."""
        return bool(self.pid) and not (self.takes_jobs and self._is_ready)

    @property
    def _is_ready(self) -> bool:
        return self._ready == self.pid

    @property
    def _is_leaving(self) -> bool:
        return self._left == self.pid

    def check(self) -> None:
        """Update whether the child can take jobs: a stopped or dead child cannot.

        A child that takes too long to open or to close its resources is killed.
        """
        if not self.pid:
            return
        if self._is_leaving:
            self.takes_jobs = False
            if not self.killed and time.monotonic() - self._left_at > CLOSING + GRACE:
                self._give_up("its resources and tasks to close", CLOSING + GRACE)
            return
        is_stopped = linux.is_idle(self.pid)
        self.stopped_at = (self.stopped_at or time.monotonic()) if is_stopped else 0.0
        self.takes_jobs = (self._is_ready or self.age < BEGINNING) and not is_stopped
        if not self._is_ready and not self.killed and self.age > OPENING:
            self._give_up("its resources to open", OPENING)

    def _give_up(self, what: str, seconds: float) -> None:
        log.error("a child took more than %g s for %s, and is killed", seconds, what)
        self.kill()

    def kill(self) -> None:
        """Kill the child, and the processes that it started."""
        if self.pid:
            self.killed = True
            linux.kill_session(self.pid)

    def request_cancel(self, number: int, now: float) -> None:
        """Signal the child to cancel its job; if the job does not end within a grace, kill it.

        This is repeated at each check, because the child that runs the job may not be known yet.
        """
        if self.row.cancel_requested != number:
            self.row.request_cancel(number)
            self._cancel_requested_at = now
        elif now - self._cancel_requested_at > GRACE:
            self.kill()
            return
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, CANCEL_SIGNAL)

    def on_spawned(self, pid: int) -> bool:
        """Record a new child; return whether the slot can take jobs now and could not before."""
        was_able, self.takes_jobs = self.takes_jobs, pid != self._left
        self.pid = pid
        self.stopped_at = 0.0
        self.killed = False
        self.row.request_cancel(0)
        self._spawned_at = time.monotonic()
        return self.takes_jobs and not was_able

    def is_ready(self, pid: int) -> bool:
        """Record that a child is ready; return whether the slot can take jobs only since now.

        The message may arrive before `on_spawned` for the same child.
        """
        was_able, self._ready = self.takes_jobs, pid
        if self._left == pid:  # an earlier child with the same process id
            self._left = 0
        self.takes_jobs = was_able or pid == self.pid
        return self.takes_jobs and not was_able

    def on_leaving(self, pid: int) -> None:
        """Record that a child takes no more jobs; this may arrive before its `on_spawned`."""
        self._left, self._left_at = pid, time.monotonic()
        if pid == self.pid:
            self.takes_jobs = False

    def on_exited(self) -> None:
        """Record that the child has ended."""
        self.pid = 0
        self.takes_jobs = False


_LOOK_EVERY: Final = 0.01


class Control:
    """A Python process that this event loop has started, and the socket to it."""

    def __init__(
        self,
        main: str,
        first: bytes,
        fds: Sequence[int],
        on_message: Callable[[bytes | memoryview], None],
        on_end: Callable[[], None],
        **environment: str,
    ) -> None:
        """Start a process that leads a session of its own, and send it the first message.

        Args:
            main: the function to call, as `module:name`. The last arguments of its command line are
                the descriptors of its end of the socket, and of `fds`.
            first: the first message.
            fds: descriptors that it inherits.
            on_message: called with each message of the process.
            on_end: called when it has closed its end of the socket, and this end is closed too.
            environment: variables that are added to its environment.

        Raises:
            OSError: the system cannot start a process.
        """
        self._on_message, self._on_end = on_message, on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[bytes] = deque()
        self._line, theirs = pair()
        try:
            with theirs:
                fds = [theirs.fileno(), *fds]
                self.process: Final = subprocess.Popen(
                    python_command(main, *map(str, fds)),
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=os.environ | environment,
                )
        except BaseException:
            self._line.close()
            raise
        self._line.setblocking(False)
        self._reader = Reader(self._line)
        self._loop.add_reader(self._line, self.read)
        self.send(first)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def send(self, message: bytes) -> None:
        """Send a message; if there is no room in the buffer, as soon as there is."""
        self._unsent.append(message)
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                send(self._line, self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:  # for instance, it still imports modules
            self._loop.add_writer(self._line, self._send)
            return
        except OSError:  # it has died: `read` handles that
            self._unsent.clear()
        self._loop.remove_writer(self._line)

    def read(self) -> None:
        """Read the messages that it has sent so far."""
        try:
            while not self._is_closed:
                message = self._reader.read()
                if message is None:
                    break
                self._on_message(message)
            else:
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()
        self._on_end()

    @property
    def _is_closed(self) -> bool:
        return self._line.fileno() < 0

    def close(self) -> None:
        """Close this end of the socket: a fork server kills its descendants then, and exits."""
        if not self._is_closed:
            self._loop.remove_reader(self._line)
            self._loop.remove_writer(self._line)
            self._line.close()

    async def wait(self, seconds: float) -> None:
        """Wait until its process has ended, up to `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.process.poll() is None:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(_LOOK_EVERY)

    def kill(self) -> None:
        """Kill its process."""
        self.process.kill()
        self.process.wait()


FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between a child or a fork server that could not start and the next one."""

_LAST_MOMENT: Final = 5.0
_OF_JOBS: Final = (JobDone, NoteAdded, Decided)
_LEAST_ROOM: Final = 256
"""Bytes that even the shortest message takes in the buffer of a socket."""

OnExit = Callable[[Slot, Exited, int], None]
"""Called with the slot of a dead child, how it ended, and how many busy children died with it."""


class ProcessPool:
    """The children of a worker, which a fork server starts."""

    def __init__(self, setting: Setting, slots: int) -> None:
        self._setting = setting
        self._fd = JobTable.create(slots)
        self._table = JobTable(self._fd)
        self.slots: Final = [Slot(i, self._table.row(i)) for i in range(slots)]
        self._make_lines()
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._max_messages = (
            self._replies_child.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // _LEAST_ROOM
        )
        self._fork_server: Control | None = None
        self.has_lost = False
        """Whether a message of a child was lost; the executor resets it."""
        self._failures = 0
        self._closing = False
        self._opened: asyncio.Future[None] | None = None
        self._empty = asyncio.Event()

    def _make_lines(self) -> None:
        self._assigns, self._assigns_child = pair()
        self._replies, self._replies_child = pair()
        for line in (self._assigns, self._replies):
            line.setblocking(False)
        self._reply_reader = Reader(self._replies)
        self._back_reader = Reader(self._assigns_child)
        self._are_broken = False

    def on_messages(
        self,
        on_replies: Callable[[list[Reply]], None],
        on_exit: OnExit,
        on_ready: Callable[[], None],
    ) -> None:
        """Set the functions that handle replies, deaths and newly ready children."""
        self._handle_replies, self._handle_exit, self._handle_ready = on_replies, on_exit, on_ready

    async def open(self) -> None:
        """Start the children.

        Raises:
            BideError: a module cannot be imported, or a resource cannot be opened.
        """
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.create_future()
        self._loop.add_reader(self._replies, self.read_messages)
        self._start_fork_server()
        await self._opened

    def send(self, assign: bytes) -> bool:
        """Send a job to the children; return False if it cannot be sent now."""
        try:
            send(self._assigns, assign)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._replace_lines()
            return False
        except OSError as error:  # for instance, there is no descriptor for a large message now
            log.error("A job cannot be sent to the child processes: %s", error)
            return False
        return True

    def _replace_lines(self) -> None:
        """Replace the sockets and all children: a job has shut down the shared sockets."""
        if self._fork_server is not None and not self._are_broken and not self._closing:
            self._are_broken = True
            log.error("a job has shut down the sockets of all children; they are replaced")
            self._loop.remove_reader(self._replies)
            self._fork_server.kill()

    def reclaim(self) -> list[bytes]:
        """Take back and return the jobs that no child has received."""
        taken = []
        with contextlib.suppress(BlockingIOError):
            while message := self._back_reader.read(socket.MSG_DONTWAIT):
                taken.append(bytes(message))
        return taken

    @property
    def is_line_empty(self) -> bool:
        """Whether children have received all jobs that were sent."""
        size = ioctl(self._assigns_child, termios.FIONREAD, bytes(4))
        return not any(size)

    async def close(self) -> None:
        """Stop all children: idle children exit, and the others are killed after `CLOSING`."""
        self._closing = True
        self._assigns.close()
        if any(slot.pid for slot in self.slots):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await self._empty.wait()
        fork_server = self._fork_server
        if fork_server is not None:
            fork_server.close()
            await fork_server.wait(_LAST_MOMENT)
            self._end_fork_server(fork_server)
        self._loop.remove_reader(self._replies)
        for line in (self._assigns_child, self._replies, self._replies_child):
            line.close()
        self._table.close()
        os.close(self._fd)

    def _start_fork_server(self) -> None:
        fds = [self._assigns_child.fileno(), self._replies_child.fileno(), self._fd]
        self._fork_server = Control(
            "bide.worker.processes.forkserver:main",
            encode(self._setting),
            fds,
            self._read_event,
            self._fork_server_exited,
            **{linux.MARK: self._mark},
        )
        for slot in self.slots:
            self._spawn(slot)

    def _end_fork_server(self, fork_server: Control) -> None:
        fork_server.kill()
        for slot in self.slots:
            if slot.pid:
                linux.kill_session(slot.pid)
        linux.kill_marked(self._mark)

    def _spawn(self, slot: Slot) -> None:
        """Request a child now instead of later; a new fork server starts children for all slots."""
        if slot.spawning is not None:
            slot.spawning.cancel()
            slot.spawning = None
        if not self._closing and self._fork_server is not None:
            self._fork_server.send(encode(Spawn(slot.index)))

    def read_messages(self) -> None:
        """Read the replies that children have sent so far.

        It reads as many messages as the socket's buffer can hold. So children that send without a
        pause do not block the worker, and all messages of a dead child are read.
        """
        replies: list[Reply] = []
        for _ in range(self._max_messages):
            try:
                message = self._reply_reader.read()
            except BlockingIOError:
                break
            except OSError as error:
                log.error("A message of a child is lost: %s", error)
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
                self._on_init_failed(BideError(f"A child cannot start: {reply.why}"))
            else:
                self.slots[reply.slot].on_leaving(reply.pid)
                self._handle_ready()
        if replies:
            self._handle_replies(replies)

    def _is_ready(self, slot: Slot, pid: int) -> None:
        self._failures = 0
        if slot.is_ready(pid):
            self._handle_ready()
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    def _on_init_failed(self, error: BideError) -> None:
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)
        else:
            log.error("%s", error)

    def _read_event(self, message: bytes | memoryview) -> None:
        event = decode_pool_event(message)
        if isinstance(event, Spawned):
            self._empty.clear()
            if self.slots[event.slot].on_spawned(event.pid):
                self._handle_ready()
        elif isinstance(event, Exited):
            self._on_exited(self.slots[event.slot], event)
        elif event.slot < 0:
            self._fork_server_exited(TaskNotFound(event.why))
        else:
            self._on_init_failed(BideError(event.why))
            self._vacate(self.slots[event.slot])  # its child has handed it over, and ends
            self._spawn_later(self.slots[event.slot])

    def _on_exited(self, slot: Slot, died: Exited, deaths: int = 1) -> None:
        self.read_messages()  # the messages that it sent before
        if self._opened is not None and not self._opened.done():
            self._on_init_failed(BideError(f"A child cannot start. {describe_exit(died)}"))
        if slot.row.job or slot.age > LONGEST_PAUSE:
            slot.failures = 0
        self._vacate(slot)
        self._handle_exit(slot, died, deaths)
        self._spawn_later(slot)

    def _vacate(self, slot: Slot) -> None:
        slot.on_exited()
        if not any(slot.pid for slot in self.slots):
            self._empty.set()

    def _spawn_later(self, slot: Slot) -> None:
        """Start another child: immediately if the last one ran a job, otherwise after a pause."""
        slot.failures += 1
        if slot.spawning is not None:
            slot.spawning.cancel()
        if slot.failures == 1:
            self._spawn(slot)
            return
        slot.spawning = self._loop.call_later(_pause(slot.failures - 1), self._spawn, slot)

    def _fork_server_exited(self, why: BideError | None = None) -> None:
        fork_server = self._fork_server
        assert fork_server is not None
        fork_server.close()
        self._fork_server = None
        self._end_fork_server(fork_server)
        self._on_init_failed(why or BideError("The fork server died."))
        self.read_messages()
        if self._are_broken:
            waiting = self.reclaim()
            for line in (self._assigns, self._assigns_child, self._replies, self._replies_child):
                line.close()
            self._make_lines()
            self._loop.add_reader(self._replies, self.read_messages)
            for message in waiting:
                send(self._assigns, message)
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
            log.error("No process can be started: %s", error)
            self._start_later()


def _pause(failures: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE)
