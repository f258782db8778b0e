"""For tests of code that uses bide; with pytest, by the fixtures `bide_test` and `bide_eager`.

    with bide.testing.start() as bed:       a real server, the clock in the test's hand
        checkout(order)
        bed.assert_enqueued(remind, order.id, delay="24h")
        bed.run(until="24h")

    with bide.testing.eager():              no server: each job runs where it is enqueued
        checkout(order)

`bed` is what a test holds; `server` is the process's server and `store` the bed's part of it;
`work` claims and settles, `perform` carries one job from its claim to its outcome, `stage` is
where it runs; `expect` compares what was enqueued; `eager` and `answers` do without a server;
`registry` puts back what a test has registered.
"""

from bide.testing.bed import TestBed, start
from bide.testing.eager import Eager, eager
from bide.testing.registry import isolated_registry
from bide.testing.seen import JobSeen

__all__ = ["Eager", "JobSeen", "TestBed", "eager", "isolated_registry", "start"]
