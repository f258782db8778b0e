"""Why a job has not run: from what was read to what is said."""

from __future__ import annotations

from typing import Any

import pytest

from bide.model.durations import from_us
from bide.model.job import RunRecord, Snapshot, State
from bide.model.limits import Limits, Retention
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands.jobs import QueueStats
from bide.protocol.commands.queues import WorkerInfo, WorkerReport
from bide.queue.job_view import Read, explain

NOW = 1_795_000_000_000_000
NO_LIMITS = Limits()
LATER = from_us(NOW + 60_000_000)
TASK = "app:send"


def job(state: State = State.WAITING, since_us: int = NOW - 1) -> Snapshot:
    body = encode_body(Body(TASK))
    return Snapshot("a", state, NOW, since_us, 5, body, None, None, None, False)


def given_back(state: State) -> Snapshot:
    """One that a worker without its task gave back."""
    line = b"1795000000000000S0000000000000000- 5 0 0 0 0 1795000000000000 w1 1795000000000000"
    run = RunRecord.read(line + b" 1794999999999999 1794999999999998m")
    assert run is not None
    return job(state, NOW + 9 if state is State.DELAYED else NOW - 1)._replace(run=run)


def counts(active: int = 0, paused: bool = False, limits: Limits = NO_LIMITS) -> QueueStats:
    return QueueStats(
        NOW, 0, 3, active, 0, 0, 0, 0, 0, 0, paused, {}, 0, Retention(), limits=limits
    )


def worker(*queues: str, busy: int = 0, unknown_tasks: list[str] | None = None) -> WorkerInfo:
    about = WorkerReport(
        queues=list(queues), concurrency=4, busy=busy, unknown_tasks=unknown_tasks or []
    )
    return WorkerInfo("w1", 1.0, about)


IDLE = worker("mail")


@pytest.mark.parametrize(
    ("snapshot", "queue", "workers", "kinds"),
    [
        (job(), counts(), [IDLE], ["next"]),
        (job(), counts(), [worker("mail", busy=4)], ["busy"]),
        (job(), counts(), [worker("mail", busy=4), IDLE], ["next"]),
        (job(), counts(), [], ["no_worker"]),
        (job(), counts(), [worker("other")], ["no_worker"]),
        (job(), counts(), [worker("mail", unknown_tasks=[TASK])], ["not_served"]),
        (job(), counts(), [worker("mail", unknown_tasks=[TASK]), IDLE], ["next"]),
        (given_back(State.DELAYED), counts(), [IDLE], ["not_served"]),
        (given_back(State.WAITING), counts(), [worker("mail", busy=4)], ["not_served"]),
        (
            given_back(State.DELAYED),
            counts(),
            [worker("mail", unknown_tasks=[TASK])],
            ["not_served"],
        ),
        (given_back(State.DELAYED), counts(), [], ["no_worker"]),
        (job(), counts(paused=True), [IDLE], ["paused"]),
        (job(), counts(limits=Limits(held_until=LATER)), [IDLE], ["held"]),
        (job(), counts(limits=Limits("1/h", 1, None, None, LATER)), [IDLE], ["limited"]),
        (job(), counts(limits=Limits("1/h", 1)), [IDLE], ["next"]),
        (job(), counts(2, limits=Limits(concurrency=2)), [IDLE], ["concurrency"]),
        (job(), counts(1, limits=Limits(concurrency=2)), [IDLE], ["next"]),
        (job(State.DELAYED, NOW + 9), counts(), [IDLE], ["not_due"]),
        (
            job(State.DELAYED, NOW + 9),
            counts(2, True, Limits("1/h", 1, 2, LATER, LATER)),
            [],
            ["not_due", "paused", "held", "no_worker"],
        ),
        (job(State.BLOCKED), counts(), [IDLE], ["blocked"]),
        (job(State.ACTIVE), counts(paused=True), [], []),
        (job(State.COMPLETED), counts(paused=True), [], []),
    ],
)
def test_what_is_told(
    snapshot: Snapshot, queue: QueueStats, workers: Any, kinds: list[str]
) -> None:
    reasons = explain(Read("mail", snapshot, queue, workers))
    assert [reason.kind for reason in reasons] == kinds
    assert all(reason.text for reason in reasons)


def test_until_when_it_is_known() -> None:
    limits = Limits("1/h", 1, None, LATER, LATER)
    delayed = job(State.DELAYED, NOW + 60_000_000)
    reasons = explain(Read("mail", delayed, counts(limits=limits), [IDLE]))
    assert [reason.until for reason in reasons] == [LATER, LATER]
    assert reasons[0].text == "it is not due for another 60s"


def test_one_that_is_blocked_says_by_which() -> None:
    blocked = job(State.BLOCKED)._replace(awaits=5, awaited=("a", "{other}b"))
    (reason,) = explain(Read("mail", blocked, counts(), [IDLE]))
    assert reason.text == "it waits for a, {other}b and 3 more"
    placed = job(State.BLOCKED)._replace(awaits=2, awaited=("a", "{}"))
    (reason,) = explain(Read("mail", placed, counts(), [IDLE]))
    assert reason.text == "it waits for a, jobs that its producer has not named yet"
