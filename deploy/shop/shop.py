"""A small application; put your own in its place."""

from bide import Queue

queue = Queue("orders")


@queue.task
def cancel_unpaid(order_id: int) -> str:
    """Cancel an order that was not paid."""
    return f"order {order_id} was not paid, and is cancelled"
