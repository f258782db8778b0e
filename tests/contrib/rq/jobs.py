"""What the tests' jobs do."""

from __future__ import annotations

import os
from typing import Any

import redis
from rq import get_current_job
from rq.job import Job

from bide.contrib.rq import DelayQueue


class Shop:
    class Desk:
        @staticmethod
        def close(number: int) -> str:
            return f"closed {number}"

    @staticmethod
    def open(number: int) -> str:
        return f"opened {number}"


class ShopQueue(DelayQueue):
    delay_key = "shop:later"


def add(a: int, b: int = 1) -> int:
    return a + b


def wait_for(delay: int) -> int:
    return delay


def fail() -> None:
    raise RuntimeError("it was to fail")


def pid() -> int:
    return os.getpid()


def write_down(key: str) -> None:
    """Count this run in a ledger."""
    job = get_current_job()
    assert job is not None
    job.connection.hincrby(key, job.id, 1)


def on_success(job: Job, connection: redis.Redis, result: Any) -> None:
    connection.set(f"success:{job.id}", result)


def on_failure(job: Job, connection: redis.Redis, *error: Any) -> None:
    connection.set(f"failure:{job.id}", str(error[1]))


def on_stopped(job: Job, connection: redis.Redis) -> None:
    """Nothing."""
