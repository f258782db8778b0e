"""Serving the page by itself, as `bide web` and `bide dev` do."""

from __future__ import annotations

import socket
from typing import Final

import uvicorn
from starlette.applications import Starlette

LAST_WORDS: Final = 5
"""Seconds that a request has to end, once the page is told to stop: a change of many jobs, or a
server that does not answer. Streams end at once."""


def serve(page: Starlette, listener: socket.socket) -> None:
    """Serve a page until a signal says to stop."""
    config = uvicorn.Config(
        page,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=LAST_WORDS,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listener])
