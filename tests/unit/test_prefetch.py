"""Jobs that a worker of few slots takes ahead: how many, in which order, and when they go back."""

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
from bide.worker.executors.local import ENOUGH, LocalExecutor
from bide.worker.queue_state import AHEAD, STALE, Prefetch, QueueState

MAIL = keys_of("mail")
ran: list[int] = []
gate = threading.Event()
at_once, most = 0, 0
counting = threading.Lock()


def quick(number: int) -> None:
    global at_once, most
    with counting:
        at_once += 1
        most = max(most, at_once)
    time.sleep(0)  # lets others run beside it
    with counting:
        at_once -= 1
        ran.append(number)


def slow(number: int) -> None:
    gate.wait(90)
    quick(number)


async def quick_async(number: int) -> None:
    global at_once, most
    with counting:
        at_once += 1
        most = max(most, at_once)
    await asyncio.sleep(0)
    with counting:
        at_once -= 1
        ran.append(number)


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    global at_once, most
    monkeypatch.setattr(task, "_registered", {})
    for function in (quick, slow, quick_async):
        register(function)
    ran.clear()
    gate.clear()
    at_once = most = 0


class Unhurried(Prefetch):
    """Jobs that end have been quick, however busy the machine is."""

    def note_run(self, seconds: float) -> None:
        super().note_run(AHEAD / 1000)


class Unworried(Unhurried):
    """Nor do jobs run for long that have not ended yet."""

    def note_running(self, seconds: float) -> None:
        """Ignore it."""


class Scene:
    """What a worker runs that has a few slots."""

    def __init__(self, slots: int, max_jobs: int | None = None) -> None:
        self.queue_state = QueueState(MAIL, "w1", 10_000_000)
        self.changed = asyncio.Event()
        self.running = LocalExecutor("w1", TaskRegistry(), slots, max_jobs, (), self.changed.set)
        self.running._prefetch = Unhurried()
        self.count = 0

    def accept(self, function: object, jobs: int = 1) -> None:
        claimed = []
        for _ in range(jobs):
            body = encode_body(Body(task_name(function), [self.count]))  # type: ignore[arg-type]
            claimed.append(Claimed(f"{self.count}", body, 1, 1, 0, 5, 5))
            self.count += 1
        reply = Claim(5, 0, 0, False, False, False, claimed)
        self.running.submit(self.queue_state, reply, time.monotonic(), time.monotonic())

    async def settled(self, count: int) -> dict[str, str]:
        """The outcomes, once there are so many."""
        async with asyncio.timeout(10):
            while len(self.queue_state.settles) < count:
                await self.changed.wait()
                self.changed.clear()
        return {settle.id: settle.outcome for settle in self.queue_state.settles}


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene(2)
    yield scene
    gate.set()
    await scene.running.close()


@pytest.mark.anyio
@pytest.mark.parametrize("function", [quick, quick_async])
async def test_slots_are_the_bound_of_what_runs_at_once(scene: Scene, function: object) -> None:
    scene.accept(function, 50)
    outcomes = await scene.settled(50)
    assert set(outcomes.values()) == {"complete"}
    assert 1 <= most <= 2
    assert len(scene_threads()) <= 2


@pytest.mark.anyio
async def test_what_waits_begins_in_its_order() -> None:
    scene = Scene(1)
    scene.accept(quick, 5)
    scene.accept(quick_async, 5)
    scene.accept(quick, 5)
    await scene.settled(15)
    await scene.running.close()
    assert ran == list(range(15))


@pytest.mark.anyio
async def test_a_worker_takes_ahead_once_it_has_seen_that_jobs_are_quick(scene: Scene) -> None:
    assert scene.running.capacity == 2
    scene.running._prefetch = Unworried()
    scene.accept(quick, 20)
    await scene.settled(20)
    assert 2 < scene.running.capacity <= ENOUGH


@pytest.mark.anyio
async def test_one_of_a_single_slot_never_does() -> None:
    scene = Scene(1)
    scene.accept(quick, 20)
    await scene.settled(20)
    assert scene.running.capacity == 1
    await scene.running.close()


@pytest.mark.anyio
async def test_no_more_than_it_is_to_run_in_all() -> None:
    scene = Scene(2, max_jobs=25)
    scene.running._prefetch = Unworried()
    scene.accept(quick, 20)
    await scene.settled(20)
    assert scene.running.capacity == 5
    await scene.running.close()


@pytest.mark.anyio
async def test_what_waits_behind_slow_jobs_goes_back(scene: Scene) -> None:
    scene.accept(slow, 2)
    scene.accept(quick, 3)
    await asyncio.sleep(0)
    assert [doing.id for doing in scene.running.snapshot()] == ["0", "1"]
    outcomes = await scene.settled(3)
    assert outcomes == {"2": "release", "3": "release", "4": "release"}
    gate.set()
    assert (await scene.settled(5))["1"] == "complete"
    assert sorted(ran) == [0, 1]


@pytest.mark.anyio
async def test_jobs_that_run_long_are_known_to_before_they_end(scene: Scene) -> None:
    scene.accept(quick, 20)
    await scene.settled(20)
    assert scene.running.capacity > 2
    scene.accept(slow, 2)
    scene.accept(quick)
    assert (await scene.settled(21))["22"] == "release"
    assert scene.running.capacity == 2


@pytest.mark.anyio
async def test_what_waits_and_was_cancelled_never_runs(scene: Scene) -> None:
    scene.accept(slow, 2)
    scene.accept(quick)
    scene.running.request_cancel(MAIL["asked"], "2")
    assert await scene.settled(1) == {"2": "cancel"}


@pytest.mark.anyio
async def test_what_waits_goes_back_when_the_worker_ends(scene: Scene) -> None:
    scene.accept(slow, 2)
    scene.accept(quick, 2)
    await asyncio.sleep(0)
    scene.running.release_all()
    assert set((await scene.settled(4)).values()) == {"release"}
    gate.set()
    await asyncio.sleep(2 * STALE)
    assert 2 not in ran


def scene_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("bide-w1")]


def test_pace_allows_so_much_work_and_no_more() -> None:
    prefetch = Prefetch()
    assert prefetch.ahead(50) == 0, "nothing is known of them"
    prefetch.note_run(AHEAD / 10)
    assert prefetch.ahead(50) == 10
    assert prefetch.ahead(5) == 5
    prefetch.note_running(2 * AHEAD)
    assert prefetch.ahead(50) == 0
