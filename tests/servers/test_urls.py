"""Everything that takes a URL takes that of a Cluster and of Sentinels: workers, commands."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest
import redis

from bide import Queue, ServerUnavailable, UsageError
from bide.model.payload.body import Body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import keys_of
from tests.servers.conftest import Servers
from tests.support.cluster import Cluster
from tests.support.eventually import PATIENCE
from tests.support.nodes import listed
from tests.support.probe import open_executor
from tests.support.sentinel import Sentinels
from tests.support.worker_pool import ROOT, WorkerPool

JOB = "tests.support.ledger_jobs:quick"


def bide(worker_pool: WorkerPool, *args: str, url: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in worker_pool.env().items() if name != "PYTHONWARNINGS"}
    command = [sys.executable, "-m", "bide", *args, "-u", url]
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_commands_for_several_nodes_come_back_in_their_order(nodes: Cluster, kind: str) -> None:
    queues = [keys_of(f"q{i}") for i in range(12)]
    assert len({nodes.owner(keys["meta"]) for keys in queues}) == 3
    executor = open_executor(kind, nodes.url)
    some = [
        enqueue_commands.enqueue(keys, [enqueue_commands.prepare(Body(JOB)) for _ in range(i)])
        for i, keys in enumerate(queues)
    ]
    receipts = executor.run_many([*some, *map(job_commands.counts, queues)])
    assert [len(found) for found in receipts[:12]] == [*range(12)]
    assert [found.waiting for found in receipts[12:]] == [*range(12)]
    executor.end()


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_scripts_are_loaded_on_each_node_that_lacks_them(servers: Servers, kind: str) -> None:
    executor = open_executor(kind, servers.url)
    commands = [job_commands.counts(keys_of(f"q{i}")) for i in range(6)]
    executor.run_many(commands)
    for node in servers.nodes:
        node.client.script_flush()
    assert len(executor.run_many(commands)) == 6
    executor.end()


@pytest.mark.slow
def test_workers_of_processes(servers: Servers, worker_pool: WorkerPool) -> None:
    queue = Queue("mail", url=servers.url)
    with contextlib.closing(queue):
        jobs = queue.enqueue_many([queue.prepare(JOB) for _ in range(6)])
        options = ("-q", "mail", "-w", "2", "--executor", "process", "--burst")
        run = bide(worker_pool, "worker", "tests.support.ledger_jobs", *options, url=servers.url)
        assert run.returncode == 0, run.stderr
        assert {job.refresh().state for job in jobs} == {"completed"}
        assert worker_pool.ledger.count("done").keys() == {job.id for job in jobs}


@pytest.mark.slow
def test_commands(servers: Servers, worker_pool: WorkerPool) -> None:
    for name in ("mail", "other"):
        assert bide(worker_pool, "enqueue", JOB, "-q", name, url=servers.url).returncode == 0
    info = bide(worker_pool, "info", url=servers.url)
    assert info.returncode == 0
    assert servers.url in info.stdout
    assert "mail" in info.stdout
    assert "other" in info.stdout


@pytest.mark.slow
def test_fsck_looks_for_queues_on_every_master(nodes: Cluster, worker_pool: WorkerPool) -> None:
    names = [f"mail-{n}" for n in range(12)]
    assert {nodes.owner(keys_of(name)["meta"]) for name in names} == {*nodes.masters}
    for name in names:
        with contextlib.closing(Queue(name, url=nodes.url)) as queue:
            queue.enqueue(JOB)
    listed_at = nodes.owner(keys_of(None)["queues"]).server.url
    with redis.Redis.from_url(listed_at) as direct:
        assert direct.delete(keys_of(None)["queues"]) == 1
    run = bide(worker_pool, "fsck", "--repair", "--json", url=nodes.url)
    found = json.loads(run.stdout)["findings"]
    assert [(each["kind"], each["id"]) for each in found] == [("queues", n) for n in sorted(names)]
    again = bide(worker_pool, "fsck", url=nodes.url)
    assert (again.returncode, again.stdout) == (0, "All agrees.\n")


@pytest.mark.slow
def test_doctor_says_what_it_sees(servers: Servers, worker_pool: WorkerPool) -> None:
    run = bide(worker_pool, "doctor", "--json", url=servers.url)
    found = {check["check"]: check for check in json.loads(run.stdout)["checks"]}
    if isinstance(servers, Cluster):
        assert found["cluster"]["says"] == "3 masters, 3 more nodes; every slot is served"
    else:
        master = "{}:{}".format(*servers.master.address)
        assert found["sentinel"]["says"].endswith(f"answer; the master is {master}")
    assert found["scripts"]["verdict"] == "ok"


@pytest.mark.slow
def test_doctor_knows_a_node_whose_url_was_not_written_as_one(
    nodes: Cluster, worker_pool: WorkerPool
) -> None:
    run = bide(worker_pool, "doctor", url=nodes.nodes[0].server.url)
    assert run.returncode == 1
    assert "Write redis+cluster://HOST:PORT." in run.stdout


def test_a_node_of_a_cluster_is_no_server_of_its_own(nodes: Cluster) -> None:
    queue = Queue("mail", url=nodes.replica_of(nodes.masters[0]).server.url)
    with pytest.raises(UsageError, match=r"is a node of a Cluster; write redis\+cluster://"):
        queue.counts()
    queue.close()


def test_a_server_of_its_own_is_no_node_of_a_cluster(trio: Sentinels) -> None:
    queue = Queue("mail", url=f"redis+cluster://{listed([trio.master.address])}")
    with pytest.raises(UsageError, match="is not a node of a Cluster; write redis://"):
        queue.counts()
    queue.close()


def test_a_master_that_no_sentinel_knows(trio: Sentinels) -> None:
    queue = Queue("mail", url=trio.url.replace("/shop/", "/shoppe/"))
    with pytest.raises(UsageError, match="know no master 'shoppe'"):
        queue.counts()
    queue.close()


@pytest.mark.parametrize("form", ["redis+cluster://{}", "redis+sentinel://{}/shop"])
def test_who_never_reached_anybody_is_told_so_at_once(form: str) -> None:
    queue = Queue("mail", url=form.format("127.0.0.1:1,127.0.0.1:2"))
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1,127\.0\.0\.1:2"):
        queue.counts()
    queue.close()


@pytest.mark.slow
def test_the_first_of_the_nodes_that_a_url_names_may_be_down(servers: Servers) -> None:
    named = servers.sentinels if isinstance(servers, Sentinels) else servers.nodes
    masters = servers.masters if isinstance(servers, Cluster) else []
    servers.kill(named[0])
    if isinstance(servers, Cluster) and named[0] in masters:
        servers.fail_over(named[0])
    queue = Queue("mail", url=servers.url)
    assert queue.enqueue(JOB).created
    queue.close()
    servers.restart(named[0])


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_replica_is_not_taken_for_the_master(trio: Sentinels, kind: str) -> None:
    """A Sentinel may be behind the times; a read would be answered, with what is old."""
    replica = trio.replicas[0]
    replica.client.config_resetstat()
    executor = open_executor(kind, trio.url)
    executor.client._routes._master = replica.server.url.removesuffix("/0") + "/0"
    assert executor.run(job_commands.counts(keys_of("mail"))).waiting == 0
    executor.end()
    calls = replica.client.info("commandstats")
    assert "cmdstat_evalsha" not in calls
    assert calls["cmdstat_role"]["calls"] == 1
