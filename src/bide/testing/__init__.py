"""For tests of code that uses bide; with pytest, by the fixtures `bide_test` and `bide_eager`.

    with bide.testing.start() as bed:       a real server, the clock in the test's hand
        checkout(order)
        bed.assert_enqueued(remind, order.id, delay="24h")
        bed.run(until="24h")

    with bide.testing.eager():              no server: each job runs where it is enqueued
        checkout(order)

`bed` is what a test holds: `looking` asserts jobs and `scheduling` schedules, `given` reads what a
test names as a task, `expect` compares. `server` is the process's server and `store` the bed's part
of it; `work` claims and settles, `perform` carries one job from its claim to its outcome, `stage`
is where it runs. `eager` and `answers` do without a server; `registry` puts back what a test has
registered. The plugin of pytest is `_bide_pytest`; `bide.queue.binding` asks it for a permit.
"""

from bide.testing.bed import TestBed, isolated_registry, start
from bide.testing.eager import Eager, eager
from bide.testing.job_seen import JobSeen

__all__ = ["Eager", "JobSeen", "TestBed", "eager", "isolated_registry", "start"]
