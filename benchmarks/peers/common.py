"""What the files of the peers share: where the server is, the marks, the producer.

A job marks that it ran by writing the time into its own eight bytes of a file that all processes
have mapped: no system call, no lock, nothing for the server to do. It costs every peer alike.

    python -m benchmarks.peers.common rq

is the producer: it says what there is to know of the peer, and then, for each line that names a
worker and a range of numbers, enqueues jobs and says so.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import mmap
import os
import sys
import time
from typing import Any

URL = os.environ["BENCH_URL"]
"""The server: a `unix://` or `redis://` URL."""

QUEUE = "bench"


def _map() -> memoryview:
    fd = os.open(os.environ["BENCH_MARKS"], os.O_RDWR)
    try:
        return memoryview(mmap.mmap(fd, 0)).cast("q")
    finally:
        os.close(fd)


_marks = _map()


def mark(number: int) -> None:
    """Note that a job runs now, on a clock that all processes share."""
    _marks[number] = time.monotonic_ns()


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def main(name: str) -> None:
    """Enqueue what is asked for, until there is nobody to ask."""
    peer = importlib.import_module(f"benchmarks.peers.{name}")
    version = importlib.metadata.version(peer.ABOUT["package"])
    _say({**peer.ABOUT, "version": version, "workers": peer.WORKERS})
    for line in sys.stdin:
        worker, first, count = json.loads(line)
        peer.enqueue(range(first, first + count), worker)
        _say(count)


if __name__ == "__main__":
    main(sys.argv[1])
