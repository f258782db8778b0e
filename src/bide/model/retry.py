"""Retry policies: whether and when a job runs again after an error.

Exponential delays have full jitter, which spreads jobs that failed together better than fixed
delays or partial jitter (M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog,
2015).

A policy is stored with a job as a JSON list (`Retry.wire`): `[max, backoff, base, cap, max_time,
on, never_on]`, with null for defaults, and without defaults at the end; a single `max` is stored as
a number. Functions and exceptions are stored by name, and a stored name is never imported: the
worker's registry finds a function, and an exception is compared by name.
"""

from __future__ import annotations

import builtins
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast, final

import msgspec

from bide.errors import JobTimeout, UsageError
from bide.model.durations import JITTER, Duration, is_whole, to_us
from bide.model.ids import module_of

# Not a `Log`, which is in a higher layer. The message is one line without it, because it has only
# a function's name and an exception's repr.
log = logging.getLogger("bide.model.retry")

BackoffFunction = Callable[[int, BaseException], Duration | None]
"""Takes the failed attempt (the first is 1) and its error; returns the delay, or None to stop."""

Backoff = str | Sequence[Duration] | BackoffFunction
Errors = type[BaseException] | str | Iterable[type[BaseException] | str]

_MAX: Final = 3
_BASE: Final = 1.0
_CAP: Final = 3600.0
_DEFAULTS: Final = (None, "exponential", _BASE, _CAP, None, (), ())


@final
class Retry(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A retry policy: how often, how soon, and after which errors a job runs again.

        @queue.task(retry=Retry(5, backoff=["1s", "1m", "1h"], never_on=[ValueError]))
        def charge(order_id: int) -> None: ...

    Args:
        max: retries after the first attempt; 0 makes the first error final. The default is 3,
            or the length of the list in `backoff`.
        backoff: `"exponential"` doubles the ceiling each time, and waits a random time from 0
            to the ceiling. `"fixed"` waits `base` each time. A list has a delay for each retry;
            the last delay repeats. A function of a module, `f(attempt, error)`, returns the
            delay, or None to give up.
        base: the first ceiling, or the fixed delay: seconds, a `timedelta` or text (`"1m"`).
        cap: maximum of the ceiling.
        max_time: maximum time from the first due time of the job to the due time of an attempt.
        on: exceptions, or their names, after which the job runs again; none means all.
        never_on: exceptions, or their names, which are final; they take precedence over `on`.

    Raises:
        UsageError: an argument is invalid.
    """

    max: int = None  # type: ignore[assignment]
    """Retries after the first attempt."""
    backoff: str | tuple[float, ...] | BackoffFunction = "exponential"
    """`"exponential"`, `"fixed"`, `"module:function"`, seconds for each retry, or a function."""
    base: float = _BASE
    """Seconds."""
    cap: float = _CAP
    """Seconds."""
    max_time: float | None = None
    """Seconds, or None for no limit."""
    on: tuple[str, ...] = ()
    """Names of exceptions, `module.Class`; empty for all."""
    never_on: tuple[str, ...] = ()
    """Names of exceptions, `module.Class`."""

    if TYPE_CHECKING:  # the types that a caller may pass

        def __init__(
            self,
            max: int | None = None,
            backoff: Backoff = "exponential",
            base: Duration = _BASE,
            cap: Duration = _CAP,
            max_time: Duration | None = None,
            on: Errors = (),
            never_on: Errors = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        backoff, most = _checked_backoff(self.backoff), cast(int | None, self.max)
        if most is None:
            most = len(backoff) if isinstance(backoff, tuple) else _MAX
        if not is_whole(most, 0):
            raise UsageError(f"Retry(max={most!r}): give a number of retries, 0 or more.")
        values = (
            most,
            backoff,
            _seconds(self.base, "base"),
            _seconds(self.cap, "cap"),
            None if self.max_time is None else _seconds(self.max_time, "max_time"),
            _names(self.on, "on"),
            _names(self.never_on, "never_on"),
        )
        for field, value, default in zip(self.__struct_fields__, values, _DEFAULTS, strict=True):
            msgspec.structs.force_setattr(self, field, default if value == default else value)

    def decide(
        self,
        attempt: int,
        error: BaseException,
        elapsed: float = 0.0,
        resolve: Callable[[str], Callable[..., Any]] | None = None,
        *,
        asked: bool = False,
        delay: float | None = None,
    ) -> float | None:
        """Return the seconds until the next attempt, or None if this error is final.

        If a backoff function cannot be found, raises, or returns no duration, the error is logged,
        and the delay is the one of `"exponential"`. `max` still limits the attempts.

        Args:
            attempt: the attempt that raised; the first is 1.
            error: what it raised.
            elapsed: seconds since the job was first due.
            resolve: returns the function of a stored name `module:function`.
            asked: the job asked for the retry: it follows after any error, within `max` and
                `max_time`.
            delay: seconds that the job asked for, instead of those of `backoff`.
        """
        if attempt > self.max or not (asked or self._covers(error)):
            return None
        if delay is None:
            delay = self._delay(attempt, error, resolve)
        if delay is None or (self.max_time is not None and elapsed + delay > self.max_time):
            return None
        return delay

    def _covers(self, error: BaseException) -> bool:
        if not self.on and not self.never_on:
            return True
        kinds = type(error).__mro__
        if isinstance(error, JobTimeout):
            kinds = (*kinds, TimeoutError)
        if _has_one(kinds, self.never_on):
            return False
        return not self.on or _has_one(kinds, self.on)

    def _delay(
        self,
        attempt: int,
        error: BaseException,
        resolve: Callable[[str], Callable[..., Any]] | None,
    ) -> float | None:
        backoff = self.backoff
        if backoff == "fixed":
            return self.base
        if isinstance(backoff, tuple):
            return backoff[min(attempt, len(backoff)) - 1]
        if backoff != "exponential":
            try:
                if isinstance(backoff, str):
                    if resolve is None:
                        raise LookupError("there is no registry to look it up in")
                    backoff = resolve(backoff)
                delay = backoff(attempt, error)
                return None if delay is None else to_us(delay, "a delay") / 1e6
            except Exception as broken:
                log.error(
                    "the backoff %s cannot be used (%r); using exponential", _told(backoff), broken
                )
        ceiling = min(self.cap, self.base * 2.0 ** min(attempt - 1, 64))
        return JITTER.uniform(0, ceiling)

    def wire(self) -> int | list[Any]:
        """The stored form (see the top of this module)."""
        values = list(msgspec.structs.astuple(self))
        if callable(self.backoff):
            values[1] = _function_name(self.backoff)
        stored = [None if v == d else v for v, d in zip(values, _DEFAULTS, strict=True)]
        while stored[-1] is None:
            del stored[-1]
        return self.max if len(stored) == 1 else stored

    @classmethod
    def from_wire(cls, stored: object) -> Retry:
        """Parse the stored form; values that this version does not know are ignored."""
        values = (stored if isinstance(stored, list) else [stored])[: len(cls.__struct_fields__)]
        try:
            return _from_wire(tuple(tuple(v) if isinstance(v, list) else v for v in values))
        except (
            TypeError
        ):  # a value that is not a policy may hold an unhashable value, such as a dict
            raise UsageError(f"{stored!r} is not a stored retry policy.") from None


def as_retry(retry: Retry | int | None) -> Retry:
    """Accept `retry=5` for `retry=Retry(5)`, and None for no retry."""
    if retry is None:
        return NO_RETRY
    given: object = retry
    if isinstance(given, bool) or not isinstance(given, Retry | int):
        raise UsageError(
            "retry must be a number of retries, or a policy such as "
            f"Retry(3, backoff=['1s', '1m']), not {given!r}."
        )
    policy = retry if isinstance(retry, Retry) else Retry(retry)
    if policy.backoff == "exponential" and policy.cap < policy.base:
        raise UsageError(
            f"Retry(base={policy.base:g}, cap={policy.cap:g}): the first wait would be cut to the "
            "cap; give a cap= that is not shorter than base=."
        )
    return policy


@functools.lru_cache(maxsize=256)  # the jobs of a queue share a few policies
def _from_wire(values: tuple[Any, ...]) -> Retry:
    given = {n: v for n, v in zip(Retry.__struct_fields__, values, strict=False) if v is not None}
    if not isinstance(given.get("max"), int):
        raise UsageError(f"A stored retry policy begins with a number, not {values!r}.")
    return Retry(**given)


def _checked_backoff(backoff: Any) -> str | tuple[float, ...] | BackoffFunction:
    if isinstance(backoff, str):
        if backoff in ("exponential", "fixed") or _is_path(backoff, colon=True):
            return backoff
    elif callable(backoff) and not isinstance(backoff, type):
        return cast(BackoffFunction, backoff)
    if isinstance(backoff, list | tuple) and backoff:
        return tuple(_seconds(delay, "backoff") for delay in backoff)
    raise UsageError(
        f"Retry(backoff={backoff!r}): give 'exponential' or 'fixed', a list of delays, or a "
        "function (attempt, error) -> delay."
    )


def _seconds(value: Any, name: str) -> float:
    return to_us(value, f"Retry {name}") / 1e6


def _names(errors: Any, option: str) -> tuple[str, ...]:
    if isinstance(errors, str | type) or not isinstance(errors, Iterable):
        errors = (errors,)
    return tuple(_name(error, option) for error in errors)


def _name(error: Any, option: str) -> str:
    if isinstance(error, type) and issubclass(error, BaseException):
        error = _class_name(error)
    if not isinstance(error, str) or not _is_path(error.replace(".<locals>.", ".")):
        raise UsageError(
            f"Retry({option}={error!r}): give exception classes, or names such as "
            "'TimeoutError' and 'package.module.Error'."
        )
    name = error.replace(":", ".").removeprefix("builtins.")
    if "." not in name and not isinstance(getattr(builtins, name, None), type):
        raise UsageError(
            f"Retry({option}={error!r}): no built-in exception has this name; write its module "
            "as well, as in 'package.module.Error'."
        )
    return _true_name(name)


def _true_name(name: str) -> str:
    """Return the original name of a class that a module re-exports (`asyncio.TimeoutError`).

    Nothing is imported: if the module is not loaded, the name stays as it is.
    """
    module_name, _, attribute = name.rpartition(".")
    module = sys.modules.get(module_name)
    found = vars(module).get(attribute) if module else None
    if isinstance(found, type) and issubclass(found, BaseException):
        return _class_name(found)
    return name


def _class_name(kind: type) -> str:
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{module_of(kind) or kind.__module__}.{kind.__qualname__}"


def _has_one(kinds: Iterable[type], names: Iterable[str]) -> bool:
    """Whether a name means one of the classes; its module may be loaded only by now."""
    return any(_is_named(kind, name) for name in map(_true_name, names) for kind in kinds)


def _is_named(kind: type, name: str) -> bool:
    """Whether a name means a class; `requests.HTTPError` means `requests.exceptions.HTTPError`.

    Packages re-export errors of their modules, so the module in a name may be any package above the
    module of the class.
    """
    full = _class_name(kind)
    if full == name:
        return True
    module, _, attribute = name.rpartition(".")
    return attribute == kind.__qualname__ and full.startswith(f"{module}.")


def _is_path(text: str, *, colon: bool = False) -> bool:
    """Whether a text has the form `a.b.C` or `a.b:C`; with `colon`, only the latter."""
    head, mark, tail = text.partition(":")
    if colon and not mark:
        return False
    parts = [*head.split("."), *(tail.split(".") if mark else ())]
    return all(part.isidentifier() for part in parts)


def _function_name(function: Any) -> str:
    module, qualname = module_of(function), getattr(function, "__qualname__", "<")
    if module is None or "<" in qualname or hasattr(function, "__self__"):
        raise UsageError(
            f"Retry(backoff={_told(function)}) cannot be stored with a job, since no worker would "
            "find the function by a name; define it at the top level of a module."
        )
    return f"{module}:{qualname}"


def _told(backoff: Any) -> str:
    return str(getattr(backoff, "__qualname__", backoff))


NO_RETRY: Final = Retry(0)
"""The default: an error is final, because not every task may be repeated."""
