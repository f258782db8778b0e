"""A child's lines to its worker: kept whole, whatever jobs do to descriptors.

A job may leave this process without a descriptor to put a large message into, so one is held back
for that. It may also close ours: then nothing that is said here could be believed. The same goes
for those of the event loop, with which all that comes after would fail.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from bide.logs import Log
from bide.worker.processes.wire import Reader, send

log = Log("bide.worker")

PATIENCE: Final = 2.0
"""Seconds in which a message is tried again that the system has no means for."""

PID: Final = 4
"""Bytes of the number of a process that hands its slot over."""

_PAUSE: Final = 0.02


class Lines:
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
