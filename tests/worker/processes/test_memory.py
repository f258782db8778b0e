"""Memory in large pages: nothing else about it changes."""

from __future__ import annotations

import os
import subprocess
import sys

LARGE = """
from bide.worker.processes.linux import use_huge_pages

held = [bytes([i % 251]) * 1000 for i in range(20_000)]
use_huge_pages()
assert held == [bytes([i % 251]) * 1000 for i in range(20_000)]
with open("/proc/self/smaps_rollup") as file:
    (large,) = [line.split()[1] for line in file if line.startswith("AnonHugePages:")]
print(int(large) > 8_000)
"""


def test_what_is_held_stays_as_it_is_and_takes_large_pages() -> None:
    told = subprocess.check_output([sys.executable, "-c", LARGE], text=True)
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert told == "True\n" or release < (6, 1)
