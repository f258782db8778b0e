"""An order that is not paid within thirty minutes is cancelled.

Placing an order enqueues its cancellation; a payment takes that job back. Thirty minutes are
played in one and a half seconds. It prints:

    order 2: paid
    order 3: paid
    order 1: not paid in time, cancelled
    order 4: not paid in time, cancelled
    order 4: the payment came too late, and is sent back
    2 cancelled, 2 run
"""

import bide

MINUTE = 0.05  # seconds

queue = bide.Queue("order-desk")


@queue.task
def cancel_unpaid(order: int) -> str:
    return f"order {order}: not paid in time, cancelled"


def place(order: int) -> bide.Job[str]:
    # The id is made from the order, so that a payment can find the job, and a repeated request
    # does not make a second one.
    return cancel_unpaid.options(delay=30 * MINUTE, job_id=f"unpaid-{order}").enqueue(order)


def pay(order: int) -> str:
    if queue.cancel(f"unpaid-{order}"):
        return f"order {order}: paid"
    return f"order {order}: the payment came too late, and is sent back"


def main() -> None:
    jobs = {order: place(order) for order in (1, 2, 3, 4)}
    print(pay(2))
    print(pay(3))
    for order in (1, 4):
        print(jobs[order].wait(timeout=30))
    print(pay(4))
    counts = queue.counts()
    print(f"{counts.cancelled} cancelled, {counts.completed} run")
