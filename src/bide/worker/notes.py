"""What running jobs say of themselves, gathered until the next round trip.

Of each job as much is kept as the server would keep: its latest lines and its latest progress. So
a job that floods the log drops its own lines, and no other's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from threading import Lock
from typing import Final

from bide.model.history import MAX_LINES, PROGRESS
from bide.protocol.commands.worker import MAX_NOTED, JobNote

MAX_BYTES: Final = 500_000
"""Bytes of notes in one round trip, after which those of further jobs wait for the next."""

_Key = tuple[str, int]


class _OneJob:
    """What one run has said."""

    __slots__ = ("lines", "progress")

    def __init__(self) -> None:
        self.lines: deque[JobNote] = deque(maxlen=MAX_LINES)
        self.progress: JobNote | None = None

    def __iter__(self) -> Iterator[JobNote]:
        yield from self.lines
        if self.progress is not None:
            yield self.progress


class NoteBuffer:
    """What the jobs of one queue have said; any thread adds, the loop takes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._jobs: dict[_Key, _OneJob] = {}
        self.waiting = False
        """Whether there is something to send."""

    def __iter__(self) -> Iterator[JobNote]:
        """All that waits, job by job."""
        for job in self._jobs.values():
            yield from job

    def add(self, said: JobNote) -> bool:
        """Add a note; whether it is the first since the last `take`, so that one must be told."""
        with self._lock:
            job = self._jobs.setdefault((said.id, said.token), _OneJob())
            if said.kind == PROGRESS:
                job.progress = said
            else:
                job.lines.append(said)
            first, self.waiting = not self.waiting, True
            return first

    def take(self) -> list[list[JobNote]]:
        """What goes into each of the next round trip's calls, a few jobs each; the rest waits."""
        calls: list[list[JobNote]] = []
        size, count = 0, 0
        with self._lock:
            while self._jobs and size < MAX_BYTES:
                job = self._jobs.pop(next(iter(self._jobs)))
                if count % MAX_NOTED == 0:
                    calls.append([])
                count += 1
                for said in job:
                    calls[-1].append(said)
                    size += len(said.text)
            self.waiting = bool(self._jobs)
        return calls
