"""Hooks hear of attempts whose worker has died, from whichever worker finds that out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bide import Queue, State
from bide.client.blocking import Client
from bide.embedded import Server
from bide.protocol.commands import Command
from bide.protocol.commands import worker as worker_commands
from bide.protocol.keys import keys_of
from tests.conftest import BINARIES
from tests.support.console import bide
from tests.support.workers import eventually
from tests.worker.test_failed_attempts import SHOP

TOLD = """

def told(job, error):
    with HEARD.open("a") as file:
        line = {"how": "callback", "id": job.id, "message": str(error)}
        file.write(json.dumps(line) + "\\n")
"""


class Scene(NamedTuple):
    """What a worker told hooks of jobs under which others had died."""

    jobs: dict[str, str]
    states: dict[str, State]
    lines: list[dict[str, Any]]

    def heard(self, name: str, how: str = "plain") -> list[dict[str, Any]]:
        return [line for line in self.lines if (line["id"], line["how"]) == (self.jobs[name], how)]


def die(client: Client, queue: str, times: int) -> None:
    """Have workers claim a job, and never be heard of again."""
    keys = keys_of(queue)

    def claim(worker: str) -> Command[worker_commands.Claim]:
        return worker_commands.claim(keys, worker, 1, 1, 1, 0)

    for n in range(times):
        # A lease of a microsecond has ended by the next claim.
        eventually(lambda n=n: client.run(claim(f"dead-{n}")).jobs)  # type: ignore[misc]


def play(home: Path, url: str, executor: str) -> Scene:
    """Run one worker where others have died before."""
    (home / "shop.py").write_text(SHOP + TOLD)
    queues = {name: Queue(name, url=url) for name in ("again", "poison", "once")}
    jobs = {
        "again": queues["again"].enqueue("shop:add", 1, on_failure="shop:told"),
        "poison": queues["poison"].enqueue("shop:add", 2, on_failure="shop:told"),
        "once": queues["once"].enqueue("shop:add", 3, on_crash="fail"),
    }
    client = Client(url)
    die(client, "again", 1)
    die(client, "poison", 5)  # of which the last three were alone with it
    die(client, "once", 1)
    client.close()
    command = ["worker", "shop", "--burst", "-x", executor]
    done = bide(home, *command, *(f"-q{name}" for name in queues), url=url)
    assert done.returncode == 0, done.stderr
    states = {name: job.refresh().state for name, job in jobs.items()}
    (home / "heard").touch()
    lines = [json.loads(line) for line in (home / "heard").read_text().splitlines()]
    for queue in queues.values():
        queue.close()
    return Scene({name: job.id for name, job in jobs.items()}, states, lines)


@pytest.fixture(scope="module", params=["auto", "process", "fork"])
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    with Server.start(binary=next(iter(BINARIES.values()))) as server:
        yield play(tmp_path_factory.mktemp("shop"), server.url, request.param)


@pytest.mark.slow
def test_an_attempt_that_will_be_repeated_is_heard_of_once(scene: Scene) -> None:
    (one,) = scene.heard("again")
    assert (one["error"], one["retry_in"], one["raised"]) == ("WorkerCrashed", 0.0, False)
    assert (one["attempt"], one["task"], one["queue"]) == (1, "shop:add", "again")
    assert (one["args"], one["kwargs"]) == ([1], {})
    assert one["message"].startswith("Its worker dead-0 died or stopped while it held this job")
    assert scene.heard("again", "callback") == []
    assert scene.states["again"] is State.COMPLETED


def test_a_job_under_which_too_many_workers_died_is_heard_of_as_failed(scene: Scene) -> None:
    (one,) = scene.heard("poison")
    assert (one["error"], one["final"], one["args"]) == ("WorkerCrashed", True, [2])
    assert "died or stopped 5 times under this job, 3 of them while it ran alone" in one["message"]
    assert scene.states["poison"] is State.FAILED


def test_its_callback_is_called_too(scene: Scene) -> None:
    (one,) = scene.heard("poison", "callback")
    assert "the last was dead-4" in one["message"]


def test_a_job_that_must_not_run_again_is_heard_of_once_as_failed(scene: Scene) -> None:
    (one,) = scene.heard("once")
    assert (one["error"], one["final"]) == ("WorkerCrashed", True)
    assert scene.states["once"] is State.FAILED
