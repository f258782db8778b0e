"""`Middleware.failed`: called once for each attempt that failed, whatever the executor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from bide import Job, Queue, Retry, State
from bide.embedded import Server
from bide.model.job import FINISHED
from bide.protocol.commands.worker import claim
from tests.conftest import BINARIES
from tests.support.console import bide
from tests.support.missing import age

SHOP = """
import asyncio, json, os, signal, time
from pathlib import Path

import bide

HEARD = Path(__file__).with_name("heard")


def heard(how, failure):
    job = failure.job
    assert bide.current_job() is job
    line = {
        "how": how, "id": job.id, "task": job.task, "attempt": job.attempt, "queue": job.queue,
        "error": type(failure.error).__name__, "message": str(failure.error),
        "args": failure.args and list(failure.args),
        "kwargs": failure.kwargs and dict(failure.kwargs),
        "retry_in": failure.retry_in, "final": failure.is_final, "raised": failure.raised,
        "traceback": failure.error.__traceback__ is not None,
    }
    with HEARD.open("a") as file:
        file.write(json.dumps(line, default=repr) + "\\n")


class Plain(bide.Middleware):
    def failed(self, failure):
        heard("plain", failure)


class Broken(bide.Middleware):
    def failed(self, failure):
        raise RuntimeError("the tracker is down")


class Awaited(bide.Middleware):
    async def failed(self, failure):
        await asyncio.sleep(0)
        heard("awaited", failure)


class Deaf(bide.Middleware):
    pass


for kind in (Plain, Broken, Deaf, Awaited):
    bide.add_middleware(kind())


def add(a: int, b: int = 0): return a + b
async def add_async(a: int, b: int = 0): return a + b

def boom(n, why="no"): raise ValueError(why)
async def boom_async(n, why="no"): raise ValueError(why)

def unfit(n): return object()
async def unfit_async(n): return object()

def slow(n): time.sleep(n)
async def slow_async(n): await asyncio.sleep(n)

def snooze(n):
    if bide.current_job().first_due == bide.current_job().due:
        raise bide.Snooze(0.01)

def give_up(n): raise bide.Fail("no use")

def leave(n): raise bide.JobCancelled("not any more")

def die(n): os._exit(n)

def deaf(n):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(n)
"""
BOTH = pytest.mark.parametrize("kind", ["", "_async"])
APART = pytest.mark.parametrize("scene", ["process", "fork"], indirect=True)


class Scene(NamedTuple):
    """What became of one job of each kind, in workers of one executor."""

    executor: str
    jobs: dict[str, str]
    """The id of each, by its name."""
    states: dict[str, State]
    """How it ended, by its name."""
    lines: list[dict[str, Any]]
    """What the hooks wrote."""
    log: list[dict[str, Any]]

    def heard(self, name: str) -> list[dict[str, Any]]:
        """What was heard of a job, by both kinds of hooks, which must have heard the same."""
        of_job = [line for line in self.lines if line["id"] == self.jobs[name]]
        plain, awaited = (
            [{k: v for k, v in line.items() if k != "how"} for line in of_job if line["how"] == how]
            for how in ("plain", "awaited")
        )
        assert plain == awaited
        return plain

    def heard_once(self, name: str) -> dict[str, Any]:
        """The only failure of a job that was heard of."""
        (one,) = self.heard(name)
        return one


def play(home: Path, url: str, executor: str) -> Scene:
    """Run one job of each kind, in two workers: the second has what the first left for later."""
    (home / "shop.py").write_text(SHOP)
    queue = Queue("mail", url=url)
    now = Retry(1, backoff="fixed", base=0)
    jobs: dict[str, Job[Any]] = {}
    for kind in ("", "_async"):
        jobs |= {
            f"raises{kind}": queue.enqueue_call(f"shop:boom{kind}", [7], {"why": "no"}, retry=now),
            f"runs too long{kind}": queue.enqueue(f"shop:slow{kind}", 0.6, timeout=0.1),
            f"arguments{kind}": queue.enqueue_call(f"shop:add{kind}", ["one"], {"b": 2}),
            f"result{kind}": queue.enqueue(f"shop:unfit{kind}", 3),
            f"fits{kind}": queue.enqueue(f"shop:add{kind}", 3, retry=now),
        }
    jobs |= {
        "body": queue.enqueue("shop:add", 1),
        "missing": queue.enqueue("shop:nothing", 3),
        "snooze": queue.enqueue("shop:snooze", 3, retry=now),
        "leave": queue.enqueue("shop:leave", 3, retry=now),
        "give up": queue.enqueue("shop:give_up", 3, retry=now),
    }
    if executor != "auto":
        jobs |= {
            "crash": queue.enqueue("shop:die", 3),
            "last crash": queue.enqueue("shop:die", 3, on_crash="fail"),
            "killed": queue.enqueue("shop:deaf", 60, timeout=0.1),
        }
    log: list[dict[str, Any]] = []
    with redis.Redis.from_url(url) as direct:
        direct.hset(queue.keys["jobs"], jobs["body"].id, b"no body")
        for _ in range(2):
            command = ["worker", "shop", "-q", "mail", "--burst", "-x", executor]
            done = bide(home, *command, "--log-format", "json", url=url)
            assert done.returncode == 0, done.stderr
            log += [json.loads(line) for line in done.stderr.splitlines()]
            if jobs["missing"].refresh().state not in FINISHED:
                age(direct, queue, jobs["missing"].id, 1000)
                jobs["missing"].promote()
    states = {name: job.refresh().state for name, job in jobs.items()}
    (home / "heard").touch()
    lines = [json.loads(line) for line in (home / "heard").read_text().splitlines()]
    queue.close()
    return Scene(executor, {name: job.id for name, job in jobs.items()}, states, lines, log)


@pytest.fixture(scope="module", params=["auto", "process", "fork"])
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    with Server.start(binary=next(iter(BINARIES.values()))) as server:
        yield play(tmp_path_factory.mktemp("shop"), server.url, request.param)


@pytest.mark.slow
@BOTH
def test_each_attempt_that_raised_is_heard_of(scene: Scene, kind: str) -> None:
    first, second = scene.heard(name := f"raises{kind}")
    common = {
        "id": scene.jobs[name],
        "task": f"shop:boom{kind}",
        "queue": "mail",
        "error": "ValueError",
        "message": "no",
        "args": [7],
        "kwargs": {"why": "no"},
        "raised": True,
        "traceback": True,
    }
    assert first == common | {"attempt": 1, "retry_in": 0.0, "final": False}
    assert second == common | {"attempt": 2, "retry_in": None, "final": True}


@BOTH
def test_a_time_out_is_heard_of(scene: Scene, kind: str) -> None:
    one = scene.heard_once(f"runs too long{kind}")
    assert (one["error"], one["final"], one["args"]) == ("JobTimeout", True, [0.6])
    assert "time-out of 0.1 s" in one["message"]
    # A signal raises it inside of a plain function.
    assert one["raised"] == (scene.executor != "auto" and not kind)


@BOTH
def test_arguments_that_do_not_fit_are_heard_of(scene: Scene, kind: str) -> None:
    one = scene.heard_once(f"arguments{kind}")
    assert (one["error"], one["final"], one["raised"]) == ("PayloadError", True, False)
    assert (one["args"], one["kwargs"]) == (["one"], {"b": 2})


def test_a_body_that_cannot_be_read_is_heard_of(scene: Scene) -> None:
    one = scene.heard_once("body")
    assert (one["error"], one["task"], one["final"]) == ("PayloadError", "?", True)
    assert (one["args"], one["kwargs"]) == (None, None)


@BOTH
def test_a_result_that_does_not_fit_is_heard_of(scene: Scene, kind: str) -> None:
    one = scene.heard_once(f"result{kind}")
    assert (one["error"], one["final"], one["raised"]) == ("PayloadError", True, False)
    assert (one["args"], one["kwargs"]) == ([3], {})


def test_a_missing_task_is_heard_of_once_nobody_waits_for_it_any_more(scene: Scene) -> None:
    one = scene.heard_once("missing")
    assert (one["error"], one["final"], one["args"]) == ("TaskNotFound", True, [3])
    assert scene.states["missing"] is State.FAILED


@pytest.mark.parametrize("name", ["fits", "fits_async", "snooze", "leave"])
def test_what_is_no_failure_is_not_heard_of(scene: Scene, name: str) -> None:
    assert scene.heard(name) == []
    assert scene.states[name] is (State.CANCELLED if name == "leave" else State.COMPLETED)


def test_a_job_that_gives_up_is_heard_of(scene: Scene) -> None:
    one = scene.heard_once("give up")
    assert (one["error"], one["final"], one["raised"]) == ("Fail", True, True)


@BOTH
def test_a_hook_that_raises_is_logged_and_harms_nothing(scene: Scene, kind: str) -> None:
    """The hooks behind it have heard, or `heard` had found a difference."""
    id = scene.jobs[f"result{kind}"]
    (said,) = [one for one in scene.log if "Broken.failed" in one["msg"] and id in one["msg"]]
    assert (said["level"], said["job_id"]) == ("error", id)
    assert "the tracker is down" in said["exc"]
    assert scene.states[f"result{kind}"] is State.FAILED


@APART
def test_each_crash_of_a_process_is_heard_of(scene: Scene) -> None:
    heard = scene.heard("crash")
    assert [one["retry_in"] for one in heard] == [0.0, 0.0, None]
    for one in heard:
        assert (one["error"], one["args"], one["raised"]) == ("WorkerCrashed", [3], False)
        assert "exited with code 3" in one["message"]
    assert scene.states["crash"] is State.FAILED


@APART
def test_a_crash_after_which_a_job_must_not_run_again_is_final(scene: Scene) -> None:
    one = scene.heard_once("last crash")
    assert (one["error"], one["final"]) == ("WorkerCrashed", True)


@APART
def test_a_job_that_is_killed_because_it_ran_too_long_is_heard_of(scene: Scene) -> None:
    one = scene.heard_once("killed")
    assert (one["error"], one["final"], one["args"]) == ("JobTimeout", True, [60])
    assert "killed by SIGKILL" in one["message"]


@pytest.mark.slow
def test_pickled_arguments_are_not_read_again_after_a_crash(
    tmp_path: Path, one_url: str, signing: str
) -> None:
    """What the process died of may have been their code."""
    (tmp_path / "shop.py").write_text(SHOP)
    queue = Queue("mail", url=one_url, serializer="pickle")
    jobs = [queue.enqueue("shop:boom", {3}), queue.enqueue("shop:die", 3, on_crash="fail")]
    command = ["worker", "shop", "-q", "mail", "--burst", "-x", "process", "--allow-pickle"]
    done = bide(tmp_path, *command, url=one_url, BIDE_SIGNING_KEYS=signing)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "heard").read_text().splitlines()]
    heard = {line["id"]: (line["args"], line["kwargs"]) for line in lines}
    assert heard == {jobs[0].id: (["{3}"], {}), jobs[1].id: (None, None)}
    queue.close()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "process"])
def test_a_job_whose_id_is_not_utf_8_fails_and_ends_no_worker(
    tmp_path: Path, one_url: str, direct: redis.Redis, executor: str
) -> None:
    """Another program has written it."""
    (tmp_path / "shop.py").write_text(SHOP)
    with closing(Queue("mail", url=one_url)) as queue:
        usual, odd = queue.enqueue("shop:add", 1), b"a\xffb"
        body: Any = direct.hget(queue.keys["jobs"], usual.id)
        direct.hset(queue.keys["jobs"], odd, body)
        direct.zadd(queue.keys.names["due"][4], {odd: 1})
        command = ["worker", "shop", "-q", "mail", "--burst", "-v", "-x", executor]
        done = bide(tmp_path, *command, url=one_url)
        assert done.returncode == 0, done.stderr
        assert usual.refresh().state == State.COMPLETED
        notes: Any = direct.hget(queue.keys["notes"], odd)
        assert b"The id of this job is not UTF-8" in notes


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "process"])
def test_a_crash_under_a_name_of_another_programs_is_heard_of(
    tmp_path: Path, one_url: str, direct: redis.Redis, executor: str
) -> None:
    """The record of a job names its worker, and may name it in whatever bytes."""
    (tmp_path / "shop.py").write_text(SHOP)
    with closing(Queue("mail", url=one_url)) as queue:
        ids = [queue.enqueue("shop:add", n).id for n in range(3)]
        (lost,) = queue._run(claim(queue.keys, "dead", 1, 1, 1_000, 0, 0)).jobs
        record: Any = direct.hget(queue.keys["run"], lost.id)
        direct.hset(queue.keys["run"], lost.id, record.replace(b" dead ", b" d\xffead "))
        command = ["worker", "shop", "-q", "mail", "--burst", "-x", executor]
        done = bide(tmp_path, *command, url=one_url)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (tmp_path / "heard").read_text().splitlines()]
        assert {line["id"] for line in lines} == {lost.id}
        assert [queue.fetch(id).state for id in ids] == [State.COMPLETED] * 3
