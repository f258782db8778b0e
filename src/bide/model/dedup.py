"""Deduplication of calls: unique, debounced, throttled, batched (`lua/include/dedup.lua`).

A policy is a value; it is given as `unique=` to an enqueue or to a task. The constraints of the job
carry its key and the policy to the server.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

import msgspec

from bide.errors import PayloadError, UsageError
from bide.model.durations import UNIT_US, Duration, describe, is_whole, to_us
from bide.model.payload.serializers import Codec, pack, reason, simplify

Key = str | int | Callable[..., str | int] | None
"""A key; a function that makes it from the job's arguments; None for the policy's default."""

OnConflict = Literal["keep", "replace", "reject"]
EnqueueResult = Literal[
    "created", "duplicate", "rejected", "replaced", "debounced", "throttled", "batched"
]
"""The result of an enqueue; `rejected` raises `DuplicateJob`."""

MOST_RUNS: Final = 100
"""Maximum runs per period of a throttle: the server remembers the time of each."""

MOST_ITEMS: Final = 10_000
"""Maximum items of a batch."""

LONGEST_KEY: Final = 200
"""Maximum characters of a key."""

_LONGEST_QUOTED: Final = 500
_PLAIN: Final = "".join(chr(c) for c in range(33, 127) if chr(c) not in "%")
_WAYS: Final[dict[str, str]] = {"keep": "k", "replace": "r", "reject": "x"}
_LOOSE: Final = (
    "not a policy; write unique=Unique(), debounce('2s'), throttle('1/10s') or batch('5s')"
)


class _Policy(msgspec.Struct, frozen=True):
    def __post_init__(self) -> None:
        key = msgspec.structs.asdict(self)["key"]
        if key is not None and not callable(key):
            _checked(key)
        _ = self.way  # raises if a value is invalid

    @property
    def way(self) -> str:
        """The policy in the form of the constraints."""
        raise NotImplementedError


class Unique(_Policy, frozen=True):
    """Add no second job with the same key while a job holds the key.

        send.options(unique=Unique("order-42")).enqueue(42)

    Args:
        key: by default the task and all its arguments; text has at most 200 characters.
        until: when the job releases its key: when it has `"finished"` in any way, when it has
            `"started"`, or after a duration from its enqueue.
        on_conflict: the effect of a call while another job holds the key. `"keep"` changes nothing.
            `"replace"` gives the waiting job this call's arguments, options and due time.
            `"reject"` raises `DuplicateJob`.
    """

    key: Key = None
    until: Literal["started", "finished"] | Duration = "finished"
    on_conflict: OnConflict = "keep"

    @property
    def way(self) -> str:
        """The policy in the form of the constraints."""
        if self.on_conflict not in get_args(OnConflict):
            told = ", ".join(repr(way) for way in get_args(OnConflict))
            raise UsageError(f"on_conflict must be one of {told}, not {self.on_conflict!r}.")
        if self.until in ("started", "finished"):
            return f"u{_WAYS[self.on_conflict]},{str(self.until)[0]}"
        is_word = isinstance(self.until, str) and not re.search(r"\d", self.until)
        until_us = 0 if is_word else to_us(self.until, "until")
        if until_us <= 0:
            raise UsageError(
                'until must be "started", "finished" or a duration of more than 0, not '
                f"{self.until!r}."
            )
        return f"u{_WAYS[self.on_conflict]},{until_us}"


class Debounce(_Policy, frozen=True):
    """A debounce policy; see `debounce`."""

    quiet: Duration
    max_wait: Duration | None = None
    key: Key = None

    @property
    def way(self) -> str:
        """The policy in the form of the constraints."""
        return "d{},{}".format(*_quiet_us(self.quiet, self.max_wait))


class Throttle(_Policy, frozen=True):
    """A throttle policy; see `throttle`."""

    rate: str
    key: Key = None

    @property
    def way(self) -> str:
        """The policy in the form of the constraints."""
        count, slash, period = str(self.rate).partition("/")
        runs = int(count) if count.isascii() and count.isdecimal() else 0
        period = period.strip()
        if not slash or not period or not 1 <= runs <= MOST_RUNS:
            raise UsageError(
                f"throttle({self.rate!r}) does not say how many runs in which period; write "
                f"'1/10s', with a number from 1 to {MOST_RUNS}."
            )
        text = f"1{period}" if period.lower() in UNIT_US else period
        period_us = to_us(text, "the period of a throttle")
        if period_us <= 0:
            raise UsageError(f"throttle({self.rate!r}) has an empty period; write '1/10s'.")
        return f"t{runs},{period_us}"


class Batch(_Policy, frozen=True):
    """A batch policy; see `batch`."""

    quiet: Duration
    """Time without a new call."""
    max_wait: Duration | None = None
    """Time since the first call; None for no limit."""
    max_size: int = 100
    """Number of items."""
    key: Key = None
    """Calls with the same key share a batch; None for all calls of the task."""
    close: Duration | None = None
    """Set by an end marker: see `Queue.batch`."""

    @property
    def way(self) -> str:
        """The policy in the form of the constraints."""
        numbers = _quiet_us(self.quiet, self.max_wait)
        if not is_whole(self.max_size, 1, MOST_ITEMS):
            raise UsageError(
                f"max_size must be a number from 1 to {MOST_ITEMS:,}, not {self.max_size!r}."
            )
        end = "" if self.close is None else f",{to_us(self.close, 'close')}"
        return "g{},{},{}{}".format(*numbers, self.max_size, end)


DedupPolicy = Unique | Debounce | Throttle | Batch


def debounce(quiet: Duration, *, max_wait: Duration | None = None, key: Key = None) -> Debounce:
    """Run once after a time without calls, with the arguments of the latest call.

        @queue.task(unique=debounce("2s", max_wait="30s"))
        def save(document: str) -> None: ...

    Args:
        quiet: the time without calls; each call delays the job by this time again.
        max_wait: maximum time from the first call until the job is due; None for no limit.
        key: calls with the same key share a job; by default all calls of the task.

    Raises:
        UsageError: an argument is invalid.
    """
    return Debounce(quiet, max_wait, key)


def throttle(rate: str, *, key: Key = None) -> Throttle:
    """Limit the number of runs per period; further calls share one run at the next free time.

    The shared run has the arguments of the latest call, so the last call is never lost.

        @queue.task(unique=throttle("1/10s"))
        def refresh(page: str) -> None: ...

    Args:
        rate: the maximum runs in any period of this length: `"1/10s"`, `"5/m"`.
        key: calls with the same key share the rate; by default all calls of the task.

    Raises:
        UsageError: an argument is invalid.
    """
    return Throttle(rate, key)


def batch(
    quiet: Duration,
    *,
    max_wait: Duration | None = None,
    max_size: int = 100,
    key: Key = None,
) -> Batch:
    """Run once for many calls with one argument each; the task gets the list of arguments.

    The job is due as soon as one of `quiet`, `max_wait` and `max_size` is reached.

        @queue.task(unique=batch("1s", max_size=500))
        def index(pages: list[str]) -> None: ...

    Args:
        quiet: time without a new call.
        max_wait: time since the first call; None for no limit.
        max_size: number of items, at most 10,000.
        key: calls with the same key share a batch; by default all calls of the task.

    Raises:
        UsageError: an argument is invalid.
    """
    return Batch(quiet, max_wait, max_size, key)


def in_batch(policy: Batch, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a call of `queue.batch`, whose policy this is."""
    if policy.key is None:
        raise UsageError(
            "queue.batch() needs a key, such as the id of a customer, not None: items without a "
            "key of their own would share one batch."
        )
    if options.get("unique") is not None:
        raise UsageError("A batch has a dedup policy already; leave unique= out.")
    return {**options, "unique": policy}


def check_dedup(policy: Any) -> DedupPolicy | None:
    """Check a policy."""
    if policy is None or isinstance(policy, Unique | Debounce | Throttle | Batch):
        return policy
    raise UsageError(f"unique={policy!r} is {_LOOSE}.")


def write_dedup(
    policy: DedupPolicy | None,
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    codec: Codec,
) -> str:
    """Encode a key and a policy as words of a job's constraints; empty without a policy.

    `names` are the task's positional parameters, as far as they are known. `codec` encodes
    arguments, for the default key. Keys of different tasks never collide.
    """
    policy = check_dedup(policy)
    if policy is None:
        return ""
    if isinstance(policy, Batch) and (len(args) != 1 or kwargs):
        raise UsageError(
            f"Each batched call of {task} has one argument, given by position; pass a dict or a "
            "tuple that holds all values."
        )
    if callable(policy.key):
        key = _checked(_called(policy.key, args, kwargs, task))
    elif policy.key is not None:
        key = _checked(policy.key)
    else:
        key = ""
        if isinstance(policy, Unique):
            try:
                key = _digest(args, kwargs, names, codec)
            except Exception as error:  # properties and time zones may raise any error
                raise PayloadError(f"An argument of {task}: {reason(error, codec)}.") from None
    text = quote(f"{task}:{key}", safe=_PLAIN)
    if len(text) > _LONGEST_QUOTED:
        text = text[:60] + hashlib.sha256(text.encode()).hexdigest()
    return f"k={text} f={policy.way}"


def _called(
    key: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: str
) -> Any:
    """Call the function of a key with the arguments of a job."""
    try:
        return key(*args, **kwargs)
    except TypeError as error:
        try:
            inspect.signature(key).bind(*args, **kwargs)
        except TypeError:
            raise UsageError(
                f"The function of the key does not fit the arguments of {task} ({error}); give it "
                "the parameters of the task."
            ) from None
        except ValueError:  # it has no signature
            pass
        raise


def describe_dedup(way: str) -> str:
    """Describe an encoded policy for people."""
    kind, numbers = way[:1], [int(n) for n in way[1:].split(",") if n.isdecimal()]
    told = [describe(n / 1e6) for n in numbers]
    if kind == "u" and way.endswith(",f"):
        return "unique until it has finished"
    if kind == "u" and way.endswith(",s"):
        return "unique until it has started"
    if kind == "u" and numbers:
        return f"unique for {told[0]} from its enqueue"
    if kind == "t" and len(numbers) == 2:
        return f"throttled to {numbers[0]} in {told[1]}"
    if kind in ("d", "g") and len(numbers) >= 2:
        most = f", at most {told[1]} after the first" if numbers[1] else ""
        if kind == "d":
            return f"debounced: due {told[0]} after the latest call{most}"
        size = f", or with {numbers[2]} items" if len(numbers) >= 3 else ""
        end = f", or {told[3]} after its end" if len(numbers) == 4 else ""
        return f"batch: due {told[0]} after the latest item{most}{size}{end}"
    return ""


def _quiet_us(quiet: Duration, max_wait: Duration | None) -> tuple[int, int]:
    quiet_us = to_us(quiet, "quiet")
    most_us = 0 if max_wait is None else to_us(max_wait, "max_wait")
    if max_wait is not None and most_us < max(quiet_us, 1):
        raise UsageError(
            f"max_wait={max_wait!r} is shorter than the quiet time of {quiet!r}, so it would "
            f"have no effect; give a longer one, or max_wait=None for no limit."
        )
    return quiet_us, most_us


def _checked(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise UsageError(
            f"A key is text or an integer, or a function that returns one, not {key!r}."
        )
    text = str(key)
    if not text.isascii() and text.encode(errors="replace").decode() != text:
        raise UsageError(f"The key {text[:40]!r} holds half of a surrogate pair; give valid text.")
    if not 0 < len(text) <= LONGEST_KEY:
        raise UsageError(
            f"A key has 1 to {LONGEST_KEY} characters, not {len(text)}; use a digest of it."
        )
    return text


def _digest(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    codec: Codec,
) -> str:
    """Hash arguments: equal for equal arguments, given by position or by name.

    Pickles of equal arguments may differ.
    """
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    call: Any = (list(args[len(names) :]), sorted(given.items()))
    if codec != "pickle":
        with suppress(Exception):  # a set of several types, or an error that pack() raises too
            call = msgspec.to_builtins(
                call,
                builtin_types=(bytes, bytearray, memoryview, datetime),
                str_keys=True,
                enc_hook=simplify,
                order="sorted",
            )
    data = pack(call, codec)
    with suppress(msgspec.MsgspecError):  # arguments that are not JSON stay packed
        data = msgspec.json.encode(msgspec.json.decode(data), order="sorted")
    return hashlib.sha256(data).hexdigest()[:24]
