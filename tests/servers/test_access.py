"""Users with few permissions, and TLS: on a Cluster and behind Sentinels."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bide import AccessDenied, AsyncQueue, Queue, ServerUnavailable, Worker
from bide.client.acl import rules
from bide.client.url import read_servers
from tests.servers.conftest import Servers
from tests.support.cluster import Cluster, cluster
from tests.support.console import bide
from tests.support.nodes import listed
from tests.support.programs import distribution_server
from tests.support.sentinel import Sentinels, sentinel
from tests.support.tls import NEEDED, make_certificate, tls_options

JOB = "tests.support.jobs:add"


@pytest.fixture(params=["worker"])
def guarded(servers: Servers, request: pytest.FixtureRequest) -> Iterator[str]:
    """A URL without user and password, of servers that have a user `app` with few permissions.

    They are those that `bide acl` prints, of a worker if it is not said otherwise.
    """
    permissions = rules(request.param, ["mail"], "bide", read_servers(servers.url).kind)
    for node in servers.nodes:
        node.client.execute_command("ACL", "SETUSER", "app", "reset", ">secret", *permissions)
    watched = servers.sentinels if isinstance(servers, Sentinels) else []
    for one in watched:
        asks = ("on", ">told", "+sentinel|get-master-addr-by-name", "+ping", "+client|setinfo")
        one.client.execute_command("ACL", "SETUSER", "asker", "reset", *asks)
    yield servers.url
    for node in servers.nodes:
        node.client.acl_deluser("app")
    for one in watched:
        one.client.acl_deluser("asker")


def with_user(url: str, password: str = "secret", asker: str = "told") -> str:
    known = url.replace("://", f"://app:{password}@")
    if "sentinel" in url:
        known += f"?sentinel_username=asker&sentinel_password={asker}"
    return known


def works(url: str) -> None:
    """A job is enqueued, run and waited for, through both executors."""
    queue = Queue("mail", url=url)
    with contextlib.closing(queue):
        job = queue.enqueue(JOB, 1, 2)
        assert Worker([queue], modules=["tests.support.jobs"]).run(burst=True) == 1
        assert job.wait(60) == 3


@pytest.mark.slow
def test_a_user_with_few_permissions(guarded: str, servers: Servers) -> None:
    works(with_user(guarded))
    servers.fail_over()
    works(with_user(guarded))


@pytest.mark.parametrize("guarded", ["operator"], indirect=True)
def test_an_operator_with_few_permissions(guarded: str, servers: Servers, tmp_path: Path) -> None:
    with contextlib.closing(Queue("mail", url=servers.url)) as queue:
        job = queue.enqueue(JOB, 1, delay=60)
        key = queue.keys.names["due"][4]
        node = servers.owner(key) if isinstance(servers, Cluster) else servers.master
        node.client.zrem(key, job.id)

    def run(*args: str) -> str:
        done = bide(tmp_path, *args, url=with_user(guarded))
        assert done.stderr == ""
        return done.stdout

    assert "1 finding;" in run("fsck")
    assert "1 finding repaired" in run("fsck", "--repair")
    assert run("fsck", "-q", "mail") == "All agrees.\n"
    assert "is paused" in run("queues", "pause", "mail")
    assert "is resumed" in run("queues", "resume", "mail")
    assert "rescheduled" in run("jobs", "reschedule", job.id, "--in", "1h")
    assert "removed 1 job" in run("queues", "purge", "mail", "--yes")
    assert run("workers") == "No worker runs; `bide worker MODULE -q QUEUE` starts one.\n"
    told = {check["check"]: check for check in json.loads(run("doctor", "--json"))["checks"]}
    assert told["scripts"]["verdict"] == "ok"
    assert (
        isinstance(servers, Sentinels)
        or "3 masters, 3 more nodes; every slot" in told["cluster"]["says"]
    )


def test_a_password_that_is_wrong_is_said_and_not_shown(guarded: str) -> None:
    queue = Queue("mail", url=with_user(guarded, "wrong"))
    with contextlib.closing(queue), pytest.raises(AccessDenied) as caught:
        queue.counts()
    assert "wrong" not in str(caught.value)


@pytest.mark.anyio
@pytest.mark.parametrize("servers", ["sentinel"], indirect=True)
async def test_so_is_that_for_the_sentinels(guarded: str) -> None:
    queue = AsyncQueue("mail", url=with_user(guarded, asker="awry"))
    with pytest.raises(AccessDenied) as caught:
        await queue.counts()
    assert "awry" not in str(caught.value)
    await queue.close()


@NEEDED
def test_a_cluster_over_tls(tmp_path: Path) -> None:
    make_certificate(tmp_path, "IP:127.0.0.1")
    inside = ("--tls-cluster", "yes", "--tls-replication", "yes")
    options = ("--tls-port", "{port}", *inside, *tls_options(tmp_path))
    with cluster(binary=distribution_server(), extra=options) as servers:
        ports = [node.client.config_get("tls-port")["tls-port"] for node in servers.nodes]
        url = "rediss+cluster://" + listed([("127.0.0.1", int(port)) for port in ports[:2]])
        works(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}")
        servers.fail_over(servers.owner("bide:{mail}"))
        works(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}")
        queue = Queue("mail", url=url)
        with contextlib.closing(queue), pytest.raises(ServerUnavailable, match="certificate"):
            queue.counts()


@NEEDED
def test_a_master_behind_sentinels_over_tls(tmp_path: Path) -> None:
    """To the Sentinels, too."""
    make_certificate(tmp_path, "IP:127.0.0.1")
    with sentinel(binary=distribution_server(), tls=tls_options(tmp_path)) as servers:
        assert servers.url.startswith("rediss+sentinel://")
        works(f"{servers.url}?ssl_ca_certs={tmp_path / 'ca.pem'}")
        servers.fail_over()
        works(f"{servers.url}?ssl_ca_certs={tmp_path / 'ca.pem'}")
        queue = Queue("mail", url=servers.url)
        with contextlib.closing(queue), pytest.raises(ServerUnavailable, match="certificate"):
            queue.counts()
