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
    """An iterator over the events of a queue, from the moment the `with` is entered."""

    def __init__(self, reader: EventReader, make_client: Callable[[], blocking.Client]) -> None:
        self._reader = reader
        self._make_client = make_client
        self._client: blocking.Client | None = None
        self._steps = reader.steps()
        self._todo: Any = None
        self._cut = threading.Event()
        self._answered: bool | None = None
        """Whether the server answered when the connection was cut."""

    @property
    def after(self) -> str:
        """The id of the last event that was read: `queue.events(after=...)` continues after it."""
        return self._reader.after

    def __enter__(self) -> Self:
        """Hold the stream open.

        Raises:
            UsageError: another `with` holds it open already.
            BideError: the server cannot be reached, or refuses.
        """
        if self._client is not None:
            raise entered_already()
        client = self._make_client()
        try:
            self._reader.began(client.run(self._reader.hold()))
        except BaseException:
            client.close()
            raise
        self._client = client
        return self

    def __exit__(self, *exc: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            answers = client.answers if self._answered is None else self._answered
            if answers and not self._reader.is_named:  # otherwise it expires after ten minutes
                client.send_last(self._reader.let_go())
            client.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """Wait for the next event and return it.

        Raises:
            StopIteration: no event came within the time-out; another call waits again.
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
            self._steps = self._reader.steps()
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
        """End the read of another thread now."""
        client = self._client
        if client is not None:
            if self._answered is None:
                self._answered = client.answers
            self._cut.set()
            blocking.cut(client)


class _Cut(Exception):
    """The connection was cut by `_stop`: read nothing more."""


class EventListener:
    """A thread that calls a function with events, until it is stopped or its queue is closed."""

    def __init__(
        self,
        events: Events,
        kinds: frozenset[str],
        callback: Callable[[Event], object],
        ended: Callable[[EventListener], object],
    ) -> None:
        """Start the thread.

        Args:
            events: the events, entered.
            kinds: the kinds of events to pass on.
            callback: takes an event.
            ended: takes this listener when it ends.
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
        """The id of the last event that was read: `after=` continues after it."""
        return self._events.after

    def stop(self) -> None:
        """Stop listening; return when the running callback, if any, has returned.

        Called from the callback of this or another listener, it does not wait: two callbacks that
        stop each other would deadlock.
        """
        self._begin_to_stop()
        if getattr(_calling, "back", False):
            return
        while self._thread.is_alive():
            self._events._stop()  # again, if it began to read meanwhile
            self._thread.join(0.05)

    def _begin_to_stop(self) -> None:
        """Stop without waiting."""
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
            except Exception as error:  # also the error of a connection that was cut
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


def stop_all(listeners: Iterable[EventListener]) -> None:
    """Stop all listeners concurrently: all goodbyes take as long as one."""
    ending = [*listeners]
    for listener in ending:
        listener._begin_to_stop()
    for listener in ending:
        listener.stop()
