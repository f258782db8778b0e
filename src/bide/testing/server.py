"""The server of this process's tests: started when one first needs it, ended with the process."""

from __future__ import annotations

import atexit
import threading

from bide.embedded import Server

_lock = threading.Lock()
_server: Server | None = None


def url() -> str:
    """The server's address.

    Each process has a server of its own, so that tests may run in several (pytest-xdist).

    Raises:
        ServerNotFound: there is none to start; the message says how to get one.
        ServerError: it did not start.
    """
    global _server
    with _lock:
        if _server is None:
            _server = Server.start()
            atexit.register(_server.stop)
        return _server.url
