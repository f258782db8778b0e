"""RQ's client library repeats what had no reply; a repeat of an enqueue changes nothing."""

from __future__ import annotations

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bide.contrib.rq import DelayQueue
from tests.contrib.rq import jobs
from tests.contrib.rq.rqs import burst, like_rq
from tests.faults.proxy import Proxy


@pytest.mark.parametrize("options", [{}, {"unique": True}])
@pytest.mark.parametrize("meanwhile", ["delayed", "moved"])
def test_an_enqueue_whose_reply_is_lost_is_done_once(
    one_url: str, options: dict[str, bool], meanwhile: str
) -> None:
    with Proxy(one_url) as proxy, like_rq(one_url) as direct:
        there = DelayQueue("mail", direct)

        def while_it_repeats() -> None:
            scores.append(direct.zscore(there.delay_key, "one"))
            if meanwhile == "moved":  # as far as the delay is concerned
                assert there.reschedule("one", 0)
                burst(there)

        scores: list[float | None] = []
        with redis.Redis.from_url(proxy.url, protocol=2, retry=Retry(NoBackoff(), 3)) as poor:
            queue = DelayQueue("mail", poor)
            queue.get_redis_server_version()  # asked once: what follows is the script alone
            queue.enqueue(jobs.add, 1, delay=60, job_id="first")  # loads it
            proxy.lose_reply(1, then=while_it_repeats)
            job = queue.enqueue(jobs.add, 1, delay=60, job_id="one", **options)
        assert proxy.lost == 1
        assert scores[0] is not None
        if meanwhile == "delayed":
            assert direct.zscore(there.delay_key, "one") == scores[0]
        else:
            assert there.delayed_until("one") is None
            assert there.job_ids == [job.id]
