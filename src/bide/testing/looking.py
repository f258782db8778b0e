"""What a test bed sees of the jobs on its server, and asserts of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from bide import config, sync
from bide.clock import Duration, at_to_us, delay_to_us, to_us
from bide.errors import UsageError
from bide.keys import Keys, keys_of
from bide.naming import task_name
from bide.ops import inspect, registry
from bide.payload.signing import Seal
from bide.queue import AsyncQueue, Queue
from bide.states import FINISHED, State
from bide.testing.expect import Due, Expected, in_words, listing, words_for
from bide.testing.given import GivenTask, known_task
from bide.testing.seen import JobSeen
from bide.testing.store import Store

_ON_THE_WAY: Final = (State.BLOCKED, State.DELAYED, State.WAITING, State.ACTIVE)
"""The states of jobs that have not finished, in the order in which a job passes through them."""


class Looking:
    """What a test bed does with the jobs that are there."""

    def __init__(self, prefix: str, client: sync.Client, store: Store) -> None:
        self.prefix: Final = prefix
        """What all keys begin with."""
        self._client = client
        self._store = store
        self._opened_at = 0.0

    def _check(self) -> None:
        raise NotImplementedError

    def enqueued(self, task: GivenTask | None = None) -> list[JobSeen]:
        """The jobs that have not finished: blocked, delayed, waiting and active ones.

        They are in the order in which they are due. Blocked jobs, whose due time depends on other
        jobs, are the last.

        Args:
            task: only the jobs of this task, given as to `enqueue`; or a task of Django.
        """
        return [job for job in self._jobs(task, _ON_THE_WAY) if job.status not in FINISHED]

    def jobs(self, task: GivenTask | None = None) -> list[JobSeen]:
        """The jobs of every state, also those that have finished, in the order of `enqueued`.

        Args:
            task: only the jobs of this task, given as to `enqueue`; or a task of Django.
        """
        return self._jobs(task, (*_ON_THE_WAY, *sorted(FINISHED)))

    def assert_enqueued(
        self,
        task: GivenTask,
        /,
        *args: Any,
        delay: Duration | None = None,
        at: datetime | None = None,
        within: Duration = 1,
        queue: Queue | AsyncQueue | str | None = None,
        count: int | None = None,
        **kwargs: Any,
    ) -> JobSeen:
        """Assert that there is such a job, and it has not finished.

        Args:
            task: the task, given as to `enqueue`; or a task of Django.
            args: its arguments; with none at all, any arguments do.
            delay: how long from now it is due, on the bed's clock. A blocked job counts as due
                when it would be due if it stopped being blocked now.
            at: when it is due.
            within: how far off the due time may be. The time that the test has taken so far is
                allowed for.
            queue: the queue, or its name.
            count: how many such jobs there must be; without it, at least one.
            kwargs: its arguments by name.

        Returns:
            The job; of several, the one that is due first.

        Raises:
            AssertionError: there is none, or not so many; the message lists all jobs.
            UsageError: no such job can exist.
        """
        __tracebackhide__ = True
        if count is not None and (isinstance(count, bool) or count < 1):
            raise UsageError(
                f"count must be 1 or more, not {count!r}; none is asserted by assert_not_enqueued."
            )
        expected, found = self._find(task, args, kwargs, delay, at, within, queue)
        if not found or count not in (None, len(found)):
            what = f"No job {expected} is enqueued"
            if found:
                are = "job is" if len(found) == 1 else "jobs are"
                what = f"{len(found)} {are} {expected} where there should be {count}"
            raise AssertionError(f"{what}.\n{self._listing()}")
        return found[0]

    def assert_not_enqueued(
        self,
        task: GivenTask,
        /,
        *args: Any,
        delay: Duration | None = None,
        at: datetime | None = None,
        within: Duration = 1,
        queue: Queue | AsyncQueue | str | None = None,
        **kwargs: Any,
    ) -> None:
        """Assert that there is no such job, or it has finished; arguments as `assert_enqueued`.

        Raises:
            AssertionError: there is one; the message says its state and lists all jobs.
            UsageError: no such job can exist.
        """
        __tracebackhide__ = True
        expected, found = self._find(task, args, kwargs, delay, at, within, queue)
        if found:
            raise AssertionError(f"{expected} is enqueued ({in_words(found)}).\n{self._listing()}")

    def _find(
        self,
        task: GivenTask,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        delay: Duration | None,
        at: datetime | None,
        within: Duration,
        queue: Queue | AsyncQueue | str | None,
    ) -> tuple[Expected, list[JobSeen]]:
        name = queue.name if isinstance(queue, Queue | AsyncQueue) else queue
        jobs = self.enqueued(task)
        expected = Expected(known_task(task), args, kwargs, self._due(delay, at, within), name)
        return expected, [job for job in jobs if expected.fits(job)]

    def _due(self, delay: Duration | None, at: datetime | None, within: Duration) -> Due | None:
        within_us = to_us(within, "within")
        if delay is not None and at is not None:
            raise UsageError("Give either delay= or at=, not both.")
        if at is not None:
            at_us = at_to_us(at)
            return Due(at_us - within_us, at_us + within_us, f"due at {at.isoformat()}")
        if delay is None:
            return None
        delay_us = delay_to_us(delay)
        due_us = self._store.now_us() + delay_us
        first_us = due_us - within_us - self._taken_us()
        return Due(first_us, due_us + within_us, words_for(delay_us))

    def _taken_us(self) -> int:
        """How long this test has taken so far, as other clocks have it."""
        return round((time.monotonic() - self._opened_at) * 1e6)

    def _listing(self) -> str:
        lines = listing(self.jobs(), self._store.now_us())
        commit = sys.modules.get("bide.contrib.django.commit")
        hint = commit.hint() if commit is not None else ""
        return f"{lines}\n{hint}" if hint else lines

    # -- reading

    def _jobs(self, task: GivenTask | None, states: Iterable[State]) -> list[JobSeen]:
        self._check()
        name = None if task is None else task_name(known_task(task))
        found: list[JobSeen] = []
        for keys in self._queues():
            seal = Seal(config.signing_keys(), keys)
            # In the order of their lives: a job that moves on meanwhile is seen twice, not never.
            ids = dict.fromkeys(id for state in states for id in self._ids(keys, state))
            for snapshots in self._client.run_many(inspect.fetch_many(keys, list(ids))):
                found += [JobSeen(seal, snapshot) for snapshot in snapshots if snapshot]
        jobs = [job for job in found if name is None or job.task == name]
        return sorted(jobs, key=lambda job: (job.status == State.BLOCKED, job.due_us, job.id))

    def _queues(self) -> list[Keys]:
        """The queues that hold jobs; a delay queue holds data."""
        names = self._client.run(registry.queues(keys_of(None, self.prefix)))
        queues = [keys_of(name, self.prefix) for name in names]
        counts = self._client.run_many([inspect.counts(keys) for keys in queues])
        return [keys for keys, one in zip(queues, counts, strict=True) if not one.is_data]

    def _ids(self, keys: Keys, state: State) -> list[str]:
        ids: list[str] = []
        while len(ids) % inspect.MAX_PAGE == 0:
            page = self._client.run(inspect.listing(keys, state, len(ids), inspect.MAX_PAGE))
            if not page:
                break
            ids += page
        return ids
