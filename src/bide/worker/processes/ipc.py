"""The messages between the worker, the fork server and the children, and their sockets.

`SOCK_SEQPACKET` delivers each message whole to one reader, so all children can read from one socket
and write to one. A larger message is written to a memory file, whose descriptor is sent.

A job may use up all descriptors of its process, so one is reserved for a large message. A job may
also close our descriptors. Then no message of this process can be trusted, so the process ends. The
same applies to the descriptors of the event loop, without which all later jobs would fail.

The job table is shared memory in which the worker sees which child runs which job. A child writes
its own row without a system call. The worker reads it at any time, and in particular after the
child's death. A row consists of aligned words. Each word is written atomically, and by one side
only.
"""

from __future__ import annotations

import array
import errno
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from bide import logs
from bide.logs import Log
from bide.model.job import Claimed
from bide.protocol.commands import text
from bide.protocol.commands.worker import Ended
from bide.worker.running_job import Missing

SMALL: Final = 65_536
"""Bytes of the largest message that is sent directly."""

_ROOM: Final = socket.CMSG_SPACE(4)


class Assign(msgspec.Struct, frozen=True, array_like=True):
    """A job for the first child that is free."""

    number: int
    queue: str
    claimed: Claimed
    claimed_at: float
    died: str = ""
    """How the child that ran the job died; the receiver only decides the outcome."""
    overran: bool = False
    """The child was killed because the job ran too long."""
    lost: bool = False
    """Another worker died while it held the job, as in `died`; the receiver only calls hooks."""
    has_failed: bool = False
    """The job has failed: it was lost too often to run again."""
    odd_id: bytes = b""
    """The job's id if it is not UTF-8, as another program may have written it."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """A child is ready to take jobs."""

    slot: int
    pid: int


class InitFailed(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """A child could not start: for instance, a resource could not be opened."""

    slot: int
    why: str


class Leaving(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """A child takes no more jobs, and closes its resources."""

    slot: int
    pid: int


class Decided(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """The outcome of a job whose callback runs now; it is final, even if the callback fails."""

    number: int
    ended: Ended


class JobDone(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """A job has ended, and its child is free."""

    number: int
    ended: Ended
    took: float
    started: float
    """When its first statement ran (`time.monotonic()`); 0 if none did."""
    missing: Missing = ""


class NoteAdded(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A log line or the progress of a running job."""

    number: int
    kind: str
    text: bytes


Reply = Ready | InitFailed | Leaving | Decided | JobDone | NoteAdded


class Spawned(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """The fork server has forked a child."""

    slot: int
    pid: int


class Exited(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A child has died."""

    slot: int
    pid: int
    status: int
    """The status that `os.waitpid` returns."""
    rss: int
    """Peak memory in bytes."""


class SpawnFailed(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """The fork server could not start, or could not fork a child."""

    why: str
    slot: int = -1


PoolEvent = Spawned | Exited | SpawnFailed


class Spawn(msgspec.Struct, frozen=True, array_like=True):
    """A request to fork a child for a slot."""

    slot: int


encode: Final = msgspec.msgpack.Encoder().encode
_decode_assign: Final = msgspec.msgpack.Decoder(Assign).decode
decode_reply: Final = msgspec.msgpack.Decoder(Reply).decode
decode_pool_event: Final = msgspec.msgpack.Decoder(PoolEvent).decode
decode_spawn: Final = msgspec.msgpack.Decoder(Spawn).decode


def encode_assign(assign: Assign) -> bytes:
    """Encode a job, even if its id is not UTF-8."""
    try:
        return encode(assign)
    except UnicodeEncodeError:
        claimed = assign.claimed
        id = claimed.id.encode("utf-8", "surrogateescape")
        return encode(replace(assign, claimed=replace(claimed, id=""), odd_id=id))


def decode_assign(message: bytes | memoryview) -> Assign:
    """Decode a message of `encode_assign`."""
    assign = _decode_assign(message)
    if not assign.odd_id:
        return assign
    claimed = replace(assign.claimed, id=text(assign.odd_id))
    return replace(assign, claimed=claimed, odd_id=b"")


def pair() -> tuple[socket.socket, socket.socket]:
    """Return a pair of blocking sockets, even if a module has changed the default time-out."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(True)
    return ends


def send(line: socket.socket, message: bytes) -> None:
    """Send a whole message; wait for room in the buffer, unless the socket is non-blocking.

    Raises:
        BlockingIOError: the buffer is full.
        BrokenPipeError: all readers have closed the socket.
        OSError: the memory file for a large message cannot be created.
    """
    if len(message) <= SMALL:
        line.send(message)
        return
    fd = os.memfd_create("bide-message")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(message)
        socket.send_fds(line, [b"+"], [fd])
    finally:
        os.close(fd)


class Reader:
    """Reads messages from a socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._buffer = bytearray(SMALL)
        self._view = memoryview(self._buffer)

    def read(self, flags: int = 0) -> bytes | memoryview | None:
        """Return the next message, valid until the next call; None if all writers have closed.

        Raises:
            BlockingIOError: the socket is non-blocking, and there is no message.
            OSError: a message is lost, because there was no descriptor to receive it with.
        """
        try:
            size, notes = self._receive(flags)
        except ConnectionResetError:
            # A writer closed the socket without reading all its messages. The error is reported
            # once, before the messages that it had written.
            size, notes = self._receive(flags)
        if notes:
            return _whole(notes)
        return self._view[:size] if size else None

    def _receive(self, flags: int) -> tuple[int, list[tuple[int, int, bytes]]]:
        size, notes, flags_received, _ = self._line.recvmsg_into([self._buffer], _ROOM, flags)
        if flags_received & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return size, notes


def _whole(notes: list[tuple[int, int, bytes]]) -> bytes:
    fds = array.array("i")
    for level, kind, data in notes:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    message = b""
    for fd in fds:
        with open(fd, "rb") as file:
            file.seek(0)
            message = file.read()
    return message


Executor = Literal["process", "fork"]


class Setting(NamedTuple):
    """The settings of a fork server: the first message to it.

    They are not on its command line, because all users of the machine can read that, and a URL may
    contain a password.
    """

    executor: Executor
    worker: str
    modules: list[str]
    also: list[str]
    """Modules to import but not to serve: they have registered tasks in the worker's process."""
    pickled: list[str]
    url: str | None
    prefix: str | None
    root: str
    """The prefix of the worker's keys."""
    signing_keys: str | None
    log: logs.Settings | None
    max_jobs: int | None
    max_rss: int | None


decode_setting: Final = msgspec.msgpack.Decoder(Setting).decode


log = Log("bide.worker")

PATIENCE: Final = 2.0
"""Seconds for which sending is retried while the system lacks memory or descriptors."""

PID: Final = 4
"""Bytes of a process id in the hand-over pipe."""

_PAUSE: Final = 0.02


class ChildPipes:
    """The sockets and the pipe of a child."""

    def __init__(self, assigns: socket.socket, replies: socket.socket, handover_pipe: int) -> None:
        self._assigns = Reader(assigns)
        self._replies = replies
        self._handover_pipe = handover_pipe
        self._reserve_of = assigns.fileno()
        self._reserve = -1
        fds = (assigns.fileno(), replies.fileno(), handover_pipe)
        self._known = [(fd, _inode(fd)) for fd in fds]

    def reserve_descriptor(self) -> None:
        """Reserve a descriptor for a time when no other is left; call it before children exist."""
        self._reserve = os.dup(self._reserve_of)

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Register the descriptors that are opened inside the context and stay open."""
        before = _open()
        yield
        self._known += [known for known in _open() if known not in before]

    @property
    def are_whole(self) -> bool:
        """Whether the registered descriptors still refer to the same files."""
        return all(_inode(fd) == inode for fd, inode in self._known)

    def receive(self) -> bytes | memoryview | None:
        """Wait for a job; return None if there will be no more jobs."""
        while True:
            try:
                return self._assigns.read()
            except BlockingIOError:
                self._block()

    def _block(self) -> None:
        """Set the sockets to blocking again: a job has changed that for all processes."""
        for fd, _ in self._known[:2]:
            os.set_blocking(fd, True)

    def send(self, message: bytes) -> bool:
        """Send a whole message; return whether the system had the memory and descriptors.

        If the worker or the sockets to it are gone, the process ends.
        """
        until = 0.0
        while True:
            try:
                self._send(message)
                return True
            except (BrokenPipeError, ConnectionResetError):
                os._exit(1)
            except BlockingIOError:
                self._block()
            except OSError as error:
                if error.errno == errno.ENOTCONN or not self.are_whole:
                    os._exit(1)
                until = until or time.monotonic() + PATIENCE
                if time.monotonic() > until:
                    log.error("%d bytes cannot be handed to the worker: %s", len(message), error)
                    return False
                time.sleep(_PAUSE)

    def hand_over(self) -> None:
        """Hand the slot over, so that the fork server starts another child before this one ends."""
        with suppress(OSError):  # then the fork server starts it when this child has ended
            os.write(self._handover_pipe, os.getpid().to_bytes(PID))

    def _send(self, message: bytes) -> None:
        try:
            send(self._replies, message)
        except OSError as error:
            if error.errno != errno.EMFILE or _inode(self._reserve) != _inode(self._reserve_of):
                raise
            os.close(self._reserve)
            try:
                send(self._replies, message)
            finally:
                with suppress(OSError):
                    self.reserve_descriptor()


def _open() -> list[tuple[int, int]]:
    """Return the open descriptors and their inodes, without the descriptor of the listing."""
    try:
        known = [(int(fd), _inode(int(fd))) for fd in os.listdir("/dev/fd")]
    except OSError:  # /dev/fd is not mounted
        return []
    return [(fd, inode) for fd, inode in known if inode]


def _inode(fd: int) -> int:
    """Return the inode of a descriptor; 0 if it is not open."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


_ROW: Final = 64
_WORD: Final = struct.Struct("<Q")
_TIME: Final = struct.Struct("<d")
_JOB, _BEGUN, _DEADLINE, _CANCEL = 0, 8, 16, 24


class JobTable:
    """The rows of all slots."""

    def __init__(self, fd: int) -> None:
        """Map a table that `create` returned."""
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)

    @staticmethod
    def create(rows: int) -> int:
        """Create an empty table; return the descriptor that maps it, here and in children."""
        fd = os.memfd_create("bide-table")
        os.ftruncate(fd, rows * _ROW)
        return fd

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._map) // _ROW

    def row(self, slot: int) -> ChildRow:
        """Return the row of a slot."""
        return ChildRow(self._map, slot * _ROW)

    def close(self) -> None:
        """Unmap the table."""
        self._map.close()


class ChildRow:
    """The row of one child."""

    __slots__ = ("_at", "_map")

    def __init__(self, map: mmap.mmap, at: int) -> None:
        self._map = map
        self._at = at

    def begin(self, number: int, now: float, deadline: float = 0.0) -> None:
        """Record the child's job; `now` is `time.monotonic()`, a clock that all processes share."""
        _TIME.pack_into(self._map, self._at + _DEADLINE, deadline)
        _TIME.pack_into(self._map, self._at + _BEGUN, now)
        _WORD.pack_into(self._map, self._at + _JOB, number)

    def limit(self, deadline: float) -> None:
        """Set the time by which the job must have ended."""
        _TIME.pack_into(self._map, self._at + _DEADLINE, deadline)

    def end(self) -> None:
        """Record that the child runs no job."""
        _WORD.pack_into(self._map, self._at + _JOB, 0)

    def request_cancel(self, number: int) -> None:
        """Request the child to cancel this job."""
        _WORD.pack_into(self._map, self._at + _CANCEL, number)

    @property
    def job(self) -> int:
        """The number of the running job; 0 for none."""
        return self._read(_WORD, _JOB)  # type: ignore[return-value]

    @property
    def begun(self) -> float:
        """When the child received the job."""
        return self._read(_TIME, _BEGUN)

    @property
    def deadline(self) -> float:
        """When the job must have ended; 0 while that is not known."""
        return self._read(_TIME, _DEADLINE)

    @property
    def cancel_requested(self) -> int:
        """The number of the job that was last requested to cancel; 0 for none."""
        return self._read(_WORD, _CANCEL)  # type: ignore[return-value]

    def _read(self, kind: struct.Struct, at: int) -> float:
        value: float = kind.unpack_from(self._map, self._at + at)[0]
        return value


LOST_AFTER: Final = 1.0
"""Seconds after which a received job that is in no row is lost, once a child died or stopped."""


class LostJobs:
    """Finds jobs that are not waiting, not in a row and not answered for too long."""

    def __init__(self) -> None:
        self._up_to = 0
        self._since: dict[int, float] = {}

    def __bool__(self) -> bool:
        """Whether jobs that may be lost are still unaccounted for."""
        return bool(self._up_to)

    def suspect(self, handed_out: Set[int]) -> None:
        """Watch these jobs: a child that may have received one of them cannot report any more."""
        self._up_to = max(handed_out, default=0)

    def find(self, unseen: Set[int], waiting: Set[int], now: float) -> list[int]:
        """Return the lost jobs: missing for longer than `LOST_AFTER`.

        Args:
            unseen: all jobs that were sent to children and are in no row.
            waiting: the jobs among them that may still wait for a child.
            now: `time.monotonic()`.
        """
        if not any(number <= self._up_to for number in unseen):
            self._up_to = 0
        self._since = {number: self._since.get(number, now) for number in unseen - waiting}
        return [number for number, since in self._since.items() if now - since > LOST_AFTER]
