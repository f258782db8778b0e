"""Groups, as users meet them."""

from __future__ import annotations

import asyncio
import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from bide import AsyncQueue, GroupCounts, Queue, UsageError, Worker, testing
from bide.model.job import State
from tests.support import jobs as tasks
from tests.support.console import bide, said

TASK = f"{tasks.__name__}:add"


def echo(n: int) -> int:
    return n


def serve(queue: Queue, **options: Any) -> None:
    Worker(queue, modules=(tasks.__name__, __name__), **options).run(burst=True)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "thread", "process", "fork"])
def test_jobs_of_groups_run_one_after_another_in_every_executor(
    one_url: str, executor: Any
) -> None:
    queue = Queue("mail", url=one_url)
    many = [queue.prepare(TASK, [n], group=f"g{n % 3}", priority=n % 2) for n in range(30)]
    jobs = [*queue.enqueue_many(many), queue.enqueue(TASK, 99)]
    with queue.events(kinds=("active", "completed", "drained")) as events:
        serve(queue, concurrency=8, executor=executor)
        told = list(takewhile(lambda event: event.kind != "drained", events))
    assert [job.refresh().state for job in jobs] == [State.COMPLETED] * 31
    for g in range(3):
        ids = [job.id for n, job in enumerate(jobs[:30]) if n % 3 == g]
        mine = [(event.job_id, event.kind) for event in told if event.job_id in ids]
        assert mine == [(id, kind) for id in ids for kind in ("active", "completed")]
    assert queue.groups() == []
    queue.close()


@pytest.mark.slow
def test_a_group_is_paused_configured_and_counted() -> None:
    with testing.start() as bed:
        queue = Queue("mail")
        task = queue.task(group="by-default", group_concurrency=2)(echo)
        jobs = [task.enqueue(n) for n in range(3)]
        other = task.options(group="other").later("1h").enqueue(5)
        group = queue.group("by-default")
        group.pause()
        serve(queue)
        assert {job.refresh().state for job in jobs} == {State.WAITING}
        assert jobs[0].group == "by-default"
        assert group.counts() == GroupCounts("by-default", 0, 3, 0, 5, 2, False, True)
        assert [one.name for one in queue.groups()] == ["by-default", "other"]
        group.configure(concurrency=1)
        group.resume()
        bed.advance("2h")
        serve(queue)
        assert {job.refresh().state for job in [*jobs, other]} == {State.COMPLETED}
        assert [one.is_configured for one in queue.groups()] == [True]
        group.configure(concurrency=None)
        assert queue.groups() == []
        assert repr(group) == "<Group by-default of mail>"


def test_the_same_awaited() -> None:
    async def use(queue: AsyncQueue) -> None:
        jobs = [await queue.enqueue(TASK, n, group="g") for n in range(3)]
        group = queue.group("g")
        await group.pause()
        await group.configure(concurrency=3)
        assert await group.counts() == GroupCounts("g", 0, 3, 0, 5, 3, True, True)
        await group.resume()
        await Worker(queue, modules=tasks.__name__).arun(burst=True)
        assert [await job.wait() for job in jobs] == [0, 1, 2]
        assert [one.name for one in await queue.groups()] == ["g"]
        await queue.close()

    with testing.start():
        asyncio.run(use(AsyncQueue("mail")))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"group": "a b"}, "group 'a b' holds a brace, a space"),
        ({"group": ""}, "group must be a non-empty string"),
        ({"group": 42}, "group must be a non-empty string, not 42"),
        ({"group": "x" * 129}, "group is longer than 128 bytes"),
        ({"group": "g", "group_concurrency": 0}, "run 1 to 10000 at once, not 0"),
        ({"group": "g", "group_concurrency": True}, "not True"),
        ({"group": "g", "group_concurrency": 1.5}, "not 1.5"),
        ({"group_concurrency": 2}, "name it with group=..."),
    ],
)
def test_what_cannot_be_meant_is_refused(options: Any, says: str) -> None:
    queue = Queue("mail", url="redis://127.0.0.1:1/0")
    with pytest.raises(UsageError, match=says):
        queue.prepare(TASK, [1], **options)
    if "group" in options and "group_concurrency" not in options:
        with pytest.raises(UsageError, match=says):
            queue.group(options["group"])


def test_the_command_line_shows_groups_and_what_a_job_waits_for(home: Path, one_url: str) -> None:
    queue = Queue("mail", url=one_url)
    jobs = [queue.enqueue("shop:greet", group="g-1") for _ in range(3)]
    queue.enqueue("shop:greet", group="zed", delay="1h")
    lines = said(bide(home, "queues", "groups", "mail", url=one_url)).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["g-1", "0", "3", "0", "1", "5"],
        ["zed", "1", "0", "0", "1", "5"],
    ]
    shown = said(bide(home, "jobs", "show", jobs[2].id, url=one_url))
    assert "jobs of its group g-1 take turns; 2 of them are before it" in " ".join(shown.split())
    done = bide(home, "queues", "pause", "mail", "-g", "g-1", url=one_url)
    assert "`bide queues resume mail --group g-1`" in said(done)
    assert done.stderr == ""
    assert not queue.counts().paused
    assert "its group g-1 is paused" in said(bide(home, "jobs", "show", jobs[0].id, url=one_url))
    asked = bide(home, "queues", "groups", "mail", "--json", "-n", "1", url=one_url)
    report = json.loads(said(asked))
    assert (report["all"], report["groups"][0]["paused"]) == (2, True)
    found = json.loads(said(bide(home, "jobs", "show", jobs[2].id, "--json", url=one_url)))
    assert found["jobs"][0]["group"]["waits"]["before"] == 2
    said(bide(home, "queues", "resume", "mail", "-g", "g-1", url=one_url))
    assert not queue.group("g-1").counts().paused
    none = said(bide(home, "queues", "groups", "mail", "-n", "1", url=one_url))
    assert "1 more; -n 2 shows all." in none
    done = bide(home, "queues", "pause", "mail", "-g", "zedd", url=one_url)
    assert "Group zedd of mail has no jobs now; check the name" in done.stderr
    queue.close()


@pytest.mark.slow
def test_groups_go_on_over_a_cluster(tmp_path: Path) -> None:
    from tests.support.cluster import cluster

    with cluster() as servers:
        queue = Queue("mail", url=servers.url)
        jobs = queue.enqueue_many([queue.prepare(TASK, [n], group=f"g{n % 2}") for n in range(8)])
        serve(queue)
        assert [job.refresh().state for job in jobs] == [State.COMPLETED] * 8
        assert queue.groups() == []
        queue.close()
