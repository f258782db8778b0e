"""A reply is lost, and the call is made again: nothing happens twice, and nothing is left out."""

from __future__ import annotations

import pytest
import redis
import rq
from redis.backoff import NoBackoff
from redis.retry import Retry

from bide.contrib.rq import DelayQueue
from bide.contrib.rq.queue import RqKeys
from bide.contrib.rq.timer import Mover
from tests.contrib.rq import jobs
from tests.contrib.rq.delay_rq import OldQueue
from tests.contrib.rq.rqs import burst, like_rq
from tests.support.proxy import Proxy


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
        kept_on = {"retry": Retry(NoBackoff(), 3), "retry_on_error": [redis.ConnectionError]}
        with redis.Redis.from_url(proxy.url, protocol=2, **kept_on) as poor:
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


def test_a_move_whose_reply_is_lost_is_done_once(one_url: str) -> None:
    with Proxy(one_url) as proxy, like_rq(one_url) as direct:
        queue, old = DelayQueue("mail", direct), OldQueue("mail", direct)
        made = []
        for number in range(150):
            kind = old if number % 2 else queue
            job = queue.create_job(jobs.write_down, ("ledger",))
            made.append(kind.enqueue_delay_job(job, 1 + number))
        stays = rq.Queue("other", direct).create_job(jobs.add, (1,))
        stays.save()
        direct.zadd(queue.delay_key, {stays.id: 0})
        mover = Mover(RqKeys.of(queue))
        with redis.Redis.from_url(proxy.url, protocol=2, retry=Retry(NoBackoff(), 0)) as poor:
            poor.ping()
            proxy.lose_reply(1, 2)  # of the call by the script's name, and by its text
            for _ in range(2):
                with pytest.raises(redis.ConnectionError):
                    mover.move(poor)
            while mover.move(poor)[1]:
                pass
        assert proxy.lost == 2
        assert queue.job_ids == [job.id for job in made]
        assert direct.zrange(queue.delay_key, 0, -1) == [stays.id.encode()]
        rq.SimpleWorker([queue], connection=direct).work(burst=True)
        assert set(direct.hvals("ledger")) == {b"1"}
        assert direct.hlen("ledger") == 150
