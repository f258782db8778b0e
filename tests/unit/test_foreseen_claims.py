"""The claim that a worker encodes while it waits: when it is sent, and when another is built."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from bide.client import aio
from bide.client.execute import calls_of, pack
from bide.protocol.commands.worker import Claim, Settle
from bide.protocol.keys import keys_of
from bide.protocol.scripts import SERVER_CLOCK
from bide.worker.loop import WorkerLoop
from bide.worker.queue_state import PollingOrder, QueueState
from tests.unit.test_loop import Slots

pytestmark = pytest.mark.anyio

NOBODY = "redis://127.0.0.1:1"
LEASE_US = 10_000_000


class Scene:
    """A loop of one idle worker, whose claims have found its queues empty."""

    def __init__(self, *queues: str, burst: bool = False, until: float = 5) -> None:
        self.states = [QueueState(keys_of(queue), "w1", LEASE_US) for queue in queues]
        self.slots = Slots()
        client = aio.AsyncClient(NOBODY)
        self.loop = WorkerLoop(client, self.states, PollingOrder(), burst=burst)
        self.loop._executor = self.slots  # type: ignore[assignment]
        self.loop._listen = lambda: None  # type: ignore[method-assign]
        for state in self.states:
            state.claim(5, 0)
            until_us = round(until * 1e6)
            empty = Claim(1, 1 + until_us, 0, False, False, False, [])
            state.claimed(empty, time.monotonic(), time.monotonic())
        self.loop._foreseen = self.loop._foresee()

    @property
    def state(self) -> QueueState:
        return self.states[0]


async def test_after_a_wake_up_message_it_is_sent() -> None:
    scene = Scene("mail")
    scene.state.on_wakeup("-")
    foreseen = scene.loop._take_foreseen()
    assert foreseen is not None
    assert scene.state.unanswered
    repeated = scene.state.claim(3, 0, 3)
    assert foreseen.commands.encoded == pack(calls_of([repeated], SERVER_CLOCK))
    (part,) = foreseen.parts
    assert (part.claim_for, part.slots, part.reads_clock) == (3, 3, False)
    assert scene.loop._take_foreseen() is None, "it is sent once"


async def test_a_message_that_comes_while_it_is_under_way_asks_for_another() -> None:
    scene = Scene("mail")
    for comes_later in (False, True):
        scene.state.on_wakeup("-")
        assert scene.loop._take_foreseen() is not None
        if comes_later:
            scene.state.on_wakeup("-")
        empty = Claim(1, 5_000_001, 0, False, False, False, [])
        scene.state.claimed(empty, time.monotonic(), time.monotonic())
        assert scene.state.check is comes_later
        scene.loop._foreseen = scene.loop._foresee()


async def test_without_a_message_nothing_is_sent() -> None:
    scene = Scene("mail")
    assert scene.loop._take_foreseen() is None
    assert not scene.state.unanswered


@pytest.mark.parametrize("is_deadline", [True, False])
async def test_at_another_time_the_clock_is_read_behind_the_claim(is_deadline: bool) -> None:
    scene = Scene("mail")
    scene.state.claim_at, scene.state.exact = time.monotonic() - 1, is_deadline
    assert scene.loop._take_foreseen() is None
    (part,) = scene.loop._plan()
    assert part.reads_clock


@pytest.mark.parametrize("busy", [0, 1])
async def test_a_busy_worker_reads_the_clock_after_a_message_too(busy: int) -> None:
    scene = Scene("mail")
    scene.slots.busy = busy
    scene.state.on_wakeup("-")
    (part,) = scene.loop._plan()
    assert part.reads_clock == bool(busy)


CHANGES: dict[str, Callable[[Scene], Any]] = {
    "a slot has gone": lambda scene: setattr(scene.slots, "capacity", 2),
    "a job runs": lambda scene: setattr(scene.slots, "busy", 1),
    "an outcome is to be sent": lambda s: s.state.settles.append(Settle("a", 1, "complete")),
    "a note is to be sent": lambda scene: setattr(scene.state.notes, "waiting", True),
    "a round trip has failed": lambda scene: scene.state.failed("It is gone."),
    "a claim has had no reply": lambda scene: scene.state.claim(5, 0),
    "a job whose task is not served was released": lambda s: s.state.note_task(served=False),
    "such a job has run": lambda scene: scene.state.note_task(served=True),
    "it stops": lambda scene: scene.loop.stop(),
    "it is paused": lambda scene: setattr(scene.loop, "paused", True),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_another_is_built_if(change: str) -> None:
    scene = Scene("mail")
    scene.state.on_wakeup("-")
    CHANGES[change](scene)
    assert scene.loop._take_foreseen() is None


@pytest.mark.parametrize(
    "scene",
    [
        lambda: Scene("mail", "post"),
        lambda: Scene("mail", burst=True),
        lambda: Scene("mail", until=0.01),
    ],
    ids=["several queues", "a burst", "a deadline is near"],
)
async def test_none_is_encoded_for(scene: Callable[[], Scene]) -> None:
    assert scene().loop._foreseen is None


async def test_for_several_servers_nothing_is_encoded() -> None:
    client = aio.AsyncClient("redis+cluster://127.0.0.1:1,127.0.0.1:2")
    claim = Scene("mail").state.claim(5, 0)
    encoded = client.encode([claim])
    assert (list(encoded), encoded.encoded) == ([claim], None)
