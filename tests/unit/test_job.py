"""What is known of a job, read from what the server stores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.errors import PayloadError
from bide.model.history import History
from bide.model.job import FINISHED, RunRecord, Snapshot, State
from bide.model.payload.body import Body, encode_body

LINE = b"1795214038547684-1795214030000000R 7 2 1 2 1 1795214038547684 host.42.ab 1795214038000000"


def snapshot(**changes: Any) -> Snapshot:
    plain = Snapshot(
        id="a",
        state=State.WAITING,
        now_us=2_000_000,
        since_us=1_000_000,
        priority=5,
        raw_body=encode_body(Body("app.tasks:send", [1])),
        run=None,
        raw_result=None,
        raw_notes=None,
        asked=False,
    )
    return plain._replace(**changes)


def test_a_record_is_fixed_in_front_and_words_behind() -> None:
    assert RunRecord.read(LINE) == RunRecord(
        token=1795214038547684,
        settled="-",
        priority=7,
        attempt=2,
        crashes=1,
        strikes=2,
        alone=True,
        started_us=1795214038547684,
        worker="host.42.ab",
        due_us=1795214038000000,
        first_us=1795214038000000,
        ended_us=0,
    )


@pytest.mark.parametrize(
    ("more", "first_us", "ended_us"),
    [
        (b"", 1795214038000000, 0),
        (b" 1795214000000000", 1795214000000000, 0),
        (b" 1795214099000000e", 1795214038000000, 1795214099000000),
        (b" 1795214000000000 1795214099000000e", 1795214000000000, 1795214099000000),
        (b" cr5zej12er", 1795214038000000, 0),
        (b" 1795214050000000m", 1795214038000000, 0),
        (b" 1795214000000000 12r 1795214050000000m 9e", 1795214000000000, 9),
        (b" 1795214000000000 123r", 1795214000000000, 0),
        (b" 1795214000000000 123r 1795214099000000e", 1795214000000000, 1795214099000000),
    ],
)
def test_it_may_say_when_the_job_was_first_due_and_when_it_ended(
    more: bytes, first_us: int, ended_us: int
) -> None:
    record = RunRecord.read(LINE + more)
    assert record is not None
    assert (record.due_us, record.first_us, record.ended_us) == (
        *(1795214038000000, first_us, ended_us),
    )


@given(
    st.integers(0, 10**16 - 1),
    st.sampled_from("-CRFSLX"),
    st.integers(0, 9),
    st.lists(st.integers(0, 1000), min_size=3, max_size=3),
    st.booleans(),
    st.integers(0, 10**16),
    st.from_regex(r"[^\s]{1,20}", fullmatch=True),
)
def test_any_record_that_a_script_writes_can_be_read(
    token: int, how: str, priority: int, counts: list[int], alone: bool, us: int, worker: str
) -> None:
    words = " ".join(map(str, counts))
    line = f"{token:016d}{how}{0:016d}- {priority} {words} {int(alone)} {us} {worker} {us}"
    record = RunRecord.read(line.encode())
    assert record is not None
    assert record.token == token
    assert record.settled == how
    assert [record.attempt, record.crashes, record.strikes] == counts
    assert (record.alone, record.worker, record.due_us) == (alone, worker, us)


@pytest.mark.parametrize(
    "line",
    [None, b"", b"nonsense", LINE[:40], LINE + b" more", LINE + b" 1 2 3e", LINE + b" 1e 2r"],
)
def test_what_is_no_record_counts_as_none(line: bytes | None) -> None:
    assert RunRecord.read(line) is None


def test_a_job_that_has_not_run_is_due_when_its_set_says() -> None:
    job = snapshot()
    assert (job.due_us, job.attempt, job.lateness) == (1_000_000, 0, None)
    assert job.task == "app.tasks:send"
    assert job.body().args == [1]


@pytest.mark.parametrize("state", [State.ACTIVE, State.COMPLETED, State.FAILED])
def test_one_that_runs_or_ran_was_due_when_its_record_says(state: State) -> None:
    run = RunRecord.read(LINE)
    assert run is not None
    job = snapshot(state=state, run=run)
    assert job.due_us == run.due_us
    assert job.attempt == 2
    assert job.lateness == pytest.approx(0.547684)


@pytest.mark.parametrize("state", [State.DELAYED, State.WAITING])
def test_one_that_will_run_again_is_due_when_its_set_says(state: State) -> None:
    assert snapshot(state=state, run=RunRecord.read(LINE)).due_us == 1_000_000


def test_results_and_notes_are_decoded_when_asked_for() -> None:
    job = snapshot(raw_result=b"[1,2]", raw_notes=b'E 1 5 7 w1 {"type":"E","message":"m"}')
    assert job.result() == [1, 2]
    assert job.notes.error is not None
    assert job.notes.error.message == "m"
    assert snapshot().result() is None
    assert snapshot().notes == History()


@pytest.mark.parametrize("state", State)
def test_only_what_has_ended_has_an_end(state: State) -> None:
    job = snapshot(state=state, run=RunRecord.read(LINE))
    assert job.finished_us == (1_000_000 if state in FINISHED else 0)


def test_when_a_job_with_a_time_of_its_own_ended_stands_in_its_record() -> None:
    run = RunRecord.read(LINE + b" 1795214099000000e")
    assert snapshot(state=State.COMPLETED, run=run).finished_us == 1795214099000000
    assert snapshot(state=State.WAITING, run=run).finished_us == 0


def test_a_body_that_cannot_be_read_is_no_obstacle_to_the_rest() -> None:
    job = snapshot(raw_body=b"\x80\x04")
    assert job.task == "?"
    assert job.due_us == 1_000_000
    with pytest.raises(PayloadError):
        job.body()
