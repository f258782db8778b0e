"""The witness: it sees who waited for a processor, and blames nobody who did not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.cpu_waits import MACHINE, SERVER, Look, Witness, starved, waited_us
from tests.support.eventually import eventually
from tests.support.processes import state

LEASE = 2.0


def looks(*seen: tuple[float, dict[str, float]]) -> list[Look]:
    """What was seen, in seconds."""
    return [
        Look(round(at * 1e6), {name: round(s * 1e6) for name, s in waited.items()})
        for at, waited in seen
    ]


def windows(found: list[Look]) -> list[tuple[str, float, float]]:
    """Who was starved, from when to when."""
    return [(one.worker, one.from_us / 1e6, one.until_us / 1e6) for one in starved(found, LEASE)]


def test_one_that_waits_for_half_a_lease_within_one_is_starved() -> None:
    found = looks(
        (10, {"w1": 5, "w2": 5}), (11, {"w1": 5.4, "w2": 5.1}), (12, {"w1": 6, "w2": 5.9})
    )
    assert windows(found) == [("w1", 10, 12)]


def test_so_long_over_several_leases_is_not() -> None:
    found = looks(*((at, {"w1": 0.4 * at}) for at in range(10)))
    assert windows(found) == []


def test_a_wait_is_seen_when_it_is_over_and_began_before_all_of_it() -> None:
    found = looks((10, {"w1": 0}), (14, {"w1": 0}), (15, {"w1": 4.9}))
    assert windows(found) == [("w1", 10.1, 15)]


def test_what_was_waited_once_is_told_once() -> None:
    found = looks((10, {"w1": 0}), (11, {"w1": 1.5}), (12, {"w1": 1.6}), (13, {"w1": 2.9}))
    assert windows(found) == [("w1", 9, 11), ("w1", 11, 13)]


def test_a_server_is_waited_for_by_each_worker() -> None:
    found = looks(
        (10, {"w1": 0, "w2": 0, f"{SERVER}-0": 0}), (11, {"w1": 0.5, "w2": 0, f"{SERVER}-0": 0.6})
    )
    assert windows(found) == [("w1", 9, 11)]
    assert waited_us(found, 10_000_000, 11_000_000) == 1_100_000


def test_a_machine_that_stands_still_starves_all() -> None:
    found = looks((10, {"w1": 0, "w2": 0, MACHINE: 0}), (13, {"w1": 0, "w2": 0, MACHINE: 2.9}))
    assert [name for name, *_ in windows(found)] == ["w1", "w2"]


def test_between_two_moments_the_looks_around_them_count() -> None:
    found = looks((10, {"w1": 0}), (11, {"w1": 1}), (12, {"w1": 3}), (13, {"w1": 7}))
    assert waited_us(found, 11_500_000, 11_600_000) == 2_000_000
    assert waited_us(found, 0, 99_000_000) == 7_000_000
    assert waited_us([], 0, 1) == 0


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program on one processor, the same for all."""
    processor = min(os.sched_getaffinity(0))
    program = f"import os\nos.sched_setaffinity(0, [{processor}])\nprint(flush=True)\n{code}"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


BUSY = "while True: pass"
IDLE = "input()"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_who_shares_a_processor_waits_and_who_sleeps_does_not() -> None:
    with ExitStack() as stack:
        busy = [stack.enter_context(running(BUSY)) for _ in range(3)]
        idle = stack.enter_context(running(IDLE))
        names = {process.pid: f"busy-{i}" for i, process in enumerate(busy)} | {idle.pid: "idle"}
        eventually(lambda: state(idle.pid) == "S")
        with Witness(lambda: names) as witness:
            eventually(lambda: witness.looks and min(of_busy(witness)) > 2_000_000)
        assert witness.looks[-1].waited_us.get("idle", 0) == 0


def of_busy(witness: Witness) -> list[int]:
    seen = witness.looks[-1].waited_us
    return [seen.get(f"busy-{i}", 0) for i in range(3)]
