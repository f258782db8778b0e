"""A producer as a process of its own: `python -m tests.chaos.produce URL AT_US COUNT SEED`.

It adds COUNT jobs, all due at one moment, of three priorities, one in a hundred to be retried.
"""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime

from bide import Queue, Retry
from bide.client.config import override
from bide.protocol.scripts import TEST_CLOCK

TASK = "tests.support.ledger_jobs:listed"


def main(url: str, at_us: int, count: int, seed: int) -> None:
    dice = random.Random(seed)
    numbers = iter(range(count))
    at = datetime.fromtimestamp(at_us // 1_000_000, UTC)
    queue = Queue("mail", url=url)
    for start in range(0, count, 5_000):
        queue.enqueue_many(
            [
                queue.prepare(
                    TASK,
                    [dice.random() < 0.01, seed, next(numbers)],
                    at=at,
                    priority=dice.choice([0, 5, 5, 5, 9]),
                    retry=Retry(1, "fixed", base=0),
                )
                for _ in range(start, min(count, start + 5_000))
            ]
        )
    queue.close()


if __name__ == "__main__":
    with override(clock=TEST_CLOCK):
        main(sys.argv[1], *map(int, sys.argv[2:]))
