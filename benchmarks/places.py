"""On which processors the server and a producer run.

Where both may run on any, the kernel decides, and two processes that take short turns may be given
one processor, or each its own: to be woken on another costs more than many a call takes. So what
takes short turns is measured with each at its own place, as if the server were on another machine;
or, where only the server's time is of interest, with both at one, so that it has no idle moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Place = Literal["apart", "together", "anywhere"]


@contextmanager
def placed(place: Place, server: int, producer: int) -> Iterator[None]:
    """Have the main threads of two processes run apart, on one processor, or anywhere.

    Threads that they have already stay free. With one processor there is no choice.
    """
    if place == "anywhere":
        yield
        return
    before = {process: os.sched_getaffinity(process) for process in (server, producer)}
    every = sorted(before[server] & before[producer])
    if len(every) > 1:
        os.sched_setaffinity(server, {every[0]})
        os.sched_setaffinity(producer, {every[0 if place == "together" else 1]})
    try:
        yield
    finally:
        for process, there in before.items():
            os.sched_setaffinity(process, there)
