"""Buffers the log lines and the progress of running jobs until the next round trip.

The buffer keeps as much of each job as the server would: its latest lines and its latest progress.
So a job that floods the log loses only its own lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from threading import Lock
from typing import Final

from bide.model.history import MAX_LINES, PROGRESS
from bide.protocol.commands.worker import MAX_NOTED, JobNote

MAX_BYTES: Final = 500_000
"""Bytes of notes in one round trip; after that, the notes of further jobs wait for the next."""

_Key = tuple[str, int]


class _OneJob:
    """The notes of one run."""

    __slots__ = ("lines", "progress")

    def __init__(self) -> None:
        self.lines: deque[JobNote] = deque(maxlen=MAX_LINES)
        self.progress: JobNote | None = None

    def __iter__(self) -> Iterator[JobNote]:
        yield from self.lines
        if self.progress is not None:
            yield self.progress


class NoteBuffer:
    """The notes of one queue's jobs; any thread adds, and the loop takes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._jobs: dict[_Key, _OneJob] = {}
        self.waiting = False
        """Whether there are notes to send."""

    def __iter__(self) -> Iterator[JobNote]:
        """Iterate over the waiting notes, job by job."""
        for job in self._jobs.values():
            yield from job

    def add(self, note: JobNote) -> bool:
        """Add a note; return whether it is the first since `take`, so the loop must be woken."""
        with self._lock:
            job = self._jobs.setdefault((note.id, note.token), _OneJob())
            if note.kind == PROGRESS:
                job.progress = note
            else:
                job.lines.append(note)
            first, self.waiting = not self.waiting, True
            return first

    def take(self) -> list[list[JobNote]]:
        """Return the notes for each call of the next round trip, a few jobs each."""
        calls: list[list[JobNote]] = []
        size, count = 0, 0
        with self._lock:
            while self._jobs and size < MAX_BYTES:
                job = self._jobs.pop(next(iter(self._jobs)))
                if count % MAX_NOTED == 0:
                    calls.append([])
                count += 1
                for note in job:
                    calls[-1].append(note)
                    size += len(note.text)
            self.waiting = bool(self._jobs)
        return calls
