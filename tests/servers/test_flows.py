"""Jobs that wait for others on another node of a Cluster."""

from __future__ import annotations

import contextlib
import threading
from functools import partial

from bide import Queue, Unique, Worker, chain, fan_in
from bide.protocol.keys import keys_of
from tests.support import jobs
from tests.support.cluster import Cluster
from tests.support.invariants import assert_legal
from tests.support.plain import client_of
from tests.support.workers import eventually


def test_a_job_waits_for_jobs_on_another_node(nodes: Cluster) -> None:
    mail, other = Queue("mail", url=nodes.url), Queue("other", url=nodes.url)
    assert nodes.owner(keys_of("mail")["meta"]) != nodes.owner(keys_of("other")["meta"])
    jobs.seen.clear()
    first = other.enqueue(jobs.add, 1)
    second = mail.enqueue(jobs.add, 2, depends_on=first)
    third = other.enqueue(jobs.add, 3, depends_on=[first, second])
    steps = [mail.prepare(jobs.add, (n,)) for n in range(10, 13)]
    *_, last = mail.enqueue_many(fan_in(chain(*steps), completed=mail.prepare(jobs.add, (13,))))
    Worker([mail, other], modules="tests.support.jobs").run(burst=True)
    assert [job.refresh().state for job in (first, second, third, last)] == ["completed"] * 4
    assert [job.result for job in mail.parents(second.id)] == [1]
    with contextlib.closing(client_of(nodes.url)) as client:
        for name in ("mail", "other"):
            assert assert_legal(client, name).sets["blocked"] == {}
    mail.close()
    other.close()


def test_schedules_of_groups_and_keys_fire_in_a_cluster(nodes: Cluster) -> None:
    def is_done(queue: Queue) -> bool:
        counts = queue.counts()
        is_over = all(one.over for one in queue.schedules.all())
        return is_over and not counts.waiting + counts.active

    def fire(queue: Queue) -> None:
        for name, args in (("a", (1,)), ("b", (2,))):
            queue.schedules.upsert(
                *(name, jobs.add, args), every="10ms", limit=3, missed="all", group="g"
            )
        queue.schedules.upsert("c", jobs.add, (3,), every="10ms", limit=3, unique=Unique(key=1))

    with contextlib.closing(client_of(nodes.url)) as client:
        for name in ("mail", "other"):
            with contextlib.closing(Queue(name, url=nodes.url)) as queue:
                fire(queue)
                worker = Worker(queue, modules="tests.support.jobs")
                thread = threading.Thread(target=worker.run)
                thread.start()
                try:
                    eventually(partial(is_done, queue))
                finally:
                    worker.stop()
                    thread.join(20)
                ran = [job.id.partition("@")[0] for job in queue.jobs("completed", count=50)]
                assert (ran.count("a"), ran.count("b")) == (3, 3)
                assert 1 <= ran.count("c") <= 3
            assert not (left := assert_legal(client, name)).order | left.held | left.turns
