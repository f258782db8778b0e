"""Data that comes out when it is due: queues of values instead of functions."""

from bide.queue.delay._async.items import AsyncItem, AsyncItems
from bide.queue.delay._async.queue import AsyncDelayQueue
from bide.queue.delay._sync.items import Item, Items
from bide.queue.delay._sync.queue import DelayQueue
from bide.queue.delay.items import ItemInfo, PushResult

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
