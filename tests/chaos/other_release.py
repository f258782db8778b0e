"""A later release of bide, for this one to share a queue with: a copy, changed where it must be.

It lays out results in another way, in a schema of its own, and knows a field of bodies and a form
of them that this release does not. A change that finds nothing to change fails the test.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import bide

MARK = b"\x07"
"""How a result begins in its schema."""

_CHANGES = [
    ("version.py", 'VERSION: Final = "', 'VERSION: Final = "9'),
    ("protocol/keys.py", "SCHEMA: Final = 1", "SCHEMA: Final = 2"),
    ("model/payload/body.py", "NEWEST: Final = 1", "NEWEST: Final = 2"),
    (
        "model/payload/body.py",
        "    needs: Annotated",
        "    mode: str | None = None\n    needs: Annotated",
    ),
    (
        "model/payload/body.py",
        "    codec: Codec = _MARKED.get(data[0]",
        "    data = data.removeprefix(b'\\x07')\n    codec: Codec = _MARKED.get(data[0]",
    ),
    (
        "protocol/lua/settle.lua",
        "      results_add[#results_add + 1] = data",
        "      local writes = redis.call('HMGET', meta, 'writes', 'schema')\n"
        "      if tonumber(writes[1] or writes[2] or 1) >= 2 then data = '\\7' .. data end\n"
        "      results_add[#results_add + 1] = data",
    ),
    (
        "protocol/lua/include/schemas.lua",
        "local schemas = {}",
        "local schemas = {}\n"
        "schemas[2] = {\n"
        "  hash = 'results',\n"
        "  up = function(v) return string.byte(v) ~= 7 and '\\7' .. v or nil end,\n"
        "  down = function(v) return string.byte(v) == 7 and string.sub(v, 2) or nil end,\n"
        "}",
    ),
]


def build(directory: Path) -> Path:
    """Write the later release; where it lies, for `PYTHONPATH`."""
    package = directory / "bide"
    shutil.copytree(
        Path(bide.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, old, new in _CHANGES:
        file = package / name
        text = file.read_text("utf-8")
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        file.write_text(text.replace(old, new), "utf-8")
    return directory
