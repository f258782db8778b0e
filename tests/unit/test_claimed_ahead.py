"""Jobs that a worker has claimed before they are due: each starts at its time, or is returned."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from bide.model.job import Claimed
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands.worker import Claim
from bide.protocol.keys import keys_of
from bide.tasks import task
from bide.tasks.registry import task_name
from bide.tasks.task import TaskRegistry, register
from bide.worker.executors.local import LocalExecutor
from bide.worker.queue_state import LEAD, LONGEST_LEAD, AheadWindow, QueueState

pytestmark = pytest.mark.anyio

MAIL = keys_of("mail")
NOW_US = 1_000_000_000
LEASE_US = 10_000_000
started: dict[str, float] = {}
gate = threading.Event()


async def note(id: str) -> None:
    started[id] = time.monotonic()


def note_in_thread(id: str) -> None:
    started[id] = time.monotonic()


async def hold(id: str) -> None:
    started[id] = time.monotonic()
    await asyncio.to_thread(gate.wait, 90)


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_registered", {})
    for function in (note, note_in_thread, hold):
        register(function)
    started.clear()
    gate.clear()


class Scene:
    """An executor, and what it is given."""

    def __init__(self, slots: int) -> None:
        self.queue_state = QueueState(MAIL, "w1", LEASE_US)
        self.changed = asyncio.Event()
        self.executor = LocalExecutor("w1", TaskRegistry(), slots, None, (), self.changed.set)

    def accept(self, *jobs: tuple[str, float], function: object = note, ago: float = 0) -> float:
        """Jobs of these ids, due so many seconds after the reply; when that arrived."""
        claimed = []
        for id, delay in jobs:
            body = encode_body(Body(task_name(function), [id]))  # type: ignore[arg-type]
            due_us = NOW_US + round(delay * 1e6)
            claimed.append(Claimed(id, body, due_us, 1, 0, due_us, due_us))
        arrived = time.monotonic()
        reply = Claim(NOW_US, 0, 0, False, False, False, claimed)
        self.queue_state.claimed(reply, arrived - ago, arrived)
        self.executor.submit(self.queue_state, reply, arrived - ago, arrived)
        return arrived

    async def settled(self, count: int) -> dict[str, str]:
        """The outcomes, once there are so many."""
        async with asyncio.timeout(30):
            while len(self.queue_state.settles) < count:
                await self.changed.wait()
                self.changed.clear()
        return {settle.id: settle.outcome for settle in self.queue_state.settles}


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene(4)
    yield scene
    gate.set()
    await scene.executor.close()


@pytest.mark.parametrize("function", [note, note_in_thread])
async def test_each_starts_when_it_is_due_and_not_earlier(scene: Scene, function: object) -> None:
    arrived = scene.accept(("c", 0.015), ("now", 0), ("a", 0.005), ("b", 0.01), function=function)
    assert scene.executor.ahead == 3
    assert scene.executor.free_slots == 0
    await scene.settled(4)
    assert scene.executor.ahead == 0
    for id, delay in (("a", 0.005), ("b", 0.01), ("c", 0.015)):
        assert started[id] >= arrived + delay
    if function is note:
        assert sorted(started, key=started.__getitem__) == ["now", "a", "b", "c"]


async def test_a_blocked_event_loop_starts_none_early(scene: Scene) -> None:
    arrived = scene.accept(("a", 0.5))
    time.sleep(0.01)  # noqa: ASYNC251
    scene.executor._start_due()  # as a timer would that fires too early
    if time.monotonic() < arrived + 0.4:  # this process was not held up for so long
        assert scene.executor.ahead == 1
    await scene.settled(1)
    assert started["a"] >= arrived + 0.5


async def test_a_newer_reply_starts_a_job_that_came_late(scene: Scene) -> None:
    """Its own reply was long on its way, and so lets it wait for longer than it must."""
    scene.accept(("a", 5))
    claimed = Claimed("b", encode_body(Body(task_name(note), ["b"])), 1, 1, 0, 5, 5)
    late_us = NOW_US + 6_000_000
    newer = Claim(late_us, 0, 0, False, False, False, [claimed])
    scene.executor.submit(scene.queue_state, newer, time.monotonic(), time.monotonic())
    assert await scene.settled(2) == {"a": "complete", "b": "complete"}
    assert started["a"] <= started["b"]


async def test_its_lateness_counts_from_when_it_was_due(scene: Scene) -> None:
    scene.accept(("a", 0.01))
    await scene.settled(1)
    (settle,) = scene.queue_state.settles
    assert settle.token == NOW_US + 10_000
    assert settle.started_us == 0 or settle.started_us >= settle.token + 1000
    assert scene.queue_state.lateness.take().endswith("=1")
    assert scene.queue_state.lateness.take() == ""


async def test_one_that_is_recalled_is_returned_unrun(scene: Scene) -> None:
    scene.accept(("a", 5), ("b", 5), ("now", 0))
    scene.executor.recall("bide:{post}:asked", "")
    scene.executor.recall(MAIL["asked"], "b")
    assert (await scene.settled(2))["b"] == "release"
    scene.executor.recall(MAIL["asked"], "")
    assert await scene.settled(3) == {"b": "release", "now": "complete", "a": "release"}
    assert not any(settle.has_started for settle in scene.queue_state.settles)
    assert started.keys() == {"now"}
    assert scene.executor.busy == 0


async def test_a_worker_that_is_paused_returns_all_of_them(scene: Scene) -> None:
    scene.accept(("a", 5), ("b", 5), ("now", 0))
    scene.executor.recall_all()
    assert await scene.settled(3) == {"a": "release", "b": "release", "now": "complete"}
    assert (scene.executor.ahead, scene.executor.busy) == (0, 0)


async def test_one_that_is_cancelled_never_runs(scene: Scene) -> None:
    scene.accept(("a", 0.01))
    scene.executor.request_cancel(MAIL["asked"], "a")
    assert await scene.settled(1) == {"a": "cancel"}
    assert started == {}


async def test_a_worker_that_ends_returns_them(scene: Scene) -> None:
    scene.accept(("a", 5))
    scene.executor.release_all()
    assert await scene.settled(1) == {"a": "release"}
    assert scene.executor.ahead == 0


async def test_after_a_pause_as_long_as_a_lease_they_are_returned(scene: Scene) -> None:
    scene.accept(("a", 0.005), ago=LEASE_US / 1e6)
    assert await scene.settled(1) == {"a": "release"}
    assert started == {}


async def test_one_whose_slot_was_taken_meanwhile_is_returned() -> None:
    scene = Scene(1)
    scene.accept(("a", 0.01))
    scene.accept(("urgent", 0), function=hold)
    assert (await scene.settled(1)) == {"a": "release"}
    gate.set()
    assert (await scene.settled(2))["urgent"] == "complete"
    await scene.executor.close()


def test_the_lead_grows_with_the_round_trips_and_with_how_they_differ() -> None:
    near, far, uneven = AheadWindow(), AheadWindow(), AheadWindow()
    for i in range(100):
        near.note(0.0002)
        far.note(0.02)
        uneven.note(0.0002 if i % 2 else 0.002)
    assert LEAD < near.lead < uneven.lead
    assert near.lead < far.lead <= LONGEST_LEAD
    for window in (near, far, uneven):
        assert window.lead + window.mean <= window.length or window.length == 0.02
        assert window.length <= 0.02
