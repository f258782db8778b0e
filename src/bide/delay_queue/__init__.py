"""Data that comes out when it is due: queues of values instead of functions."""

from bide.delay_queue.awaited import AsyncDelayQueue
from bide.delay_queue.blocking import DelayQueue
from bide.delay_queue.items import AsyncItem, AsyncItems, Item, Items, ItemSeen, Pushed

__all__ = [
    "AsyncDelayQueue",
    "AsyncItem",
    "AsyncItems",
    "DelayQueue",
    "Item",
    "ItemSeen",
    "Items",
    "Pushed",
]
