"""`bide worker`: what it takes from the file and the environment, and how it logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bide import Queue
from tests.support.console import at_terminal, bide, error_of, said

pytestmark = pytest.mark.slow

FILE = """
[tool.bide]
url = "{url}"
prefix = "shop"
log-format = "kv"
[tool.bide.worker]
modules = ["shop"]
queues = ["mail", "low"]
concurrency = 3
lease = "5s"
"""

HOSTILE = "x\r\nts=forged\x1b[2J"


@pytest.fixture
def mail(one_url: str) -> Queue:
    return Queue("mail", url=one_url, prefix="shop")


def configure(home: Path, url: str) -> None:
    (home / "pyproject.toml").write_text(FILE.format(url=url))


def test_a_worker_needs_no_words_where_the_file_has_them(
    home: Path, one_url: str, mail: Queue
) -> None:
    configure(home, one_url)
    job = mail.enqueue("shop:greet", "world")
    done = bide(home, "worker", "--burst")
    assert done.returncode == 0, done.stderr
    assert "serves mail, low, 3 at once" in done.stderr
    assert job.refresh().result == "hello world"
    assert list(json.loads(said(bide(home, "info", "--json")))["queues"]) == ["low", "mail"]


def test_the_command_line_wins(home: Path, one_url: str, mail: Queue) -> None:
    configure(home, one_url)
    done = bide(home, "worker", "shop", "-q", "other", "-c", "7", "--burst", "--log-format", "text")
    assert "serves other, 7 at once" in done.stderr
    assert "ts=" not in done.stderr
    assert "--lease" in error_of(bide(home, "worker", "--lease"), 2)
    assert "too short" in bide(home, "worker", "--lease", "1ms").stderr


def test_the_environment_wins_over_the_file(home: Path, one_url: str) -> None:
    configure(home, one_url)
    done = bide(home, "worker", "--burst", BIDE_LOG_FORMAT="json")
    assert [json.loads(line)["level"] for line in done.stderr.splitlines()] == ["info", "info"]


@pytest.mark.parametrize("kind", ["json", "kv"])
def test_logs_of_a_job_name_it_and_cannot_be_forged(home: Path, one_url: str, kind: str) -> None:
    (home / "loud.py").write_text(
        "import logging\n"
        "async def shout(text):\n"
        "    logging.getLogger('loud').warning('got %s', text, extra={'size': len(text)})\n"
        "def call(text):\n"
        "    logging.getLogger('loud').exception('got %s', text)\n"
    )
    queue = Queue("mail", url=one_url)
    jobs = {queue.enqueue("loud:shout", HOSTILE).id, queue.enqueue("loud:call", HOSTILE).id}
    done = bide(home, "worker", "loud", "-q", "mail", "--burst", "--log-format", kind, url=one_url)
    lines = [line for line in done.stderr.splitlines() if "got " in line]
    assert len(lines) == 2
    assert "\x1b" not in done.stderr
    if kind == "json":
        assert {json.loads(line)["job_id"] for line in lines} == jobs
        assert {json.loads(line)["task"] for line in lines} == {"loud:shout", "loud:call"}
        assert any(json.loads(line).get("size") == len(HOSTILE) for line in lines)
    else:
        assert all(line.startswith("ts=") for line in done.stderr.splitlines())
        assert {line.split("job_id=")[1].split()[0] for line in lines} == jobs
    queue.close()


def test_pickles_are_read_only_where_that_was_allowed(
    home: Path, one_url: str, signing: str
) -> None:
    queue = Queue("mail", url=one_url, serializer="pickle")
    job = queue.enqueue("shop:greet", "world")
    work = ("worker", "shop", "-q", "mail", "--burst")
    bide(home, *work, url=one_url, BIDE_SIGNING_KEYS=signing)
    assert job.refresh().state == "failed"
    assert job.error is not None
    assert "--allow-pickle" in job.error.message
    job.retry()
    refused = bide(home, *work, "--allow-pickle", url=one_url)
    assert "Set $BIDE_SIGNING_KEYS" in error_of(refused, 2)
    done = bide(home, *work, "--allow-pickle", url=one_url, BIDE_SIGNING_KEYS=signing)
    assert signing.partition(":")[2] not in done.stderr
    assert job.refresh().result == "hello world"
    queue.close()


def test_at_a_terminal_logs_have_colours_and_ctrl_c_stops_it(home: Path, one_url: str) -> None:
    shown = at_terminal(home, "worker", "shop", url=one_url, types={"at once": "\x03"})
    assert shown.code == 0
    assert "\x1b[32mINFO" in shown.text
    assert "stopped after 0 jobs" in shown.text


def test_its_title_says_what_runs(home: Path, one_url: str) -> None:
    """A job that reads the title of the worker it runs in, until that speaks of the job."""
    (home / "shop.py").write_text(
        "import time\n"
        "def read_title():\n"
        "    for _ in range(1000):\n"
        "        title = open('/proc/self/cmdline').read().rstrip('\\0')\n"
        "        if 'read_title' in title:\n"
        "            return title\n"
        "        time.sleep(0.01)\n"
    )
    queue = Queue("mail", url=one_url)
    job = queue.enqueue("shop:read_title")
    bide(home, "worker", "shop", "-q", "mail", "-q", "low", "--burst", url=one_url)
    assert job.refresh().result == "bide worker mail, low: shop:read_title"
    queue.close()


NAMES = """
import bide
high, low = bide.Queue("high"), bide.Queue("low")
@low.task(name="say")
def say(text):
    print("ran", text, flush=True)
"""


def ran(done: Any) -> list[str]:
    return [line.removeprefix("ran ") for line in done.stdout.splitlines()]


@pytest.fixture
def desk(home: Path, one_url: str) -> Path:
    """Queues with three jobs each, by a task that goes by a name."""
    (home / "desk.py").write_text(NAMES)
    for name in ("low", "high"):
        queue = Queue(name, url=one_url)
        for _ in range(3):
            queue.enqueue("say", name)
        queue.close()
    return home


@pytest.mark.parametrize(
    ("order", "runs"),
    [
        ([], ["high"] * 3 + ["low"] * 3),
        (["--strategy", "strict"], ["high"] * 3 + ["low"] * 3),
        (["--strategy", "fair"], ["high", "low"] * 3),
        (["--strategy", "low=1,high=2"], ["high", "low", "high", "high", "low", "low"]),
    ],
)
def test_the_order_of_queues_is_typed(
    desk: Path, one_url: str, order: list[str], runs: list[str]
) -> None:
    told = ["worker", "desk", "-q", "high", "-q", "low", "-c", "1", "--burst", *order]
    assert ran(bide(desk, *told, url=one_url)) == runs


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ("unfair", "write strict, fair, or a weight for each queue"),
        ("high=6", "gives no weight to 'low'"),
        ("high=6,lwo=1", "'lwo', which is none of the worker's queues (high, low)"),
        ("high=6,low=0", "whole number from 1"),
        ("high=6,low=-1", "whole number from 1"),
    ],
)
def test_one_that_cannot_be_meant_is_one_sentence(desk: Path, order: str, text: str) -> None:
    done = bide(desk, "worker", "desk", "-q", "high", "-q", "low", "--strategy", order)
    assert text in error_of(done, 2)


@pytest.mark.parametrize(
    ("file", "runs"),
    [
        ('"fair"', ["high", "low"] * 3),
        ('"high=2,low=1"', ["high", "low", "high", "high", "low", "low"]),
        ("{high = 2, low = 1}", ["high", "low", "high", "high", "low", "low"]),
    ],
)
def test_or_stands_in_the_file(desk: Path, one_url: str, file: str, runs: list[str]) -> None:
    (desk / "pyproject.toml").write_text(
        f'[tool.bide.worker]\nmodules = ["desk"]\nqueues = ["high", "low"]\nstrategy = {file}\n'
    )
    assert ran(bide(desk, "worker", "-c", "1", "--burst", url=one_url)) == runs


def test_a_task_is_enqueued_by_its_name(desk: Path, one_url: str) -> None:
    unknown = error_of(bide(desk, "enqueue", "say", "hello", url=one_url), 1)
    assert "No task is named 'say' in the modules of [tool.bide.worker] (none)" in unknown
    (desk / "pyproject.toml").write_text('[tool.bide.worker]\nmodules = ["desk"]\n')
    done = bide(desk, "enqueue", "say", "hello", url=one_url)
    assert " on low: say, due " in said(done)
    assert "'b'" in error_of(bide(desk, "enqueue", "say", "hello", "b=1", url=one_url), 2)
    assert "'shout'" in error_of(bide(desk, "enqueue", "shout", url=one_url), 1)
    done = bide(desk, "enqueue", "shout", "--no-check", "-q", "low", url=one_url)
    assert " on low: shout, due " in said(done)
    done = bide(desk, "worker", "-q", "low", "-c", "1", "--burst", url=one_url)
    assert ran(done) == ["low"] * 3 + ["hello"]
    assert "No task is named 'shout' here (there are: say)" in done.stderr
    assert done.returncode == 0


SCRIPT = """
import sys
import bide

queue = bide.Queue("mail")

@queue.task
def send(to: str) -> str:
    return f"sent to {to}"

if __name__ == "__main__":
    job = send.enqueue("ann")
    if "alone" in sys.argv:
        bide.Worker(queue).run(burst=True)
        job.refresh()
    print(job.id, job.state)
"""


def test_the_tasks_of_a_program_are_run_by_a_worker_of_its_module(home: Path, one_url: str) -> None:
    (home / "app.py").write_text(SCRIPT)
    queue = Queue("mail", url=one_url)

    def program(*args: str) -> list[str]:
        command = [sys.executable, "app.py", *args]
        environment = os.environ | {"BIDE_URL": one_url}
        done = subprocess.run(
            command, cwd=home, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    id, state = program()
    assert state == "waiting"
    assert "write 'app' instead." in error_of(bide(home, "worker", "app.py", url=one_url), 2)
    said(bide(home, "worker", "app", "--burst", url=one_url))
    assert queue.fetch(id).result == "sent to ann"
    assert program("alone")[1] == "completed"
    queue.close()
