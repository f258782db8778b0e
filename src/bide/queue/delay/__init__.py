"""Data that comes out when it is due: queues of values instead of functions."""

from bide.queue.delay._async import AsyncDelayQueue
from bide.queue.delay._sync import DelayQueue
from bide.queue.delay.items import AsyncItem, AsyncItems, Item, ItemInfo, Items, PushResult

__all__ = [
    "AsyncDelayQueue",
    "AsyncItem",
    "AsyncItems",
    "DelayQueue",
    "Item",
    "ItemInfo",
    "Items",
    "PushResult",
]
