"""A queue on the server of a client that the program has: address, login and TLS, nothing else."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.sentinel import Sentinel

from bide import AsyncQueue, DelayQueue, Queue, UsageError, Worker
from bide.client.url import resolve_url

JOB = "tests.support.jobs:add"


def test_a_queue_takes_a_client_and_leaves_it_as_it_is(one_url: str) -> None:
    client = redis.Redis.from_url(one_url, decode_responses=True, socket_timeout=0.001)
    before = {**client.connection_pool.connection_kwargs}
    with contextlib.closing(Queue("mail", url=client)) as queue:
        job = queue.enqueue(JOB, 1, 2)
        assert Worker([queue], modules=["tests.support.jobs"]).run(burst=True) == 1
        assert job.wait(60) == 3
    assert client.connection_pool.connection_kwargs == before
    client.close()
    with contextlib.closing(DelayQueue("orders", url=redis.Redis.from_url(one_url))) as pile:
        pile.push({"a": 1})
        assert pile.pop() == [{"a": 1}]


@pytest.mark.anyio
async def test_an_awaited_client_too(one_url: str) -> None:
    client = redis.asyncio.Redis.from_url(one_url)
    queue = AsyncQueue("mail", url=client)
    assert (await queue.enqueue(JOB, 1)).created
    await queue.close()
    await client.aclose()


def test_its_credential_provider_is_asked(direct: redis.Redis, one_url: str) -> None:
    class Provider(redis.CredentialProvider):
        calls = 0

        def get_credentials(self) -> tuple[str, str]:
            self.calls += 1
            return "own", "secret"

    server: Any = direct
    server.execute_command("ACL", "SETUSER", "own", "on", ">secret", "~*", "&*", "+@all")
    provider = Provider()
    options: Any = {**redis.Redis.from_url(one_url).connection_pool.connection_kwargs}
    known = {name: options[name] for name in ("host", "port") if name in options}
    if "path" in options:
        known["unix_socket_path"] = options["path"]
    client = redis.Redis(**known, credential_provider=provider)
    with contextlib.closing(Queue("mail", url=client)) as queue:
        assert queue.counts().waiting == 0
        assert provider.calls == 1
        assert queue.url == Queue("low", url=client).url, "of one client, one server"
    server.acl_deluser("own")


SENTINEL: Any = Sentinel
MASTER = SENTINEL([("a", 1), ("b", 2)], sentinel_kwargs={"password": "s%p"}, password="mp")


@pytest.mark.parametrize(
    ("client", "url"),
    [
        (redis.Redis(), "redis://localhost:6379/0"),
        (
            redis.Redis(host="::1", port=1, db=3, username="u", password="p@s/%41 "),
            "redis://u:p%40s%2F%2541%20@[::1]:1/3",
        ),
        (redis.Redis(password="p"), "redis://:p@localhost:6379/0"),
        (redis.Redis(unix_socket_path="/a.sock", db=2), "unix:///a.sock?db=2"),
        (
            redis.Redis(host="h", ssl=True, ssl_ca_certs="/x", ssl_cert_reqs="none"),
            "rediss://h:6379/0?ssl_ca_certs=%2Fx&ssl_cert_reqs=none",
        ),
        (
            redis.Redis.from_url("rediss://h", ssl_cert_reqs=None),
            "rediss://h:6379/0?ssl_cert_reqs=none",
        ),
        (
            redis.asyncio.Redis(host="h", ssl=True, ssl_cert_reqs=ssl.CERT_OPTIONAL),
            "rediss://h:6379/0?ssl_cert_reqs=optional",
        ),
        (
            MASTER.master_for("shop", db=3),
            "redis+sentinel://:mp@a:1,b:2/shop/3?sentinel_password=s%25p",
        ),
        (
            SENTINEL([("a", 1)], ssl=True).master_for("shop", ssl=True),
            "rediss+sentinel://a:1/shop/0",
        ),
    ],
)
def test_the_url_that_a_client_means(client: Any, url: str) -> None:
    assert resolve_url(client) == url


def test_clients_of_valkey_are_taken_too() -> None:
    valkey = pytest.importorskip("valkey")
    assert resolve_url(valkey.Valkey(host="v", password="p")) == "redis://:p@v:6379/0"
    assert resolve_url(valkey.Valkey(host="v", ssl=True)) == "rediss://v:6379/0"


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (5, "url must be text, or a client of redis-py or valkey-py, not int"),
        (redis.ConnectionPool(), "not ConnectionPool; write redis://HOST:PORT/DB"),
        (redis.asyncio.RedisCluster(host="h"), r"no client of a Cluster; write redis\+cluster://"),
        (redis.Redis(ssl=True, ssl_ca_data="x"), "The client has ssl_ca_data, which bide does not"),
    ],
)
def test_clients_that_are_not_taken(client: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Queue("mail", url=client)
