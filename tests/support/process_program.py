"""A worker as a program: URL EXECUTOR [burst] [text|json|kv]."""

from __future__ import annotations

import logging
import sys
from typing import Any

from bide import Queue, Worker, logs
from tests.support.process_bench import HOSTILE, MODULE


def main() -> None:
    url, *rest = sys.argv[1:]
    executor: Any = rest.pop(0)
    burst = "burst" in rest
    format = next((word for word in rest if word in ("text", "json", "kv")), "text")
    logs.setup(format, logging.DEBUG)
    queue = Queue("work", url=url)
    Worker(queue, modules=[MODULE, HOSTILE], executor=executor, concurrency=2, lease=1).run(
        burst=burst
    )


if __name__ == "__main__":
    main()
