"""`bide tasks`, and `bide enqueue --wait`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bide import Queue
from tests.support.console import bide as run_bide
from tests.support.console import error_of, said
from tests.support.workers import Later, at_work, eventually

DECLARED = """
from bide import Queue

mail = Queue("mail")

@mail.task
def send(user_id: int, text: str = "hello") -> None: ...

@mail.task(name="digest")
def weekly() -> None: ...

def helper(): ...
"""


def bide(home: Path, *args: str, url: str | None) -> str:
    """In a process of its own, because it imports modules."""
    return said(run_bide(home, *args, url=url, PYTHONDONTWRITEBYTECODE="1"))


def test_tasks_of_modules_and_of_workers(home: Path, queue: Queue) -> None:
    (home / "mails.py").write_text(DECLARED)
    args = ("tasks", "mails", "shop", "--json")
    with at_work(queue, modules=("tests.support.jobs",)) as serving:
        eventually(lambda: any(worker.about.tasks for worker in queue.workers()))
        lines = json.loads(bide(home, *args, url=queue.url))["tasks"]
        by_name = {line["name"]: line for line in lines}
        assert by_name["mails:send"] == {
            "name": "mails:send",
            "queues": ["mail"],
            "parameters": "(user_id: int, text: str = 'hello') -> None",
            "workers": [],
            "unserved_jobs": False,
        }
        assert by_name["digest"]["queues"] == ["mail"]
        assert {"shop:greet", "shop:boom"} < by_name.keys(), "shop declares none"
        assert "mails:helper" not in by_name, "mails does"
        assert by_name["tests.support.jobs:registered"]["workers"] == [serving.name]
        assert by_name["tests.support.jobs:registered"]["parameters"] is None
        text = bide(home, "tasks", url=queue.url)
    assert "tests.support.jobs:registered" in text
    assert "mails:send" not in text
    done = run_bide(home, "tasks", url=queue.url, PYTHONDONTWRITEBYTECODE="1")
    assert "No task is known" in done.stderr


@pytest.mark.slow  # the worker tells so in its next heartbeat
def test_a_task_that_no_worker_serves(home: Path, queue: Queue) -> None:
    with at_work(queue, modules=("tests.support.jobs",)):
        queue.enqueue("elsewhere:send")
        eventually(lambda: any(worker.about.unknown_tasks for worker in queue.workers()))
        (line,) = [
            line for line in bide(home, "tasks", url=queue.url).splitlines() if "else" in line
        ]
    assert line.endswith(" 0, jobs wait")


def test_without_a_server_the_modules_are_listed(home: Path) -> None:
    nowhere = "redis://127.0.0.1:1"
    (home / "pyproject.toml").write_text('[tool.bide.worker]\nmodules = ["shop", "nosuch"]')
    done = run_bide(home, "tasks", url=nowhere, PYTHONDONTWRITEBYTECODE="1")
    assert "shop:greet" in said(done)
    assert "Only the tasks of modules are listed" in done.stderr
    assert "'nosuch' cannot be imported" in done.stderr
    (home / "pyproject.toml").unlink()
    error_of(run_bide(home, "tasks", url=nowhere, PYTHONDONTWRITEBYTECODE="1"))
    done = run_bide(home, "tasks", "nosuch", url=nowhere, PYTHONDONTWRITEBYTECODE="1")
    assert "'nosuch' cannot be imported" in error_of(done)


def test_enqueue_waits_for_the_end(home: Path, queue: Queue) -> None:
    add = ("enqueue", "tests.support.jobs:add", "1", "2", "-q", "work", "--no-check")
    fail = ("enqueue", "tests.support.jobs:fail", "no luck", "-q", "work", "--no-check")
    with at_work(queue):
        lines = bide(home, *add, "--wait", url=queue.url).splitlines()
        assert lines[1] == "completed: 3"
        told = json.loads(bide(home, *add, "--wait", "--json", url=queue.url))
        assert (told["result"], told["job"]["state"], told["job"]["result"]) == (
            "created",
            "completed",
            3,
        )
        done = run_bide(home, *fail, "--wait", url=queue.url)
        assert done.returncode == 1
        assert "failed: ValueError: no luck" in done.stderr
        done = run_bide(home, *fail, "--wait", "--json", url=queue.url)
        assert (done.returncode, json.loads(done.stdout)["job"]["state"]) == (1, "failed")


def test_the_wait_ends_and_the_job_continues(home: Path, queue: Queue) -> None:
    add = ("enqueue", "tests.support.jobs:add", "1", "-q", "work", "--no-check", "--in", "1h")
    done = run_bide(home, *add, "--wait-timeout", "10ms", url=queue.url)
    assert done.returncode == 1
    assert "is delayed after 0.01 s, and is not cancelled" in done.stderr
    assert queue.counts().delayed == 1
    done = run_bide(home, *add, "--wait-timeout", "soon", url=queue.url)
    assert "--wait-timeout='soon'" in error_of(done, 2)
    assert queue.counts().delayed == 1, "nothing is added before the options are read"


def test_a_cancel_ends_the_wait(home: Path, queue: Queue) -> None:
    add = ("enqueue", "tests.support.jobs:add", "1", "-q", "work", "--no-check", "--in", "1h")
    waiting = Later(lambda: run_bide(home, *add, "--wait", "--id", "it", url=queue.url))
    eventually(lambda: queue.cancel("it"))
    done = waiting.result()
    assert done.returncode == 1
    assert "was cancelled" in done.stderr
