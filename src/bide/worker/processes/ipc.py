"""What worker and children say to each other: messages over sockets that keep their bounds.

`SOCK_SEQPACKET` hands each message whole to one reader, so all children may read from one socket
and write to one. A message that is too large for that travels as a descriptor of memory that holds
it.

A job may leave this process without a descriptor to put a large message into, so one is held back
for that. It may also close ours: then nothing that is said here could be believed. The same goes
for those of the event loop, with which all that comes after would fail.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from bide import logs
from bide.logs import Log
from bide.model.job import Claimed
from bide.protocol.command import text
from bide.protocol.commands.worker import Outcome

SMALL: Final = 65_536
"""Bytes of the largest message that is sent as it is."""

_ROOM: Final = socket.CMSG_SPACE(4)
_BUFFER: Final = 1 << 20


class Assign(msgspec.Struct, frozen=True, array_like=True):
    """A job for whichever child is free first."""

    number: int
    queue: str
    claimed: Claimed
    claimed_at: float
    died: str = ""
    """Its child has died, in this way: only say what becomes of it."""
    overran: bool = False
    """The child was killed because the job ran too long."""
    lost: bool = False
    """Another worker has died under it, as `died` says: only tell the hooks."""
    has_failed: bool = False
    """The job was lost too often to be run again."""
    odd_id: bytes = b""
    """The job's id if it is not UTF-8, as another program may have written it: no text has it."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """A child will take jobs."""

    slot: int
    pid: int


class InitFailed(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """A child could not begin: a resource could not be opened, say."""

    slot: int
    why: str


class Leaving(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """A child takes no more jobs, and closes what it has open."""

    slot: int
    pid: int


class Decided(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """How a job ended, whose callback runs now: whatever becomes of that, this stands."""

    number: int
    ended: tuple[Outcome, str, bytes]


class Done(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """A job has ended, and its child is free."""

    number: int
    ended: tuple[Outcome, str, bytes]
    took: float
    missing: bool = False
    """Its task is not served here."""


class NoteAdded(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Something that a job says of itself."""

    number: int
    kind: str
    text: bytes


Reply = Ready | InitFailed | Leaving | Decided | Done | NoteAdded


class Spawned(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """The nursery has made a child."""

    slot: int
    pid: int


class Exited(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A child has died."""

    slot: int
    pid: int
    status: int
    """As `os.waitpid` has it."""
    rss: int
    """The most memory it had, in bytes."""


class SpawnFailed(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """The nursery could not begin, or could make no child."""

    why: str
    slot: int = -1


News = Spawned | Exited | SpawnFailed


class Spawn(msgspec.Struct, frozen=True, array_like=True):
    """Make a child for a slot."""

    slot: int


encode: Final = msgspec.msgpack.Encoder().encode
_decode_order: Final = msgspec.msgpack.Decoder(Assign).decode
decode_reply: Final = msgspec.msgpack.Decoder(Reply).decode
decode_news: Final = msgspec.msgpack.Decoder(News).decode
decode_spawn: Final = msgspec.msgpack.Decoder(Spawn).decode


def encode_assign(order: Assign) -> bytes:
    """Encode an order, also of a job whose id is not UTF-8."""
    try:
        return encode(order)
    except UnicodeEncodeError:
        claimed = order.claimed
        id = claimed.id.encode("utf-8", "surrogateescape")
        return encode(replace(order, claimed=claimed._replace(id=""), odd_id=id))


def decode_assign(message: bytes | memoryview) -> Assign:
    """Decode what `encode_order` made."""
    order = _decode_order(message)
    if not order.odd_id:
        return order
    claimed = order.claimed._replace(id=text(order.odd_id))
    return replace(order, claimed=claimed, odd_id=b"")


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a line, which block, whatever modules have said of all sockets."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(True)
    return ends


def send(line: socket.socket, message: bytes) -> None:
    """Send a message whole; waits for room, unless the line does not block.

    Raises:
        BlockingIOError: there is no room now.
        BrokenPipeError: nobody listens any more.
        OSError: a large message cannot be put into memory that can be handed over.
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
    """Reads messages from a line."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._buffer = bytearray(SMALL)
        self._view = memoryview(self._buffer)

    def read(self, flags: int = 0) -> bytes | memoryview | None:
        """The next message, valid until the next call; None when all writers have gone.

        Raises:
            BlockingIOError: there is none now, on a line that does not block.
            OSError: there was one, and no descriptor to take it with: it is lost.
        """
        try:
            size, notes = self._receive(flags)
        except ConnectionResetError:
            # A writer has gone without reading all that it was sent: this is said once, ahead of
            # what it had written.
            size, notes = self._receive(flags)
        if notes:
            return _whole(notes)
        return self._view[:size] if size else None

    def _receive(self, flags: int) -> tuple[int, list[tuple[int, int, bytes]]]:
        size, notes, told, _ = self._line.recvmsg_into([self._buffer], _ROOM, flags)
        if told & socket.MSG_CTRUNC:
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
    """What a nursery needs to know: the first message to it.

    Not on its command line, which all users of the machine can read: a URL may have a password.
    """

    executor: Executor
    worker: str
    modules: list[str]
    also: list[str]
    """Modules to import without serving them: the worker's process has tasks that they register."""
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
"""Seconds in which a message is tried again that the system has no means for."""

PID: Final = 4
"""Bytes of the number of a process that hands its slot over."""

_PAUSE: Final = 0.02


class ChildPipes:
    """Where jobs come from, and where what becomes of them goes to."""

    def __init__(self, orders: socket.socket, replies: socket.socket, handing: int) -> None:
        self._orders = Reader(orders)
        self._replies = replies
        self._handing = handing
        self._spare_of = orders.fileno()
        self._spare = -1
        fds = (orders.fileno(), replies.fileno(), handing)
        self._known = [(fd, _inode(fd)) for fd in fds]

    def hold_back(self) -> None:
        """Have a descriptor for the time when there is no other; before there are children."""
        self._spare = os.dup(self._spare_of)

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Have what is opened here, and stays open, be known as ours."""
        before = _open()
        yield
        self._known += [known for known in _open() if known not in before]

    @property
    def are_whole(self) -> bool:
        """Whether the descriptors are still what they were."""
        return all(_inode(fd) == inode for fd, inode in self._known)

    def receive(self) -> bytes | memoryview | None:
        """Wait for a job; None when there will be none any more."""
        while True:
            try:
                return self._orders.read()
            except BlockingIOError:
                self._block()

    def _block(self) -> None:
        """Have the lines block again: a job has said otherwise for all that share them."""
        for fd, _ in self._known[:2]:
            os.set_blocking(fd, True)

    def send(self, message: bytes) -> bool:
        """Send a message whole; whether the system had the means.

        Without a worker, or lines to it, there is nothing left to do here, and the process ends.
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
        """Let the nursery have another child in the slot: this one has nothing left but to end."""
        with suppress(OSError):  # then it hears of this one's end
            os.write(self._handing, os.getpid().to_bytes(PID))

    def _send(self, message: bytes) -> None:
        try:
            send(self._replies, message)
        except OSError as error:
            if error.errno != errno.EMFILE or _inode(self._spare) != _inode(self._spare_of):
                raise
            os.close(self._spare)
            try:
                send(self._replies, message)
            finally:
                with suppress(OSError):
                    self.hold_back()


def _open() -> list[tuple[int, int]]:
    """The descriptors that are open and what they are of, without that of the listing."""
    try:
        known = [(int(fd), _inode(int(fd))) for fd in os.listdir("/dev/fd")]
    except OSError:  # nothing is mounted there
        return []
    return [(fd, inode) for fd, inode in known if inode]


def _inode(fd: int) -> int:
    """What a descriptor is of; 0 for nothing."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0
