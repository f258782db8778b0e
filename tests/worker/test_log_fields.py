"""Records that concern one job carry its fields, in every executor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import Queue
from bide.logs import JOB_FIELDS
from tests.support.console import bide

pytestmark = pytest.mark.slow

SHOP = """
import asyncio, logging, os, time
from dataclasses import dataclass

import bide

log = logging.getLogger("shop")
queue = bide.Queue("mail")


@dataclass
class Order:
    amount: int

    def __post_init__(self):
        log.info("reads an order")


def fine(order: Order):
    log.info("runs")


async def fine_async(order: Order):
    log.info("runs")


def pause(attempt, error):
    log.info("chooses a pause")
    return 0 if attempt == 1 else None


def call_back(job, error):
    log.info("calls back")
    raise RuntimeError("broken callback")


def boom():
    raise ValueError("boom")


async def boom_async():
    raise ValueError("boom")


for function in (boom, boom_async):
    queue.task(retry=bide.Retry(3, backoff=pause), on_failure=call_back)(function)


def unfit():
    return object()


async def unfit_async():
    return object()


@queue.task(timeout=0.2)
def slow():
    time.sleep(0.5)


@queue.task(timeout=0.2)
async def slow_async():
    await asyncio.sleep(60)


def die():
    os._exit(3)
"""


@pytest.fixture
def shop(tmp_path: Path, one_url: str) -> Iterator[Queue]:
    (tmp_path / "shop.py").write_text(SHOP)
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


def logged(home: Path, url: str, executor: str, *options: str) -> list[dict[str, Any]]:
    """What a worker logs until nothing is due."""
    command = ["worker", "shop", "-q", "mail", "--burst", "-x", executor, "--log-format", "json"]
    done = bide(home, *command, *options, url=url)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.parametrize("executor", ["auto", "process", "fork"])
def test_each_record_of_a_job_carries_its_fields(
    tmp_path: Path, one_url: str, direct: redis.Redis, shop: Queue, executor: str
) -> None:
    calls = {
        **{f"shop:fine{kind}": [{"amount": 1}] for kind in ("", "_async")},
        **{
            f"shop:{task}{kind}": []
            for task in ("boom", "unfit", "slow")
            for kind in ("", "_async")
        },
        "shop:nothing": [],
        **({} if executor == "auto" else {"shop:die": []}),
    }
    task_of = {shop.enqueue(task, *args).id: task for task, args in calls.items()}
    task_of |= {
        shop.enqueue(task, "no order").id: task for task in ("shop:fine", "shop:fine_async")
    }
    direct.hset(shop.keys["jobs"], (odd := shop.enqueue("shop:boom")).id, b"no body")
    task_of[odd.id] = "?"
    told: dict[str, list[str]] = {id: [] for id in task_of}
    for record in logged(tmp_path, one_url, executor, "-v"):
        ids = [id for id in task_of if id in record["msg"]]
        if record["logger"] == "shop" or ids:
            assert {*JOB_FIELDS} <= record.keys(), record
            assert ids in ([], [record["job_id"]]), record
            assert record["task"] == task_of[record["job_id"]], record
            assert record["queue"] == "mail", record
            told[record["job_id"]].append(record["msg"])
        else:
            assert not {*JOB_FIELDS} & record.keys(), record
    for id, task in task_of.items():
        said = "\n".join(told[id])
        outcome = "complete" if "runs" in said else "crash" if task == "shop:die" else "fail"
        expected = "waits, as other jobs" if task == "shop:nothing" else f": {outcome}"
        assert expected in said, task
        if task.startswith("shop:boom"):
            assert said.count("chooses a pause") == 2
            assert said.count("calls back") == 1
            assert "its callback" in said
        if task.startswith("shop:fine"):
            assert "reads an order" in said or "failed: PayloadError" in said


@pytest.mark.parametrize("task", ["boom", "boom_async", "fine"])
def test_no_record_carries_an_id_of_any_length(
    tmp_path: Path, one_url: str, direct: redis.Redis, shop: Queue, task: str
) -> None:
    """Another program may have written one, and each record of its job would have all of it."""
    args = [{"amount": 1}] if task == "fine" else []
    usual, odd = shop.enqueue(f"shop:{task}", *args).id, "x" * 9_000
    direct.hset(shop.keys["jobs"], odd, direct.hget(shop.keys["jobs"], usual))
    direct.zadd(shop.keys.names["due"][4], {odd: 1})
    direct.zrem(shop.keys.names["due"][4], usual)
    of_job = [each for each in logged(tmp_path, one_url, "auto", "-v") if "job_id" in each]
    assert {each["job_id"] for each in of_job} == {"x" * 128 + "…"}
    assert not any("x" * 129 in each["msg"] for each in of_job)


# -- modules that set up logging themselves

SAYS = """
def greet():
    logging.getLogger("shop").warning("hello")


async def greet_async():
    logging.getLogger("shop").warning("hello")
"""

CONFIG = """
import logging.config, sys

CONSOLE = {"class": "logging.StreamHandler", "formatter": "own"}
FORMATS = {"own": {"format": "OWN %(name)s %(message)s"}}


def configure(**config):
    logging.config.dictConfig({"version": 1, "formatters": FORMATS, **config})

"""

SET_UPS = {
    "basicConfig": 'logging.basicConfig(format="OWN %(message)s")',
    "by force": 'logging.basicConfig(format="OWN %(message)s", force=True)',
    "of the root": 'configure(handlers={"c": CONSOLE}, root={"handlers": ["c"]})',
    "of a logger": 'configure(handlers={"c": CONSOLE}, loggers={"shop": {"handlers": ["c"]}})',
    "of a logger alone": (
        'configure(handlers={"c": CONSOLE}, '
        'loggers={"shop": {"handlers": ["c"], "propagate": False}})'
    ),
    "on standard output": (
        'configure(handlers={"c": CONSOLE | {"stream": "ext://sys.stdout"}}, '
        'root={"handlers": ["c"]})'
    ),
    "one handler more": "logging.getLogger().addHandler(logging.StreamHandler())",
    "in a file": (
        'configure(handlers={"f": {"class": "logging.FileHandler", "filename": "own.log", '
        '"formatter": "own"}}, root={"handlers": ["f"]})'
    ),
    "when it opens": (
        "import bide\n@bide.resource\ndef logs():\n"
        '    configure(handlers={"c": CONSOLE}, root={"handlers": ["c"]})\n    yield'
    ),
}


@pytest.mark.parametrize("executor", ["auto", "process", "fork"])
@pytest.mark.parametrize("set_up", SET_UPS.values(), ids=SET_UPS)
def test_the_format_that_was_asked_for_holds(
    tmp_path: Path, one_url: str, executor: str, set_up: str
) -> None:
    (tmp_path / "shop.py").write_text(f"{CONFIG}{set_up}\n{SAYS}")
    queue = Queue("mail", url=one_url)
    jobs = {queue.enqueue(task).id for task in ("shop:greet", "shop:greet_async")}
    command = ["worker", "shop", "-q", "mail", "--burst", "-x", executor, "--log-format", "json"]
    done = bide(tmp_path, *command, "-v", url=one_url)
    records = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]
    assert sorted(r["job_id"] for r in records if r["msg"] == "hello") == sorted(jobs)
    ended = [r["job_id"] for r in records if r["msg"].endswith(": complete")]
    assert sorted(ended) == sorted(jobs)
    assert [r["level"] for r in records if "stopped after 2 jobs" in r["msg"]] == ["info"]
    if "own.log" in set_up:
        assert (tmp_path / "own.log").read_text().count("OWN shop hello") == 2
    queue.close()


def test_where_no_format_was_asked_for_a_module_chooses(tmp_path: Path, one_url: str) -> None:
    (tmp_path / "shop.py").write_text(f"{CONFIG}{SET_UPS['of the root']}\n{SAYS}")
    queue = Queue("mail", url=one_url)
    queue.enqueue("shop:greet")
    done = bide(tmp_path, "worker", "shop", "-q", "mail", "--burst", "-v", url=one_url)
    lines = done.stderr.splitlines()
    assert "OWN shop hello" in lines
    assert all(line.startswith("OWN ") for line in lines)
    assert any("stopped after 1 job" in line for line in lines)
    assert any(": complete" in line for line in lines)
    queue.close()


def test_verbose_holds_against_a_module(tmp_path: Path, one_url: str) -> None:
    quiet = 'logging.getLogger("bide").setLevel("WARNING")'
    (tmp_path / "shop.py").write_text(f"{CONFIG}{quiet}\n{SAYS}")
    queue = Queue("mail", url=one_url)
    for options in ((), ("-v",)):
        queue.enqueue("shop:greet")
        done = bide(tmp_path, "worker", "shop", "-q", "mail", "--burst", *options, url=one_url)
        assert (": complete" in done.stderr) == bool(options)
    queue.close()
