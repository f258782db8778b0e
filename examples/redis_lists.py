"""Task queues as one builds them on Redis lists: JSON messages, callbacks by name, delay, fairness.

A shop tells sellers what they sold. Who enqueues needs no function, only its name and its
arguments; a job whose name nobody knows waits for a worker that does, and holds up no other. It
prints:

    to ann: your pot was sold to cid for 12
    to bob: your pan was sold to dee for 30
    to eve: thank you for your visit
    send_fax is delayed: No task is named 'send_fax' here
    of the first 20: 10 loud, 10 quiet
"""

import time
from collections import Counter

import bide

queue = bide.Queue("email")
runs: list[str] = []


@queue.task(name="send_sold_email")
def send_sold_email(seller: str, item: str, price: int, buyer: str) -> str:
    return f"to {seller}: your {item} was sold to {buyer} for {price}"


@queue.task(name="send_thanks")
def send_thanks(visitor: str) -> str:
    return f"to {visitor}: thank you for your visit"


@queue.task(name="count")
async def count() -> None:
    runs.append(bide.current_job().queue)


def execute_later(queue: bide.Queue, name: str, args: list[object], delay: float = 0) -> str:
    return queue.enqueue_call(name, args, delay=delay).id


def main() -> None:
    sold = [["ann", "pot", 12, "cid"], ["bob", "pan", 30, "dee"]]
    ids = [execute_later(queue, "send_sold_email", sale) for sale in sold]
    later = execute_later(queue, "send_thanks", ["eve"], delay=0.2)
    unknown = queue.enqueue("send_fax", "fay")

    for id in [*ids, later]:
        print(queue.fetch(id).wait(timeout=30))
    while (error := unknown.refresh().error) is None:
        time.sleep(0.01)
    print(f"send_fax is {unknown.state}: {error.message.partition(' (')[0]}")

    # One producer is a hundred times as loud as the other; a fair worker gives both the same.
    for name, jobs in (("loud", 1000), ("quiet", 10)):
        each = bide.Queue(name)
        each.enqueue_many([each.prepare("count") for _ in range(jobs)])
    bide.Worker(["loud", "quiet"], strategy="fair", concurrency=1).run(burst=True)
    first = Counter(runs[:20])
    print(f"of the first 20: {first['loud']} loud, {first['quiet']} quiet")
