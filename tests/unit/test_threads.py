"""Our threads are threads: none of their attributes hides one of Python's own.

One that did broke whatever forked beside it: Python stops the threads of the parent in the child.
"""

from __future__ import annotations

import threading

from bide.worker.heartbeat import Leases


def test_the_renewing_thread_hides_nothing_of_a_thread() -> None:
    leases = Leases("redis://127.0.0.1:1/0", "server", 1.0, list, lambda channel, id: None)
    try:
        own = {name for name in vars(leases) if callable(getattr(threading.Thread, name, None))}
        assert own == set()
    finally:
        leases._client.close()
