"""The floor of an enqueue: a PING by the client library that bide uses, and nothing else."""

from contextlib import asynccontextmanager

import redis
import redis.asyncio

from benchmarks.peers.common import URL

ABOUT = {"name": "floor: PING", "package": "redis"}
WORKERS = {}

client = redis.Redis.from_url(URL, protocol=2)


def one(task, args, at):
    client.ping()


@asynccontextmanager
async def session():
    global awaited
    awaited = redis.asyncio.Redis.from_url(URL, protocol=2)
    try:
        yield
    finally:
        await awaited.aclose()


async def aone(task, args, at):
    await awaited.ping()
