"""The page of `bide dev`: served beside the worker, where its packages are installed.

`dev` listens, so that the address is known, and taken, before the page has started.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from typing import Final

PORT: Final = 8484
"""Where it is found, unless somebody else is there."""

_NEEDS: Final = ("jinja2", "starlette", "uvicorn")


def is_installed() -> bool:
    """Whether the packages that it needs are."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDS)


def listening() -> socket.socket:
    """A socket at this machine: at the usual port, else at any that is free."""
    try:
        return socket.create_server(("127.0.0.1", PORT))
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


def main() -> None:
    """Be the page: the program that `dev` starts. Whoever is at this machine may change things."""
    from bide.web import app
    from bide.web.serving import serve

    listener = socket.socket(fileno=int(sys.argv[-1]))
    serve(app(url=os.environ["BIDE_URL"], local_role="operator"), listener)
