"""Data that comes out when it is due: queues of values instead of functions."""

from bide.queue.delay._async import AsyncDelayQueue
from bide.queue.delay._sync import DelayQueue
from bide.queue.delay.items import AsyncItem, AsyncItems, Item, Items, ItemSeen, Pushed

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
