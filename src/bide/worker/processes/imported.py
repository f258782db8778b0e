"""What imports have left open that children cannot have, or would have to share."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Container
from contextlib import suppress

log = logging.getLogger("bide.worker")


def warn(ours: Container[int]) -> None:
    """Say so in the log; `ours` are descriptors that are meant to be there."""
    threads = _threads()
    if threads:
        log.warning(
            "what was imported has started threads, which no child has: %s; start them in a "
            "resource",
            ", ".join(threads),
        )
    peers = _peers(ours)
    if peers:
        log.warning(
            "what was imported has opened connections, which all children share: to %s; open them "
            "in a resource, unless they are made again after a fork, as those of bide and redis-py "
            "are",
            ", ".join(peers),
        )


def _threads() -> list[str]:
    """The names of all threads but this one."""
    me, names = threading.get_native_id(), {t.native_id: t.name for t in threading.enumerate()}
    with suppress(OSError):
        others = sorted(int(name) for name in os.listdir("/proc/self/task"))
        return [
            names.get(other, f"one that is not Python's ({other})")
            for other in others
            if other != me
        ]
    return [name for id, name in names.items() if id != me]


def _peers(ours: Container[int]) -> list[str]:
    """Whom sockets are connected to by streams."""
    found = []
    with suppress(OSError):
        for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
            if fd not in ours:
                with suppress(OSError):
                    found.append(_peer(fd))
    return found


def _peer(fd: int) -> str:
    """Whom a descriptor is connected to.

    Raises:
        OSError: nobody, or not by a stream.
    """
    with socket.socket(fileno=os.dup(fd)) as line:
        if line.type != socket.SOCK_STREAM:
            raise OSError("no stream")
        peer = line.getpeername()
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer) or "a socket pair"
