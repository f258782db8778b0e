"""The harness itself: what it is to lose is lost, and what it is to find is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from redis.retry import Retry

from bide import Queue
from bide.client.blocking import Client
from bide.client.url import options
from bide.protocol.commands import worker as worker_commands
from bide.protocol.keys import keys_of
from tests.chaos.conftest import Connect
from tests.support.invariants import assert_legal
from tests.support.proxy import Proxy
from tests.support.resp import end_of_message, take_messages

KEYS = keys_of("mail")

MESSAGES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":-42\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"$0\r\n\r\n",
    b"$4\r\na\r\nb\r\n",
    b"*0\r\n",
    b"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n$-1\r\n+OK\r\n",
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_ends_where_it_ends(message: bytes) -> None:
    assert end_of_message(message + b"+OK\r\n") == len(message)
    assert all(end_of_message(message[:cut]) is None for cut in range(len(message)))


def test_whole_messages_are_taken_and_the_rest_is_kept() -> None:
    data = bytearray(b"".join(MESSAGES) + b"$9\r\nto co")
    assert take_messages(data) == MESSAGES
    assert data == b"$9\r\nto co"


def raw(url: str) -> redis.Redis:
    """A client that repeats nothing."""
    return redis.Redis.from_url(**options(url, Retry, 5))


def test_a_lost_reply_leaves_those_before_it_and_its_effect(
    proxy: Proxy, direct: redis.Redis
) -> None:
    with raw(proxy.url) as client:
        client.ping()
        proxy.lose_reply(2)
        pipe = client.pipeline(transaction=False)
        for name in ("a", "b", "c"):
            pipe.set(name, 1)
        with pytest.raises(redis.ConnectionError):
            pipe.execute()
    assert proxy.lost == 1
    assert direct.exists("a", "b") == 2


def test_a_lost_request_has_no_effect(proxy: Proxy, direct: redis.Redis) -> None:
    with raw(proxy.url) as client:
        client.ping()
        proxy.lose_request(2)
        client.set("a", 1)
        with pytest.raises(redis.ConnectionError):
            client.set("b", 1)
    assert direct.exists("a", "b") == 1


def test_a_refusing_proxy_ends_and_refuses_connections(proxy: Proxy) -> None:
    with raw(proxy.url) as client:
        client.ping()
        proxy.refuse()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                client.ping()
        proxy.accept()
        assert client.ping()


Spoil = Callable[[redis.Redis, str], object]
ILLEGAL: dict[str, Spoil] = {
    "is in active and in failed": lambda r, id: r.zadd(KEYS["failed"], {id: 1_795_000_000_000_000}),
    "listed without a body": lambda r, id: r.hdel(KEYS["jobs"], id),
    "a body that no set lists": lambda r, id: r.hset(KEYS["jobs"], "lost", b'{"task":"a:b"}'),
    "without a record": lambda r, id: r.hdel(KEYS["run"], id),
    "a record of no job": lambda r, id: r.hset(KEYS["run"], "x", r.hget(KEYS["run"], id) or b""),
    "is completed, but": lambda r, id: (
        r.zrem(KEYS["active"], id),
        r.zadd(KEYS["completed"], {id: 1_795_000_000_000_000}),
    ),
    "has a result": lambda r, id: r.hset(KEYS["results"], id, b"1"),
    "but never ran": lambda r, id: r.hset(KEYS["notes"], "other", b"C 1 2 3 w"),
    "has notes that cannot be read": lambda r, id: r.hset(KEYS["notes"], id, b"C 1 2 3 w\nX 1"),
    "has too many notes C": lambda r, id: r.hset(
        KEYS["notes"], id, b"C 1 2 3 w\n" * 10 + b"C 1 2 3 w"
    ),
    "asked to stop, but does not run": lambda r, id: r.zadd(KEYS["asked"], {"other": 1}),
    "has the score": lambda r, id: r.zadd(KEYS["active"], {id: 1_795}),
    "never be swept": lambda r, id: r.rename(KEYS["active"], KEYS.names["trash"][0]),
    "more than one wake-up message": lambda r, id: r.lpush(KEYS["wake"], "-", "-", "-"),
    "keys that nothing names": lambda r, id: r.set(KEYS["meta"] + ":other", 1),
}


@pytest.mark.parametrize("complaint", ILLEGAL)
def test_an_illegal_state_is_called_so(one_url: str, direct: redis.Redis, complaint: str) -> None:
    queue = Queue("mail", url=one_url)
    queue.enqueue("app:task", job_id="job")
    queue.close()
    client = Client(one_url)
    client.run(worker_commands.claim(KEYS, "w", 1, 1, 60_000_000, 0))
    client.close()
    assert assert_legal(direct, "mail").where("job") == "active"
    ILLEGAL[complaint](direct, "job")
    with pytest.raises(AssertionError, match=complaint):
        assert_legal(direct, "mail")


def test_both_executors_are_tested(connect: Connect, one_url: str, direct: redis.Redis) -> None:
    client = connect(one_url)
    client.run(worker_commands.claim(KEYS, "w", 1, 1, 60_000_000, 0))
    assert direct.zcard(KEYS["keep"]) == 1
