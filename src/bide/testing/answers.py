"""What eager mode answers in a server's place: it knows the jobs that have run, no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar

from bide.command import Command
from bide.errors import BideError, JobNotFinished, UsageError
from bide.ids import short_id
from bide.job import Snapshot
from bide.ops.inspect import Counts
from bide.ops.manage import Emptied
from bide.retention import Retention
from bide.states import FINISHED, State

T = TypeVar("T")


class Shelf:
    """The jobs of one queue."""

    def __init__(self, now_us: Callable[[], int], ask: Callable[[str], None]) -> None:
        """Set up.

        Args:
            now_us: the time.
            ask: asks a running job to end.
        """
        self.jobs: dict[str, Snapshot] = {}
        self._now_us = now_us
        self._ask = ask
        self._answers: Final[dict[str, Callable[..., Any]]] = {
            "cancel": self._cancel,
            "configure": lambda *_: None,
            "counts": self._counts,
            "delete": self._delete,
            "empty": lambda *_: Emptied(0, False),
            "limit": lambda *_: None,
            "fetch": lambda *ids: [self.jobs.get(id) for id in ids],
            "list": self._list,
            "register": lambda *_: None,
            "upcoming": self._upcoming,
            "watch": self._watch,
            "workers": lambda *_: [],
        }

    def answer(self, command: Command[Any]) -> Any:
        """The result of a command; an error in its place if only a server could run it."""
        answer = self._answers.get(command.script)
        if answer is None:
            return UsageError(
                "Eager mode has no server, and only that could "
                f"{command.script.partition('_')[0]}; test it with `with bide.testing.start():`."
            )
        return answer(*command.args)

    def hear(self, id: str) -> None:
        """There is nothing to wait for.

        Raises:
            JobNotFinished: always.
        """
        state = self.jobs[id].state if id in self.jobs else "gone"
        raise JobNotFinished(
            f"Job {short_id(id)} is {state}, and in eager mode nothing runs later or elsewhere; "
            "test it with `with bide.testing.start():`."
        )

    def _in(self, state: str) -> list[Snapshot]:
        return [job for job in self.jobs.values() if job.state == state]

    def _list(self, state: str, start: int, count: int) -> list[str]:
        ids = [job.id for job in self._in(state)]
        return (ids[::-1] if state in FINISHED else ids)[start : start + count]

    def _upcoming(self, within_us: int, count: int) -> list[tuple[str, int]]:
        latest = self._now_us() + within_us if within_us else None
        due = sorted((job.since_us, job.id) for job in self._in(State.DELAYED))
        return [(id, at) for at, id in due if latest is None or at <= latest][:count]

    def _counts(self) -> Counts:
        many = {state: len(self._in(state)) for state in State}
        return Counts(
            now_us=self._now_us(),
            delayed=many[State.DELAYED],
            waiting=many[State.WAITING],
            active=many[State.ACTIVE],
            completed=many[State.COMPLETED],
            failed=many[State.FAILED],
            cancelled=many[State.CANCELLED],
            blocked=many[State.BLOCKED],
            next_due_us=min((job.since_us for job in self._in(State.DELAYED)), default=0),
            idle_workers=0,
            paused=False,
            totals={state.value: many[state] for state in FINISHED}
            | {"retried": 0, "reclaimed": 0},
            gap_us=0,
            retention=Retention(),
            is_data=False,
        )

    def _watch(self, id: str, _for_us: int) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "gone"
        return "due" if job.state == State.DELAYED else job.state.value

    def _cancel(self, running: int, *ids: str) -> list[str]:
        words = []
        for id in ids:
            job = self.jobs.get(id)
            if job is not None and job.state in (State.DELAYED, State.BLOCKED):
                now_us = self._now_us()
                self.jobs[id] = job._replace(state=State.CANCELLED, since_us=now_us)
                words.append("ok")
            elif job is not None and job.state == State.ACTIVE and running:
                self._ask(id)
                words.append("asked")
            else:
                words.append(job.state.value if job else "gone")
        return words

    def _delete(self, unbegun: int, *ids: str) -> list[str]:
        words = []
        for id in ids:
            job = self.jobs.get(id)
            if job is None or job.state == State.ACTIVE:
                words.append("active" if job else "gone")
            elif job.state not in FINISHED and not unbegun:
                words.append("unended")
            else:
                del self.jobs[id]
                words.append("ok")
        return words


class Blocking:
    """In place of `bide.sync.Client`."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def run(self, command: Command[T]) -> T:
        """The answer; raises what stands in its place."""
        (result,) = self.run_many([command])
        return result  # type: ignore[no-any-return]

    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """The answers; raises the first error among them."""
        return _checked(self.attempt_many(commands))

    def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """The answers, or what stands in the place of each."""
        return [self._shelf.answer(command) for command in commands]

    def waiting_for(self, _channel: str, text: str) -> Waiter:
        """Hear nothing."""
        return Waiter(self._shelf, text)

    def close(self) -> None:
        """Nothing is open."""


class Awaited:
    """In place of `bide.aio.Client`."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def run(self, command: Command[T]) -> T:
        """As `Blocking.run`."""
        (result,) = await self.run_many([command])
        return result  # type: ignore[no-any-return]

    async def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """As `Blocking.run_many`."""
        return _checked(await self.attempt_many(commands))

    async def attempt_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """As `Blocking.attempt_many`."""
        return [self._shelf.answer(command) for command in commands]

    async def share(self, command: Command[T]) -> T:
        """As `run`."""
        return await self.run(command)

    def waiting_for(self, _channel: str, text: str) -> AsyncWaiter:
        """Hear nothing."""
        return AsyncWaiter(self._shelf, text)

    async def close(self) -> None:
        """Nothing is open."""

    def abandon(self) -> None:
        """Nothing is open."""


class Waiter:
    """In place of `bide.sync.Waiter`."""

    def __init__(self, shelf: Shelf, id: str) -> None:
        self._shelf = shelf
        self._id = id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def hear(self, _until: float) -> None:
        """Raise, rather than wait for what will not be said."""
        self._shelf.hear(self._id)


class AsyncWaiter:
    """In place of `bide.listening.Waiter`."""

    def __init__(self, shelf: Shelf, id: str) -> None:
        self._shelf = shelf
        self._id = id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def hear(self, _until: float) -> None:
        """Raise, rather than wait for what will not be said."""
        self._shelf.hear(self._id)


def _checked(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BideError):
            raise result
    return results
