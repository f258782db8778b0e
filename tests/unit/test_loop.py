"""What a worker's loop decides by itself: how much to claim, what goes back, what is sent again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from bide.errors import ServerUnavailable
from bide.logs import JOB_FIELDS
from bide.model.job import Claimed
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands.worker import Claim, Lost, Settle
from bide.protocol.keys import keys_of
from bide.worker.loop import WorkerLoop, _QueueCalls
from bide.worker.queue_state import PollingOrder, QueueState
from bide.worker.running_job import RunningJob

pytestmark = pytest.mark.anyio

LEASE = 6.0
JOB = Claimed("a", b"{}", 1, 1, 0, 1, 1)
REPLY = Claim(1, 0, 0, False, False, False, [JOB])


@dataclass
class Slots:
    """Where jobs run, as far as the loop asks."""

    capacity: int = 5
    busy: int = 0
    has_callbacks: bool = False
    is_spent: bool = False
    ahead: int = 0
    accepted: list[Claimed] = field(default_factory=list)

    def __len__(self) -> int:
        return self.busy

    @property
    def free_slots(self) -> int:
        return max(0, self.capacity - self.busy)

    def submit(self, state: QueueState, reply: Claim, sent: float, arrived: float) -> None:
        self.accepted += reply.jobs

    def decline(self, state: QueueState, jobs: list[Claimed], sent: float) -> None:
        state.settles.extend(Settle(job.id, job.token, "release") for job in jobs)


class Gone:
    """A client of a server that does not answer."""

    async def attempt_many(self, commands: list[Any]) -> list[Any]:
        raise ServerUnavailable("it is gone")

    async def run(self, command: Any) -> Any:
        raise ServerUnavailable("it is gone")


@pytest.fixture
def state() -> QueueState:
    return QueueState(keys_of("mail"), "w1", round(LEASE * 1e6))


@pytest.fixture
def slots() -> Slots:
    return Slots()


@pytest.fixture
async def loop(state: QueueState, slots: Slots) -> WorkerLoop:
    loop = WorkerLoop(Gone(), [state], PollingOrder(), burst=False)  # type: ignore[arg-type]
    loop._executor = slots  # type: ignore[assignment]
    return loop


def released(state: QueueState) -> list[str]:
    return [settle.id for settle in state.settles if settle.outcome == "release"]


@pytest.mark.parametrize(("ago", "late"), [(0.0, False), (3.0, False), (5.0, True)])
async def test_what_came_too_late_to_be_held_goes_back(
    loop: WorkerLoop, state: QueueState, slots: Slots, ago: float, late: bool
) -> None:
    """Another may have it by the time that it runs."""
    loop._take(state, REPLY, time.monotonic() - ago, time.monotonic())
    assert released(state) == (["a"] if late else [])
    assert slots.accepted == ([] if late else [JOB])


async def test_what_is_taken_while_stopping_goes_back(
    loop: WorkerLoop, state: QueueState, slots: Slots
) -> None:
    loop.stop()
    loop._take(state, REPLY, time.monotonic(), time.monotonic())
    assert (released(state), slots.accepted) == (["a"], [])


async def test_half_the_slots_are_claimed_at_a_time(loop: WorkerLoop) -> None:
    """One half runs while the round trip of the other is under way."""
    assert loop._free() == 5
    assert loop._shares(time.monotonic(), 5, [[]]) == [3]


@pytest.mark.parametrize(("ended", "claimed"), [(250, 3), (251, 3), (253, 2), (255, 0), (900, 0)])
async def test_what_has_ended_takes_a_slot_until_it_is_on_its_way(
    state: QueueState, ended: int, claimed: int
) -> None:
    """A round trip takes 250 outcomes along, and claims behind them."""
    loop = WorkerLoop(Gone(), [state], PollingOrder(), burst=True)  # type: ignore[arg-type]
    loop._executor = Slots()  # type: ignore[assignment]
    state.settles.extend(Settle(str(n), 1, "complete") for n in range(ended))
    (leaving,) = loop._take_settles()
    assert len(leaving) == 250
    assert loop._shares(time.monotonic(), loop._free(), [leaving]) == [claimed]


@pytest.mark.parametrize(("behind", "claimed"), [(0, 3), (4, 1), (5, 0)])
async def test_what_a_queue_cannot_be_told_takes_slots_of_that_queue_alone(
    behind: int, claimed: int
) -> None:
    """Another, of another node of a Cluster, goes on."""
    gone, there = (QueueState(keys_of(name), "w1", 10_000_000) for name in ("mail", "post"))
    loop = WorkerLoop(Gone(), [gone, there], PollingOrder(), burst=True)  # type: ignore[arg-type]
    loop._executor = Slots(busy=1, capacity=6)  # type: ignore[assignment]
    gone.settles.extend(Settle(str(n), 1, "complete") for n in range(behind))
    gone.failures = 1
    assert loop._free() == 5
    assert loop._shares(time.monotonic(), 5, [[], []]) == [claimed, 0 if claimed else 3]


async def test_who_drains_for_a_suspect_claims_nothing_until_it_is_idle(
    loop: WorkerLoop, state: QueueState, slots: Slots
) -> None:
    loop._take(state, REPLY._replace(drain=True, jobs=[]), time.monotonic(), time.monotonic())
    slots.busy = 1
    assert loop._free() == 0
    slots.busy = 0
    assert loop._free() == 5


async def test_outcomes_are_kept_until_the_server_has_them(
    loop: WorkerLoop, state: QueueState
) -> None:
    first, second = (Settle(id, 1, "complete") for id in "ab")
    state.settles.append(second)
    await loop._exchange([_QueueCalls(0, state, [], [first], None, 0, False)])
    assert list(state.settles) == [first, second]
    assert state.resting


@pytest.mark.parametrize(("burst", "claimed", "looks"), [(1, None, 1), (1, 1, 0), (0, None, 0)])
async def test_a_burst_looks_once_more_behind_what_it_settled(
    state: QueueState, burst: int, claimed: int | None, looks: int
) -> None:
    """The slots may have gone to another queue, and a burst does not wait for wake-up messages."""
    loop = WorkerLoop(Gone(), [state], PollingOrder(), burst=bool(burst))  # type: ignore[arg-type]
    loop._executor = Slots()  # type: ignore[assignment]
    loop._executor.mark_recorded = lambda settles: []  # type: ignore[method-assign]
    state.check = False
    empty = REPLY._replace(jobs=[], until_us=10, deadline_us=10)
    replies = [["ok"]] if claimed is None else [["ok"], empty]
    part = _QueueCalls(0, state, [], [Settle("a", 1, "complete")], claimed, 0, False)
    loop._read(part, part.read(iter(replies)), time.monotonic(), time.monotonic())
    assert state.check == bool(looks)


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_outcome_that_came_too_late_is_logged_with_the_fields_of_its_job(
    loop: WorkerLoop, state: QueueState, caplog: pytest.LogCaptureFixture, is_known: bool
) -> None:
    """One that was given back as it came was never accepted: nothing is known of it."""
    run = RunningJob(state, replace(JOB, body=encode_body(Body("app:task"))), 0.0, lambda: None)
    loop._executor.mark_recorded = lambda settles: [run if is_known else None]  # type: ignore[method-assign]
    loop._note_verdicts(state, [Settle("a", 1, "complete")], ["lost"])
    (record,) = caplog.records
    known = [1, "app:task"] if is_known else ["", ""]
    assert [getattr(record, name) for name in JOB_FIELDS] == ["a", *known, "mail"]


async def test_a_burst_does_not_end_while_crashes_are_to_be_reported(
    state: QueueState,
) -> None:
    loop = WorkerLoop(Gone(), [state], PollingOrder(), burst=True)  # type: ignore[arg-type]
    slots = Slots()
    loop._executor = slots  # type: ignore[assignment]
    reported = asyncio.Event()
    told: list[tuple[str, str, bool]] = []

    def report(run: RunningJob, how: str, has_failed: bool) -> None:
        told.append((run.claimed.id, how, has_failed))
        reported.set()

    slots.report = report  # type: ignore[attr-defined]
    state.check = False
    assert loop._finished()
    loop._take(state, REPLY._replace(jobs=[], lost=[Lost(JOB, "w0", has_failed=False)]), 0.0, 0.0)
    state.check = False
    assert not loop._finished()
    await reported.wait()
    ((id, how, has_failed),) = told
    assert (id, has_failed) == ("a", False), "though its arguments could not be read"
    assert "w0 died or stopped" in how
    await loop._crashes.close()


async def test_after_an_abort_each_round_trip_has_a_second(
    state: QueueState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them it may rest, and all that it has to tell is sent."""
    limits: list[bool] = []

    class There(Gone):
        url = "redis://127.0.0.1:1"
        answered = 0.0

        async def attempt_many(self, commands: list[Any]) -> list[Any]:
            limits.append(ended._limit.when() is not None)
            ended.abort()
            limits.append(ended._limit.when() is not None)
            if len(limits) == 2:
                raise ServerUnavailable("it is gone")
            empty = REPLY._replace(jobs=[], until_us=10)
            return [empty if command.script == "claim" else ["ok"] for command in commands]

    ended = WorkerLoop(There(), [state], PollingOrder(), burst=True)  # type: ignore[arg-type]
    slots: Any = Slots()
    slots.mark_recorded = lambda settles: []
    state.check = False
    state.settles.append(Settle("a", 1, "complete"))
    monkeypatch.setattr(ended, "_back_off", lambda queue_state, error: None)
    await ended.run(slots)
    assert limits == [False, True, True, True]
    assert ended._limit.when() is None
    assert (ended.cut_off, len(state.settles)) == (False, 0)


async def test_a_round_trip_that_does_not_end_after_an_abort_is_cut_off(
    state: QueueState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.worker.loop._LAST_ROUND_TRIP", 0.0)

    class Hanging(Gone):
        url = "redis://127.0.0.1:1"

        async def attempt_many(self, commands: list[Any]) -> list[Any]:
            ended.abort()
            await asyncio.Event().wait()
            return []

    ended = WorkerLoop(Hanging(), [state], PollingOrder(), burst=True)  # type: ignore[arg-type]
    state.settles.append(Settle("a", 1, "complete"))
    await ended.run(Slots())  # type: ignore[arg-type]
    assert ended.cut_off
