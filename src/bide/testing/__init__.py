"""For tests of code that uses bide; with pytest, by the fixtures `bide_test` and `bide_eager`.

    with bide.testing.start() as bed:       a real server, the clock in the test's hand
        checkout(order)
        bed.assert_enqueued(remind, order.id, delay="24h")
        bed.run(until="24h")

    with bide.testing.eager():              no server: each job runs where it is enqueued
        checkout(order)

`bed` is what a test holds; `schedules` and `expect` are its parts that find and assert schedules
and jobs. `runner` claims, runs and settles jobs, and holds the resources that they open. `eager`
does without a server, and runs jobs by the same steps. The plugin of pytest is `_bide_pytest`;
`bide.queue.binding` asks it for a permit.
"""

from bide.testing.bed import TestBed, isolated_registry, start
from bide.testing.eager import Eager, eager
from bide.testing.expect import JobSeen

__all__ = ["Eager", "JobSeen", "TestBed", "eager", "isolated_registry", "start"]
