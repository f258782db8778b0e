"""A queue whose jobs run in processes, the notes that they write, and workers for them."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import pytest

from bide import Queue, Worker
from bide.worker.processes import linux
from tests.support import process_tasks as tasks
from tests.support.eventually import PATIENCE
from tests.support.workers import eventually, listeners

ROOT = Path(__file__).parents[2]
MODULE = "tests.support.process_tasks"
HOSTILE = "tests.chaos.processes.hostile"


PROCESS = pytest.mark.parametrize("executor", ["process"], indirect=True)
"""For what no difference between the executors can change."""


class Note(NamedTuple):
    what: list[Any]
    pid: int
    id: str


class ProcessBench:
    """One queue, and what its jobs noted."""

    def __init__(self, queue: Queue, path: Path, executor: str) -> None:
        self.queue = queue
        self.path = path
        self.executor = executor

    def __enter__(self) -> Self:
        self._before = marks()
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.close()
        # A process that was killed takes a moment.
        eventually(lambda: marks() <= self._before | SHARED, told=lambda: f"left are: {marked()}")

    def notes(self, what: str | None = None, id: str | None = None) -> list[Note]:
        """What was noted so far."""
        notes = [Note(**json.loads(line)) for line in self.path.read_text().splitlines()]
        return [n for n in notes if what in (None, n.what[0]) and id in (None, n.id)]

    def wait(self, what: str, count: int = 1, id: str | None = None) -> list[Note]:
        """Wait until that was noted so often."""
        eventually(lambda: len(self.notes(what, id)) >= count)
        return self.notes(what, id)

    def open(self, name: str) -> None:
        """Let those go on that wait."""
        Path(f"{self.path}.{name}").touch()

    def worker(self, *queues: Queue, **options: Any) -> Worker:
        """A worker that serves the tasks."""
        options = {
            "modules": [MODULE, HOSTILE],
            "executor": self.executor,
            "concurrency": 2,
            "lease": 10,
            **options,
        }
        return Worker(queues or self.queue, **options)

    def burst(self, **options: Any) -> int:
        """Run what is due; how many jobs that were."""
        return self.worker(**options).run(burst=True)

    @contextmanager
    def at_work(self, *queues: Queue, **options: Any) -> Iterator[Worker]:
        """A worker at work in a thread; it is stopped at the end."""
        with at_work(self.worker(*queues, **options), queues or (self.queue,)) as worker:
            yield worker


LOOP: Final = 8
"""Descriptors that the first coroutine of a child opens at most, for its event loop."""


SHARED: set[bytes] = set()
SHARED_SERVERS: set[object] = set()
"""The marks of the shared workers that are at work: others come and go beside a bench."""


class Shared(ProcessBench):
    """The same with a worker at work from the beginning to the end."""

    def __enter__(self) -> Self:
        super().__enter__()
        os.environ[tasks.NOTES] = str(self.path)
        self._working = at_work(self.worker(), [self.queue])
        self.working = self._working.__enter__()
        pool: Any = self.working._executor._pool  # type: ignore[union-attr]
        self._mark = f"{linux.MARK}={pool._mark}".encode()
        SHARED.add(self._mark)
        self._address = urlsplit(self.queue._client.url).path
        SHARED_SERVERS.add(self._address)
        eventually(lambda: len(forked_by(pool._fork_server.pid)) == len(pool.slots))
        self._fresh = self._open()
        return self

    def check_descriptors(self) -> None:
        """See that worker, fork server and children have no more open than they had at first."""
        worker, fork_server, children = self._fresh

        def are_back() -> bool:
            now = self._open()
            return now[0] <= worker and now[1] <= fork_server and now[2] <= children + LOOP

        eventually(are_back)

    def _open(self) -> tuple[int, int, int]:
        """How many descriptors worker, fork server and a child have, while no job runs.

        Of the worker, which is a process with the test, those are counted that are no connections,
        and not what it looks at this very moment.
        """
        pool: Any = self.working._executor._pool  # type: ignore[union-attr]
        eventually(lambda: all(slot.is_free for slot in pool.slots))
        passing = ("socket:", "/proc/")
        here = [what for what in descriptors().values() if not what.startswith(passing)]
        children = [len(descriptors(slot.pid)) for slot in pool.slots]
        return len(here), len(descriptors(pool._fork_server.pid)), max(children)

    def __exit__(self, *exc: Any) -> None:
        self._working.__exit__(*exc)
        SHARED.remove(self._mark)
        SHARED_SERVERS.remove(self._address)
        super().__exit__(*exc)


@contextmanager
def at_work(worker: Worker, queues: Any) -> Iterator[Worker]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        for queue in queues:
            eventually(partial(listeners, queue, "asked"))
        yield worker
    finally:
        if not worker._stops:
            worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def forked_by(pid: int) -> set[int]:
    """The processes whose parent is the main thread of one."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return {int(child) for child in file.read().split()}


def own_descriptors() -> dict[str, str]:
    """What this process has open, without the connections of the shared worker.

    That worker is of this process, too, and renews a connection whose reply is late.
    """
    return {
        fd: what
        for fd, what in descriptors().items()
        if not what.startswith("socket:") or _peer(int(fd)) not in SHARED_SERVERS
    }


def _peer(fd: int) -> object:
    """The address that a socket is connected to; None for one that has just gone."""
    try:
        with socket.socket(fileno=os.dup(fd)) as one:
            return one.getpeername()
    except OSError:
        return None


def descriptors(pid: int | str = "self") -> dict[str, str]:
    """What a process has open; nothing where it has just gone."""
    seen: dict[str, str] = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return seen
    for fd in names:
        with suppress(FileNotFoundError):  # that of the listing
            seen[fd] = os.readlink(f"/proc/{pid}/fd/{fd}")
    return seen


def marks() -> set[bytes]:
    """The marks of all processes that workers of this process have begun, directly or not."""
    return set(marked().values())


def marked() -> dict[bytes, bytes]:
    """What those processes are called, and the mark of each."""
    mark = f"{linux.MARK}={os.getpid()}-".encode()
    found: dict[bytes, bytes] = {}
    for pid in linux._all():
        with suppress(OSError):
            proc = Path(f"/proc/{pid}")
            environ = (proc / "environ").read_bytes().split(b"\0")
            named = b"%d %s" % (pid, (proc / "cmdline").read_bytes().replace(b"\0", b" "))
            for variable in environ:
                if variable.startswith(mark):
                    found[named] = variable
    return found


def program(url: str, executor: str, *options: str) -> list[str]:
    """The command that starts a worker in a process of its own."""
    return [sys.executable, "-m", "tests.support.process_program", url, executor, *options]
