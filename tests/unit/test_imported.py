"""Each module that `import bide` loads delays the start of a program: a list pins them.

`python -m tests.unit.test_imported > tests/unit/imported.txt` writes the list.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).with_name("imported.txt")
LOADED = """
import sys
sys.modules["opentelemetry"] = None  # redis-py loads it where it is installed
import redis, redis.asyncio, hiredis, msgspec
before = set(sys.modules)
import bide
print(*sorted(set(sys.modules) - before), sep="\\n")
"""


def loaded() -> str:
    """The modules that `import bide` loads beside its client library and msgspec."""
    command = [sys.executable, "-c", LOADED]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_an_import_loads_what_was_decided() -> None:
    found, decided = loaded().split(), LIST.read_text("utf-8").split()
    own = [name for name in found if name.startswith("bide")]
    assert own == [name for name in decided if name.startswith("bide")]
    # Which parts of the standard library these need differs from one Python to the next.
    for heavy in ("tomllib", "difflib", "shlex", "click", "rich", "uvloop", "multiprocessing"):
        assert heavy not in found


if __name__ == "__main__":
    print("\n".join(name for name in loaded().split() if name.startswith("bide")))
