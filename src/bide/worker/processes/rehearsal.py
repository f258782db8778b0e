"""A job that does nothing, run in the nursery as a child runs it, before there are children.

What runs for the first time looks up attributes class by class, makes caches, and has memory made
its own. A child that runs one job does all of that for the first time, and has to copy a page of
the nursery's for most of it. What the nursery has gone through itself, its children find done.

It happens before anything of the users' is imported: nothing of theirs surrounds it.
"""

from __future__ import annotations

import os
import time
from typing import Final

from bide.ids import new_id
from bide.job import Claimed
from bide.payload.codec import Body, encode_body
from bide.task import Served
from bide.worker.processes.child import Child
from bide.worker.processes.table import Table
from bide.worker.processes.wire import Order, Setting, encode, pair, send

TIMES: Final = 12
"""Until Python has seen enough of it."""


def nothing(number: int) -> None:
    """What is rehearsed."""


def rehearse(setting: Setting) -> None:
    """Run a job that does nothing, here."""
    body = encode_body(Body(f"{__name__}:{nothing.__name__}", [1]))
    fd = Table.create(1)
    row = Table(fd).row(0)
    os.close(fd)
    for number in range(1, TIMES + 1):
        (orders, orders_in), (replies, replies_in) = pair(), pair()
        with orders, orders_in, replies, replies_in:
            child = Child(orders, replies_in, replies_in.fileno(), Served([__name__]), setting)
            claimed = Claimed(new_id(), body, 1, 1, 0, 1, 1)
            send(orders_in, encode(Order(number, "rehearsal", claimed, time.monotonic())))
            child.live(0, row)
