"""A worker's jobs without a server: what becomes of one that is asked to stop as it begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bide.model.job import Claimed
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands.worker import Claim
from bide.protocol.keys import keys_of
from bide.tasks import task
from bide.tasks.registry import task_name
from bide.tasks.task import TaskRegistry, register
from bide.worker.executors.local import LocalExecutor
from bide.worker.queue_state import QueueState

MAIL, POST = keys_of("mail"), keys_of("post")
ran: list[str] = []


async def run_async() -> None:
    ran.append("async")


def run_in_thread() -> None:
    ran.append("thread")


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_registered", {})
    register(run_async)
    register(run_in_thread)
    ran.clear()


class Scene:
    """One job of `mail` that a worker has just claimed."""

    def __init__(self, function: Any, *, is_last: bool = False) -> None:
        self.queue_state = QueueState(MAIL, "w1", 10_000_000)
        self.changed = asyncio.Event()
        self.running = LocalExecutor("w1", TaskRegistry(), 10, None, (), self.changed.set)
        body = encode_body(Body(task_name(function)))
        jobs = [Claimed("a", body, 1, 1, 0, 5, 5)]
        until_us = 1_000_005 if is_last else 0  # 0: more is due
        reply = Claim(5, until_us, until_us, False, False, False, jobs)
        self.queue_state.claimed(reply, 0.0, 0.0)
        self.running.submit(self.queue_state, reply, 0.0, 0.0)

    async def outcome(self) -> str:
        async with asyncio.timeout(10):
            while not self.queue_state.settles:
                await self.changed.wait()
                self.changed.clear()
        await self.running.close()
        (settle,) = self.queue_state.settles
        return settle.outcome


@pytest.mark.anyio
@pytest.mark.parametrize("function", [run_async, run_in_thread])
async def test_one_that_is_asked_before_it_was_started_never_runs(function: Any) -> None:
    scene = Scene(function)
    scene.running.request_cancel(MAIL["asked"], "a")
    assert await scene.outcome() == "cancel"
    assert ran == []


@pytest.mark.anyio
async def test_one_whose_task_has_not_taken_a_step_never_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(run_async)
    asyncio.get_running_loop().call_soon(scene.running.request_cancel, MAIL["asked"], "a")
    assert await scene.outcome() == "cancel"
    assert ran == []


@pytest.mark.anyio
@pytest.mark.parametrize(("channel", "id"), [(POST["asked"], "a"), (MAIL["asked"], "b")])
@pytest.mark.parametrize("function", [run_async, run_in_thread])
async def test_one_of_another_queue_or_id_is_not_meant(
    function: Any, channel: str, id: str
) -> None:
    scene = Scene(function)
    scene.running.request_cancel(channel, id)
    assert await scene.outcome() == "complete"
    assert len(ran) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("is_last", [True, False])
async def test_jobs_start_before_the_next_claim_is_sent_only_if_that_claim_would_find_none(
    is_last: bool,
) -> None:
    """While the jobs of one claim run, the server works on the next."""
    scene = Scene(run_async, is_last=is_last)
    (run,) = scene.running.held_jobs()
    assert (run.begun_at > 0) is is_last
    assert await scene.outcome() == "complete"
