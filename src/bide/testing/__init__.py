"""Tools for tests of code that uses bide; for pytest, the fixtures `bide_test` and `bide_eager`.

    with bide.testing.start() as bed:       # a real server, and a clock that the test moves
        checkout(order)
        bed.assert_enqueued(remind, order.id, delay="24h")
        bed.run(until="24h")

    with bide.testing.eager():              # no server: each job runs inside its enqueue
        checkout(order)

`bed` has the test bed and its assertions about schedules, and `expect` those about jobs. `runner`
claims, runs and settles jobs, and holds their open resources. `eager` runs jobs by the same steps
without a server. `_bide_pytest` is the plugin for pytest; `bide.queue.binding` asks it for
permission to use a server.
"""

from bide.testing.bed import TestBed, isolated_registry, start
from bide.testing.eager import Eager, eager
from bide.testing.expect import JobSeen

__all__ = ["Eager", "JobSeen", "TestBed", "eager", "isolated_registry", "start"]
