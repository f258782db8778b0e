"""Runs a command while other processes occupy every processor.

    python -m tests.support.busy make test

It exits with the command's exit code. The processes that it starts end with it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

BURN = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def occupied() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Occupy every processor with a process that never waits."""
    command = [sys.executable, "-c", BURN, str(os.getpid())]
    burners: list[subprocess.Popen[bytes]] = []
    try:
        burners += [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
        yield burners
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()


def main(command: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    with occupied():
        try:
            return subprocess.run(command, check=False).returncode
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
