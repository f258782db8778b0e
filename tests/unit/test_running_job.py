"""What a run knows of its job's start: how late it was, and whether the server must be told."""

from __future__ import annotations

import time

import pytest

from bide.model.job import Claimed
from bide.protocol.commands.worker import Claim
from bide.protocol.keys import keys_of
from bide.worker.queue_state import QueueState
from bide.worker.running_job import RunningJob

NOW = 1_795_214_038_547_684


def a_run(due_us: int, token: int = NOW, waited: float = 0.0) -> RunningJob:
    """A run of a job, whose claim the server answered at `NOW`, `waited` seconds ago."""
    state = QueueState(keys_of("mail"), "w1", 10_000_000)
    at = time.monotonic() - waited
    state.claimed(Claim(NOW, NOW, 0, False, False, False, []), at, at)
    return RunningJob(state, Claimed("a", b"{}", token, 1, 0, due_us, due_us), at, lambda: None)


def test_lateness_counts_from_due_to_the_first_statement() -> None:
    run = a_run(NOW - 2_000_000)
    run.note_start(run.claimed_at + 0.5)
    run.note_start(run.claimed_at + 9)  # only the first counts
    assert run.lateness == pytest.approx(2.5)
    assert run.queue_state.lateness.take() == "14=1"


def test_a_child_without_the_server_s_clock_counts_from_the_claim() -> None:
    run = a_run(NOW - 2_000_000)
    run.started_at = run.claimed_at + 0.5
    assert run.late_us is None
    assert run.lateness == pytest.approx(2.5)


def test_a_start_is_never_less_than_punctual() -> None:
    run = a_run(NOW + 5_000, token=NOW + 5_000)
    run.note_start(run.claimed_at)
    assert run.lateness == 0
    assert run.queue_state.lateness.take() == "0=1"


@pytest.mark.parametrize(
    ("late", "waits", "told"),
    [
        (0, 0.0009, False),  # the server has it to a millisecond
        (0, 0.0011, True),
        (60, 0.9, False),  # it has it to a fiftieth of the lateness
        (60, 1.3, True),
    ],
)
def test_the_server_is_told_of_a_start_that_it_does_not_know(
    late: int, waits: float, told: bool
) -> None:
    run = a_run(NOW - late * 1_000_000)
    run.note_start(run.claimed_at + waits)
    expected = NOW + round(waits * 1e6) if told else 0
    assert run.started_us == pytest.approx(expected, abs=2)


@pytest.mark.parametrize(
    ("late_us", "bucket"),
    [(-5.0, 0), (249.9, 0), (250.0, 1), (499.9, 1), (500.0, 2), (250.0 * 2**31, 32), (1e18, 32)],
)
def test_a_bucket_reaches_twice_as_far_as_the_one_before(late_us: float, bucket: int) -> None:
    state = QueueState(keys_of("mail"), "w1", 10_000_000)
    state.lateness.add(late_us)
    assert state.lateness.take() == f"{bucket}=1"
    assert state.lateness.take() == ""
