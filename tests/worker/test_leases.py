"""Renewing leases: until the time-out and its grace, and whatever goes wrong meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing

import pytest
import redis
from msgspec.structs import replace

from bide import Queue
from bide.client import blocking
from bide.logs import JOB_FIELDS
from bide.model.payload.body import Body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.keys import Keys, keys_of
from bide.protocol.scripts import SERVER_CLOCK
from bide.worker.heartbeat import GRACE, Leases
from bide.worker.queue_state import QueueState
from bide.worker.running_job import RunningJob
from tests.support import jobs
from tests.support.eventually import PATIENCE
from tests.support.proxy import Proxy
from tests.support.workers import Later, at_work, eventually

KEYS = keys_of("mail")
LEASE = 60.0
LEASE_US = 60_000_000


@pytest.fixture
def job(one_url: str) -> RunningJob:
    """A job under a lease, claimed a lease ago."""
    return claimed_of(KEYS, one_url)


def claimed_of(keys: Keys, url: str) -> RunningJob:
    """The same, of any queue."""
    client = blocking.Client(url)
    client.run(
        enqueue_commands.enqueue(keys, [enqueue_commands.prepare(Body("app:task"), job_id="a")])
    )
    (claimed,) = client.run(worker_commands.claim(keys, "w1", 1, 1, LEASE_US, 0)).jobs
    client.close()
    return RunningJob(
        QueueState(keys, "w1", LEASE_US), claimed, time.monotonic() - LEASE, lambda: None
    )


@pytest.mark.parametrize(("ago", "renewed"), [(0, True), (GRACE / 2, True), (GRACE + 1, False)])
def test_a_lease_is_renewed_until_the_time_out_and_its_grace(
    job: RunningJob, one_url: str, ago: float, renewed: bool
) -> None:
    job.deadline = time.monotonic() - ago
    with redis.Redis.from_url(one_url) as direct:
        before = direct.zscore(KEYS["active"], "a")
        leases = Leases(one_url, SERVER_CLOCK, LEASE, lambda: [job], lambda channel, id: None)
        leases._renew()
        assert (direct.zscore(KEYS["active"], "a") != before) == renewed


def renew(job: RunningJob, url: str) -> list[tuple[str, str]]:
    """Renew once; what was said of jobs that are to end."""
    heard: list[tuple[str, str]] = []
    leases = Leases(url, SERVER_CLOCK, LEASE, lambda: [job], lambda *what: heard.append(what))
    leases._renew()
    return heard


def test_a_job_that_was_asked_to_stop_hears_it_with_its_lease(
    job: RunningJob, one_url: str
) -> None:
    assert renew(job, one_url) == []
    with redis.Redis.from_url(one_url) as direct:
        direct.zadd(KEYS["asked"], {"a": 1})
    assert renew(job, one_url) == [(KEYS["asked"], "a")]


def test_a_lease_that_has_passed_to_another_is_told_of_once(
    job: RunningJob, one_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    job.claimed = replace(job.claimed, token=job.claimed.token - 1)
    for _ in range(2):
        renew(job, one_url)
    assert job.lost
    (record,) = [one for one in caplog.records if "has passed to another" in one.getMessage()]
    assert [getattr(record, name) for name in JOB_FIELDS] == ["a", 1, "app:task", "mail"]


def leases_of(jobs: Sequence[RunningJob], direct: redis.Redis) -> list[float | None]:
    """When the leases end, by the server's clock."""
    return [direct.zscore(job.queue_state.keys["active"], "a") for job in jobs]


def test_a_queue_whose_node_does_not_answer_delays_the_renewal_of_no_other(
    one_url: str, direct: redis.Redis, proxy: Proxy
) -> None:
    """No reply has come, of the first queue either, and the leases of all are renewed."""
    held = [claimed_of(keys_of(name), one_url) for name in ("mail", "other", "third")]
    leases = Leases(proxy.url, SERVER_CLOCK, LEASE, lambda: held, lambda channel, id: None)
    leases._client.close()
    leases._client = blocking.Client(proxy.url, retry_for=0, reply_timeout=2 * PATIENCE)
    leases._renew()  # the server has the script from now on
    before = leases_of(held, direct)
    proxy.hold()
    renewing = Later(leases._renew)
    try:
        eventually(
            lambda: all(
                was != now for was, now in zip(before, leases_of(held, direct), strict=True)
            )
        )
    finally:
        proxy.deliver()
    renewing.result()
    leases._client.close()


def test_a_queue_whose_answer_is_an_error_costs_no_other_its_leases(
    one_url: str, direct: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good, lost = held = [claimed_of(keys_of(name), one_url) for name in ("bad", "mail", "z")]
    lost.claimed = replace(lost.claimed, token=lost.claimed.token - 1)
    direct.delete(bad.queue_state.keys["active"])
    direct.set(bad.queue_state.keys["active"], "of another program")
    before = leases_of([good], direct)
    Leases(one_url, SERVER_CLOCK, LEASE, lambda: held, lambda channel, id: None)._renew()
    assert leases_of([good], direct) != before
    assert (bad.lost, good.lost, lost.lost) == (False, False, True)
    told = [one.getMessage() for one in caplog.records if "could not be renewed" in one.message]
    assert [text.partition(":")[0] for text in told] == [
        "The leases of queue bad could not be renewed"
    ]


def test_a_server_that_cannot_be_reached_costs_a_line_for_each_queue(
    one_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = [claimed_of(keys_of(name), one_url) for name in ("mail", "other")]
    nobody = "redis://127.0.0.1:1/0"
    Leases(nobody, SERVER_CLOCK, LEASE, lambda: held, lambda channel, id: None)._renew()
    assert [one.getMessage().partition(" could")[0] for one in caplog.records] == [
        "The leases of queue mail",
        "The leases of queue other",
    ]


def test_an_outcome_that_came_too_late_is_logged_with_the_fields_of_its_job(
    one_url: str, direct: redis.Redis, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a job, too, that a worker releases because the reply to its claim came so late."""
    queue = Queue("mail", url=one_url)

    def pass_on() -> None:
        direct.zadd(queue.keys["active"], {"a": 1})
        with closing(blocking.Client(one_url)) as other:
            (job,) = other.run(worker_commands.claim(queue.keys, "w2", 1, 1, LEASE_US, 0)).jobs
        assert job.id == "a"

    with at_work(Queue("mail", url=proxy.url), lease=0.5):
        proxy.delay_reply(b"tests.support.jobs:add", 0.5, pass_on)
        queue.enqueue(jobs.add, 1, job_id="a")
        eventually(lambda: "came after its lease" in caplog.text)
    (record,) = [one for one in caplog.records if "came after its lease" in one.getMessage()]
    assert "(release)" in record.getMessage()
    fields = [getattr(record, name) for name in JOB_FIELDS]
    assert fields == ["a", 1, "tests.support.jobs:add", "mail"]
    queue.close()


def test_a_renewal_that_fails_is_followed_by_others(
    one_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []
    again = threading.Event()

    def held() -> list[RunningJob]:
        asked.append(1)
        if len(asked) == 1:
            raise RuntimeError("changed size during iteration")
        again.set()
        return []

    leases = Leases(one_url, SERVER_CLOCK, 0.04, held, lambda channel, id: None)
    leases.start()
    assert again.wait(60)
    leases.stop()
    leases.join(60)
    assert "The leases could not be renewed; it will be tried again" in caplog.text
