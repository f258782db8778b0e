"""The parts of a worker that need no server: deadlines, the alarm, threads, a queue_state's memory.

Nothing here measures time: what must happen is waited for, and what must not is shown by something
later that has happened before it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bide.worker.executors.base import Alarm, Threads, make_alarm
from bide.worker.executors.local import Deadlines

pytestmark = pytest.mark.anyio

LONG = 3600.0
SOON = 0.01
PATIENCE = 30.0


@dataclass(eq=False)
class Entry:
    deadline: float
    name: str = ""
    ended: bool = False


class Watch:
    """Deadlines that note what has expired."""

    def __init__(self) -> None:
        self.expired: list[str] = []
        self._since = asyncio.get_running_loop().time()
        self._change = asyncio.Event()
        self.deadlines: Deadlines[Entry] = Deadlines(asyncio.get_running_loop(), self._expire)
        self._kept: list[Entry] = []

    def _expire(self, entry: Entry) -> None:
        self.expired.append(entry.name)
        self._change.set()

    def add(self, name: str, seconds: float) -> Entry:
        """One whose deadline is so long after the watch began, however long the test takes."""
        return self.keep(Entry(self._since + seconds, name))

    def keep(self, entry: Entry) -> Entry:
        self._kept.append(entry)
        self.deadlines.add(entry)
        return entry

    async def wait(self, count: int) -> list[str]:
        async with asyncio.timeout(PATIENCE):
            while len(self.expired) < count:
                self._change.clear()
                await self._change.wait()
        return self.expired


# -- deadlines


async def test_one_that_cannot_be_ended_does_not_keep_the_others() -> None:
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    watch = Watch()

    def expire(entry: Entry) -> None:
        if entry.name == "bad":
            raise ValueError(entry.name)
        watch._expire(entry)

    watch.deadlines._expire = expire
    watch.add("bad", SOON)
    watch.add("good", 2 * SOON)
    assert await watch.wait(1) == ["good"]
    assert [str(error) for error in told] == ["bad"]


async def test_what_has_not_ended_by_its_deadline_expires_once() -> None:
    watch = Watch()
    watch.add("a", SOON)
    assert await watch.wait(1) == ["a"]
    watch.add("b", SOON)
    assert await watch.wait(2) == ["a", "b"]


async def test_in_the_order_of_deadlines_not_of_adding() -> None:
    watch = Watch()
    watch.add("third", 3 * SOON)
    watch.add("first", SOON)
    watch.add("second", 2 * SOON)
    assert await watch.wait(3) == ["first", "second", "third"]


async def test_of_one_deadline_in_the_order_of_adding() -> None:
    watch = Watch()
    at = asyncio.get_running_loop().time() + SOON
    for name in "abc":
        watch.keep(Entry(at, name))
    assert await watch.wait(3) == ["a", "b", "c"]


async def test_what_has_ended_does_not_expire() -> None:
    watch = Watch()
    ended = watch.add("ended", SOON)
    watch.add("last", 2 * SOON)
    ended.ended = True
    assert await watch.wait(1) == ["last"]


async def test_an_entry_far_off_does_not_hold_up_a_near_one() -> None:
    watch = Watch()
    watch.add("far", LONG)
    watch.add("near", SOON)
    assert await watch.wait(1) == ["near"]


async def test_a_deadline_that_has_passed_expires_at_once() -> None:
    watch = Watch()
    watch.add("late", -LONG)
    assert await watch.wait(1) == ["late"]


async def test_an_entry_may_end_another_or_add_one_when_it_expires() -> None:
    watch = Watch()
    second = watch.add("second", LONG)
    calls: list[str] = []

    def expire(entry: Entry) -> None:
        calls.append(entry.name)
        second.ended = True
        watch.add("third", SOON)

    deadlines: Deadlines[Entry] = Deadlines(asyncio.get_running_loop(), expire)
    first = Entry(asyncio.get_running_loop().time() + SOON, "first")
    deadlines.add(first)
    assert await watch.wait(1) == ["third"]
    assert calls == ["first"]


async def test_after_close_nothing_expires() -> None:
    closed, open_ = Watch(), Watch()
    closed.add("a", SOON)
    closed.deadlines.close()
    open_.add("later", 2 * SOON)
    await open_.wait(1)
    assert closed.expired == []


async def test_a_job_that_ended_is_not_kept_until_its_deadline() -> None:
    """Its arguments may be large."""
    watch = Watch()
    entry = Entry(asyncio.get_running_loop().time() + LONG)
    watch.deadlines.add(entry)
    entry.ended, gone = True, weakref.ref(entry)
    del entry
    gc.collect()
    assert gone() is None
    watch.add("near", SOON)
    assert await watch.wait(1) == ["near"]


@pytest.mark.slow
async def test_a_million_jobs_that_ended_leave_nothing_behind() -> None:
    """A worker sees a million jobs long before the time-out of the first."""
    watch = Watch()
    kept = watch.add("kept", LONG)
    for i in range(20_000):
        watch.deadlines.add(Entry(kept.deadline, str(i)))
    assert len(watch.deadlines._heap) <= 1025
    watch.add("near", SOON)
    assert await watch.wait(1) == ["near"]
    assert not kept.ended


async def test_dropping_what_has_ended_loses_nothing_that_has_not() -> None:
    watch = Watch()
    at = asyncio.get_running_loop().time() + SOON
    for i in range(5_000):
        watch.keep(Entry(at, str(i)))
        watch.add("ended", SOON).ended = True
    assert await watch.wait(5_000) == [str(i) for i in range(5_000)]


# -- the alarm


def break_timerfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no timerfd here")

    monkeypatch.setattr(ctypes, "CDLL", refuse)


@pytest.fixture(params=["timerfd", "loop"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Alarm]:
    """Either kind of alarm: where there is no timerfd, the loop's own timer serves."""
    if request.param == "loop":
        break_timerfd(monkeypatch)
    return make_alarm


async def test_it_rings_not_before_its_moment(make: Callable[..., Alarm]) -> None:
    rang = asyncio.Event()
    alarm = make(asyncio.get_running_loop(), rang.set)
    at = time.monotonic() + 2 * SOON
    alarm.set(at)
    async with asyncio.timeout(PATIENCE):
        await rang.wait()
    assert time.monotonic() >= at - 0.001, "the loop's clock counts in milliseconds"
    alarm.close()


async def test_it_rings_at_once_for_a_moment_that_has_passed(make: Callable[..., Alarm]) -> None:
    rang = asyncio.Event()
    alarm = make(asyncio.get_running_loop(), rang.set)
    alarm.set(time.monotonic() - 1)
    async with asyncio.timeout(PATIENCE):
        await rang.wait()
    alarm.close()


async def test_it_rings_again_each_time_it_is_set(make: Callable[..., Alarm]) -> None:
    rang = asyncio.Event()
    alarm = make(asyncio.get_running_loop(), rang.set)
    at = time.monotonic() + SOON
    for _ in range(3):
        alarm.set(at)
        async with asyncio.timeout(PATIENCE):
            await rang.wait()
        rang.clear()
    alarm.close()


async def test_set_anew_it_forgets_the_moment_before(make: Callable[..., Alarm]) -> None:
    rings: list[float] = []
    rang = asyncio.Event()

    def ring() -> None:
        rings.append(time.monotonic())
        rang.set()

    alarm = make(asyncio.get_running_loop(), ring)
    alarm.set(time.monotonic() + SOON)
    later = time.monotonic() + 4 * SOON
    alarm.set(later)
    async with asyncio.timeout(PATIENCE):
        await rang.wait()
    assert len(rings) == 1
    assert rings[0] >= later - 0.001
    alarm.close()


async def test_it_can_be_brought_forward(make: Callable[..., Alarm]) -> None:
    rang = asyncio.Event()
    alarm = make(asyncio.get_running_loop(), rang.set)
    alarm.set(time.monotonic() + LONG)
    alarm.set(time.monotonic() + SOON)
    async with asyncio.timeout(PATIENCE):
        await rang.wait()
    alarm.close()


async def test_closed_it_rings_no_more(make: Callable[..., Alarm]) -> None:
    rang, other_rang = asyncio.Event(), asyncio.Event()
    alarm = make(asyncio.get_running_loop(), rang.set)
    other = make(asyncio.get_running_loop(), other_rang.set)
    alarm.set(time.monotonic() + SOON)
    alarm.close()
    alarm.close()
    other.set(time.monotonic() + 2 * SOON)
    async with asyncio.timeout(PATIENCE):
        await other_rang.wait()
    other.close()
    assert not rang.is_set()


# -- threads


class Gate:
    """Work that waits to be let through, and says that it runs."""

    def __init__(self) -> None:
        self.runs = threading.Event()
        self.opened = threading.Event()
        self.ended = threading.Event()
        self.thread = threading.current_thread()

    def __call__(self) -> Callable[[], None]:
        self.thread = threading.current_thread()
        self.runs.set()
        self.opened.wait(PATIENCE)
        return self.ended.set


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE)


def test_work_begins_at_once_however_much_runs_already() -> None:
    threads = Threads("test")
    gates = [Gate() for _ in range(20)]
    for gate in gates:
        threads.submit(gate)
    for gate in gates:
        wait_for(gate.runs)
    assert len({gate.thread for gate in gates}) == 20
    for gate in gates:
        gate.opened.set()
    threads.close()
    for gate in gates:
        gate.thread.join(PATIENCE)
        assert not gate.thread.is_alive()


def test_an_idle_thread_is_used_again() -> None:
    """A worker has as many threads as its jobs have needed at once."""
    threads = Threads("test")
    seen: set[threading.Thread] = set()
    for _ in range(200):
        done = Gate()
        done.opened.set()
        threads.submit(done)
        wait_for(done.ended)
        seen.add(done.thread)
    assert len(seen) == 1
    threads.close()


def test_who_hears_of_the_end_of_work_finds_its_thread_idle() -> None:
    threads = Threads("test")
    first, second = Gate(), Gate()
    first.ended.set = lambda: threads.submit(second)  # type: ignore[method-assign]
    first.opened.set()
    second.opened.set()
    threads.submit(first)
    wait_for(second.ended)
    assert second.thread is first.thread
    threads.close()


def test_threads_do_not_keep_the_process_alive_and_are_named() -> None:
    threads = Threads("bide-w1")
    gate = Gate()
    threads.submit(gate)
    wait_for(gate.runs)
    assert gate.thread.daemon
    assert gate.thread.name == "bide-w1-1"
    gate.opened.set()
    threads.close()
    gate.thread.join(PATIENCE)


def test_a_busy_thread_ends_after_its_work_when_closed() -> None:
    threads = Threads("test")
    gate = Gate()
    threads.submit(gate)
    wait_for(gate.runs)
    threads.close()
    assert gate.thread.is_alive()
    gate.opened.set()
    gate.thread.join(PATIENCE)
    assert not gate.thread.is_alive()
