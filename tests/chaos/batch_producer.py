"""Produces items in a process of its own: `python -m tests.chaos.batch_producer URL NAME COUNT`.

Item after item goes to one of three keys; what was acknowledged is printed, a line each.
"""

from __future__ import annotations

import sys

from bide import Queue


def main(url: str, name: str, count: int) -> None:
    queue = Queue("mail", url=url)
    for i in range(count):
        queue.batch(
            f"key-{i % 3}",
            [name, i],
            into="tests.support.ledger_jobs:batched",
            quiet="50ms",
            max_wait="200ms",
            max_size=50,
        )
        print(i, flush=True)
    queue.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
