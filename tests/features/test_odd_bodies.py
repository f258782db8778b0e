"""A body that another program wrote with a number that cannot be meant ends its own job only."""

from __future__ import annotations

import pytest

from bide import Queue, State
from bide.protocol.commands.enqueue import Prepared
from tests.support import jobs
from tests.support.workers import burst


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd", ['"keep":1e13', '"keep":-1', '"timeout":0', '"timeout":-1', '"timeout":1e300']
)
def test_the_worker_lives_on_and_the_job_says_why(url: str, odd: str) -> None:
    queue = Queue("work", url=url)
    good = queue.prepare(jobs.add, [1])
    body = good.body.replace(b"{", b"{" + odd.encode() + b",", 1)
    (bad,) = queue.enqueue_many([Prepared("bad", "+0", 9, body)])
    (after,) = queue.enqueue_many([good])
    assert burst(queue) == 2
    assert (bad.refresh().state, after.refresh().state) == (State.FAILED, State.COMPLETED)
    assert bad.error is not None
    assert bad.error.type == "bide.PayloadError"
    assert "not one of bide's: Expected `float`" in bad.error.message
    queue.close()
