"""A queue whose jobs run in processes, the notes that they write, and workers for them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from bide import Queue, Worker
from bide.worker.processes import kin
from tests.integration.processes import tasks
from tests.integration.workers import eventually, listeners

MODULE = "tests.integration.processes.tasks"


class Note(NamedTuple):
    what: list[Any]
    pid: int
    id: str


class Stand:
    """One queue, and what its jobs noted."""

    def __init__(self, queue: Queue, path: Path, executor: str) -> None:
        self.queue = queue
        self.path = path
        self.executor = executor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.close()

    def notes(self, what: str | None = None, id: str | None = None) -> list[Note]:
        """What was noted so far."""
        notes = [Note(**json.loads(line)) for line in self.path.read_text().splitlines()]
        return [n for n in notes if what in (None, n.what[0]) and id in (None, n.id)]

    def wait(self, what: str, count: int = 1, id: str | None = None) -> list[Note]:
        """Wait until that was noted so often."""
        eventually(lambda: len(self.notes(what, id)) >= count, 20)
        return self.notes(what, id)

    def open(self, name: str) -> None:
        """Let those go on that wait."""
        Path(f"{self.path}.{name}").touch()

    def worker(self, *queues: Queue, **options: Any) -> Worker:
        """A worker that serves the tasks."""
        options = {
            "modules": [MODULE],
            "executor": self.executor,
            "concurrency": 2,
            "lease": 10,
            **options,
        }
        return Worker(queues or self.queue, **options)

    def burst(self, **options: Any) -> int:
        """Run what is due; how many jobs that were."""
        return self.worker(**options).work(burst=True)

    @contextmanager
    def at_work(self, *queues: Queue, **options: Any) -> Iterator[Worker]:
        """A worker at work in a thread; it is stopped at the end, and has left nothing behind."""
        with at_work(self.worker(*queues, **options), queues or (self.queue,)) as worker:
            yield worker


class Shared(Stand):
    """The same with a worker at work from the beginning to the end."""

    def __enter__(self) -> Self:
        os.environ[tasks.NOTES] = str(self.path)
        self._working = at_work(self.worker(), [self.queue])
        self.working = self._working.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._working.__exit__(*exc)
        super().__exit__(*exc)


@contextmanager
def at_work(worker: Worker, queues: Any) -> Iterator[Worker]:
    thread = threading.Thread(target=worker.work)
    thread.start()
    try:
        for queue in queues:
            eventually(partial(listeners, queue, "asked"), 20)
        yield worker
    finally:
        family = descendants(os.getpid())
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()
        eventually(lambda: not [pid for pid in family if is_there(pid)])


def descendants(pid: int) -> set[int]:
    """The nurseries of this process, and all below them."""
    parents = {}
    for other in kin._all():
        stat = kin._stat(other)
        if stat is not None:
            parents[other] = stat[1]
    found: set[int] = set()
    young = {other for other, parent in parents.items() if parent == pid and _is_nursery(other)}
    while young:
        found |= young
        young = {other for other, parent in parents.items() if parent in young}
    return found


def _is_nursery(pid: int) -> bool:
    try:
        return b"processes.nursery" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
