"""The time slices of the thread that runs a worker, and of those that it starts."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from bide import Queue, Worker
from bide.worker.processes import linux
from tests.support import jobs

T = TypeVar("T")


def slice_ns() -> int:
    """The slice of the calling thread; 0 if the system has none of single threads."""
    found = linux._Scheduling()
    numbers = linux._GET_AND_SET.get(os.uname().machine)
    if sys.platform != "linux" or numbers is None:
        return 0
    assert linux._libc.syscall(numbers[0], 0, ctypes.byref(found), ctypes.sizeof(found), 0) == 0
    return int(found.slice_ns)


pytestmark = pytest.mark.skipif(
    slice_ns() <= linux._SLICE_NS, reason="the system has no slices of single threads"
)


def in_thread(function: Callable[[], T]) -> T:
    """Call in a new thread, because only that thread changes."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


async def note_of_the_loop() -> None:
    jobs.note(slice_ns())


def note_of_a_thread() -> None:
    jobs.note(slice_ns())


def test_a_thread_has_shorter_ones_and_what_it_starts_usual_ones() -> None:
    usual = slice_ns()

    def shorten() -> tuple[int, int, int]:
        with linux.short_slices():
            shorter, of_another = slice_ns(), in_thread(slice_ns)
        return shorter, of_another, slice_ns()

    assert in_thread(shorten) == (linux._SLICE_NS, usual, usual)


def test_another_policy_stays() -> None:
    def shorten() -> int:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with linux.short_slices():
            return os.sched_getscheduler(0)

    assert in_thread(shorten) == os.SCHED_BATCH


def test_they_are_those_of_a_worker(queue: Queue) -> None:
    usual = slice_ns()
    queue.enqueue(note_of_the_loop)
    queue.enqueue(note_of_a_thread)
    Worker([queue], modules=[__name__]).run(burst=True)
    assert sorted(jobs.seen) == [linux._SLICE_NS, usual]
    assert slice_ns() == usual
