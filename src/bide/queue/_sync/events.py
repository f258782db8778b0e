"""A queue's events, for code that blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from bide.client import blocking
from bide.client.url import LONGEST_RECONNECT_PAUSE
from bide.logs import Log
from bide.model.events import GAP, Event
from bide.model.ids import short_id
from bide.protocol.command import Command
from bide.protocol.commands.jobs import Position
from bide.queue.event_reader import EventReader, Pause, Read, entered_already, not_entered

log = Log("bide.model.events")

_calling: Final = threading.local()
"""Whether this thread is in a callback."""


class Events:
    """What becomes of a queue's jobs, event by event, from where the `with` begins."""

    def __init__(self, following: EventReader, make_client: Callable[[], blocking.Client]) -> None:
        self._following = following
        self._make_client = make_client
        self._client: blocking.Client | None = None
        self._steps = following.steps()
        self._todo: Any = None
        self._cut = threading.Event()
        self._answered: bool | None = None
        """Whether the server did when the connection was cut."""

    @property
    def after(self) -> str:
        """The id up to which events were read: `queue.events(after=...)` goes on behind it."""
        return self._following.after

    def __enter__(self) -> Self:
        """Hold the stream open.

        Raises:
            UsageError: it is held open already, by another `with` for these events.
            BideError: the server cannot be reached, or refuses.
        """
        if self._client is not None:
            raise entered_already()
        client = self._make_client()
        try:
            self._following.began(client.run(self._following.hold()))
        except BaseException:
            client.close()
            raise
        self._client = client
        return self

    def __exit__(self, *exc: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            answers = client.answers if self._answered is None else self._answered
            if answers and not self._following.is_named:  # else it is let go of ten minutes later
                client.send_last(self._following.let_go())
            client.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """The next event; waits for it.

        Raises:
            StopIteration: there was none for as long as the time-out; another call waits again.
            BideError: the server cannot be reached, or refuses; another call tries again.
        """
        try:
            step = self._todo or next(self._steps)
            while not isinstance(step, Event):
                self._todo = step
                outcome = self._do(step)
                self._todo = None
                step = self._steps.send(outcome)
        except StopIteration:
            self._steps = self._following.steps()
            raise
        return step

    def _do(self, step: Command[Position] | Read | Pause) -> Any:
        client = self._client
        if client is None:
            raise not_entered("with")
        if self._cut.is_set():
            raise _Cut
        if isinstance(step, Pause):
            return self._cut.wait(step.seconds)
        if isinstance(step, Read):
            return client.read(step.stream, step.after, step.seconds)
        return client.run(step)

    def _stop(self) -> None:
        """Have what another thread waits for end now."""
        client = self._client
        if client is not None:
            if self._answered is None:
                self._answered = client.answers
            self._cut.set()
            blocking.cut(client)


class _Cut(Exception):
    """Nothing is to be read any more."""


class EventListener:
    """A thread that calls a function with events, until it is stopped or its queue is closed."""

    def __init__(
        self,
        events: Events,
        kinds: frozenset[str],
        callback: Callable[[Event], object],
        ended: Callable[[EventListener], object],
    ) -> None:
        """Begin.

        Args:
            events: have been entered.
            kinds: those that are wanted.
            callback: takes an event.
            ended: takes this, at the end.
        """
        self._events = events
        self._kinds = kinds
        self._callback = callback
        self._ended = ended
        self._stopping = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="bide-events", daemon=True)
        self._thread.start()

    @property
    def after(self) -> str:
        """The id of the event that was read last: `after=` goes on behind it."""
        return self._events.after

    def stop(self) -> None:
        """End it; returns when the callback that runs, if any, has.

        Called from a callback, this one's or another's, it does not wait: two that stop each other
        would wait for ever.
        """
        self._begin_to_stop()
        if getattr(_calling, "back", False):
            return
        while self._thread.is_alive():
            self._events._stop()  # again, if it began to read meanwhile
            self._thread.join(0.05)

    def _begin_to_stop(self) -> None:
        """`stop`, without waiting."""
        self._stopping.set()
        self._events._stop()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.is_set():
            try:
                for event in self._events:
                    pause = 0.0
                    if not self._stopping.is_set():
                        self._call(event)
                    if self._stopping.is_set():
                        break
            except Exception as error:  # also what a connection that was cut under it raises
                if self._stopping.is_set():
                    break
                pause = min(2 * pause or 1.0, LONGEST_RECONNECT_PAUSE)
                log.warning("listening to events goes on in %g s: %s", pause, error)
                self._stopping.wait(pause)
        self._events.__exit__()
        self._ended(self)

    def _call(self, event: Event) -> None:
        if event.kind == GAP and GAP not in self._kinds:
            log.warning("events before %s were lost", event.id)
            return
        _calling.back = True
        try:
            self._callback(event)
        except Exception:
            log.exception(
                "the callback for %s of %s raised", event.kind, short_id(event.job_id or "")
            )
        finally:
            _calling.back = False


def stop_all(listenings: Iterable[EventListener]) -> None:
    """Stop all at once, so that the goodbyes of all take no longer than one's."""
    ending = [*listenings]
    for listening in ending:
        listening._begin_to_stop()
    for listening in ending:
        listening.stop()
