"""What a delay queue does, without the I/O: generators that say what to send and when to wait.

`DelayQueue` and `AsyncDelayQueue` drive them and do nothing but what they yield:

    Ask(commands)   one round trip; answer with the results, a `BideError` for each that failed
    Hear(until)     wait for a wake hint, until then at most; answer with who pushed it, None, or
                    CLOSED if the delay queue was closed meanwhile
    Hush()          hear no more; answer with whether a hint had come meanwhile

A generator that is closed at one of these leaves nothing undone that the next call does not find.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from bide.command import Command
from bide.errors import BideError

T = TypeVar("T")

CLOSED: Final = "(closed)"
"""No seat has such a name."""


class Ask(NamedTuple):
    """Run these commands in one round trip."""

    commands: Sequence[Command[Any]]


class Hear(NamedTuple):
    """Wait for a wake hint."""

    until: float
    """By `time.monotonic()`."""


class Hush(NamedTuple):
    """Hear no more."""


Steps = Generator[Ask | Hear | Hush, Any, T]


def ask(command: Command[T]) -> Steps[T]:
    """Run one command.

    Raises:
        BideError: whatever came of it instead of a result.
    """
    (result,) = yield from ask_all([command])
    return result  # type: ignore[no-any-return]


def ask_all(commands: Sequence[Command[Any]]) -> Steps[list[Any]]:
    """Run commands in one round trip.

    Raises:
        BideError: what the first that failed came to; the others have run.
    """
    results: list[Any] = (yield Ask(commands)) if commands else []
    for result in results:
        if isinstance(result, BideError):
            raise result
    return results
