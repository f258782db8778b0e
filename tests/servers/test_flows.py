"""Jobs that wait for others on another node of a Cluster."""

from __future__ import annotations

import contextlib

from bide import Queue, Worker, chain, fan_in
from bide.keys import keys_of
from tests.faults.legal import assert_legal
from tests.integration import jobs
from tests.servers.cluster import Cluster
from tests.servers.plain import client_of


def test_a_job_waits_for_jobs_on_another_node(nodes: Cluster) -> None:
    mail, other = Queue("mail", url=nodes.url), Queue("other", url=nodes.url)
    assert nodes.owner(keys_of("mail")["meta"]) != nodes.owner(keys_of("other")["meta"])
    jobs.seen.clear()
    first = other.enqueue(jobs.add, 1)
    second = mail.enqueue(jobs.add, 2, depends_on=first)
    third = other.enqueue(jobs.add, 3, depends_on=[first, second])
    steps = [mail.prepare(jobs.add, (n,)) for n in range(10, 13)]
    *_, last = mail.enqueue_many(fan_in(chain(*steps), completed=mail.prepare(jobs.add, (13,))))
    Worker([mail, other], modules="tests.integration.jobs").work(burst=True)
    assert [job.refresh().status for job in (first, second, third, last)] == ["completed"] * 4
    assert [job.result for job in mail.parents(second.id)] == [1]
    with contextlib.closing(client_of(nodes.url)) as client:
        for name in ("mail", "other"):
            assert assert_legal(client, name).sets["blocked"] == {}
    mail.close()
    other.close()
