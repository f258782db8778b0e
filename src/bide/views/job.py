"""The data of a job for tables and JSON, and the masks of its payload."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from bide.client.config import mask_setting
from bide.errors import PayloadError, TaskNotFound, UsageError
from bide.logs import plain
from bide.model.dedup import describe_dedup
from bide.model.durations import describe as describe_duration
from bide.model.durations import from_us
from bide.model.history import Attempt
from bide.model.job import Snapshot
from bide.model.payload.body import ErrorInfo
from bide.model.retry import Retry
from bide.queue.job_view import Reason, call, written
from bide.queue.select import FoundJob, Mask, masked_error, unmasked
from bide.tasks.registry import module_file
from bide.tasks.task import import_module, signature_of_loaded
from bide.views.params import did_you_mean, moment_json, report

log: Final = logging.getLogger(__name__)

REMARK: Final = 200
"""Maximum characters of an error in a list."""


def cut(text: str, most: int, end: str = "…") -> str:
    """Cut a text, and mark the cut."""
    return text if len(text) <= most else f"{text[:most]}{end}"


def data_line(seen: FoundJob, mask: Mask) -> str:
    """Return the data of an item, cut for a list; empty for a job."""
    if not seen.snapshot.is_item:
        return ""
    try:
        line = written(mask(seen.snapshot.task, "data", plain(seen.snapshot.data())))
    except PayloadError as error:
        return str(error)
    return cut(line, REMARK)


def given_description(seen: FoundJob) -> str:
    """Return the description that the producer gave, if there is one."""
    try:
        return seen.snapshot.head.description or ""
    except PayloadError:
        return ""


def brief(seen: FoundJob, mask: Mask) -> dict[str, Any]:
    """Return a job in the form of `bide jobs ls --json`; `masked` names the masked fields."""
    job, snapshot = seen.job, seen.snapshot
    error = masked_error(snapshot.notes.error, snapshot.task, mask)
    masked = [] if error == snapshot.notes.error else ["error"]
    description = job.description
    if not snapshot.is_item and describe(snapshot, mask) != describe(snapshot, unmasked):
        description = describe(snapshot, mask)
        masked.append("description")
    return {
        "id": job.id,
        "queue": seen.queue,
        "state": job.state.value,
        **report(job, "task"),
        "description": description,
        **report(job, "priority", "enqueued"),
        "due": moment_json(job.due) if seen.has_moment else None,
        **report(job, "started", "finished"),
        **report(job, "run_time", "attempt", "worker", "lateness", "cancelling"),
        "error": error and report(error, "type", "message"),
        "masked": masked,
    }


def policy_report(policy: Retry | None) -> dict[str, Any] | None:
    """Return a retry policy in its JSON form; `text` is for people."""
    if policy is None:
        return None
    known = msgspec.structs.asdict(policy)
    if callable(policy.backoff):
        known["backoff"] = module_file(policy.backoff)
    return known | {"text": policy_line(policy)}


def policy_line(policy: Retry) -> str:
    """Describe a retry policy: `3 retries, exponential from 1s to 1h`."""
    if policy.max == 0:
        return "no retries"
    backoff, last = policy.backoff, describe_duration(policy.cap)
    if backoff == "exponential":
        how = f"exponential from {describe_duration(policy.base)} to {last}"
    elif backoff == "fixed":
        how = f"each after {describe_duration(policy.base)}"
    elif isinstance(backoff, tuple):
        how = f"after {', '.join(map(describe_duration, backoff))}"
    else:
        how = f"delays by {module_file(backoff) if callable(backoff) else backoff}"
    parts = ["1 retry" if policy.max == 1 else f"{policy.max} retries", how]
    if policy.max_time is not None:
        parts.append(f"within {describe_duration(policy.max_time)}")
    if policy.on:
        parts.append(f"only on {', '.join(policy.on)}")
    if policy.never_on:
        parts.append(f"never on {', '.join(policy.never_on)}")
    return cut(", ".join(parts), REMARK)


def full(seen: FoundJob, mask: Mask) -> dict[str, Any]:
    """Return a job in the form of `bide jobs show --json`; an item of data has fewer fields."""
    shown = _full(seen, mask)
    for kind in PAYLOAD:
        if (value := shown.get(kind)) is not None:
            shown[kind] = plain(mask(seen.snapshot.task, kind, value))
            if shown[kind] != value:
                shown["masked"].append(kind)
    return shown


def _full(seen: FoundJob, mask: Mask) -> dict[str, Any]:
    """Return that form without a mask."""
    job, snapshot = seen.job, seen.snapshot
    unread: list[str] = []

    def read(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return plain(function(*args))
        except PayloadError as error:
            if str(error) not in unread:
                unread.append(str(error))
            return None

    known = brief(seen, mask) | {
        "now": moment_json(from_us(snapshot.now_us)),
        "unreadable": unread,
        "error": _error(masked_error(job.error, snapshot.task, mask)),
        "attempts": [_attempt(attempt, snapshot.task, mask) for attempt in job.attempts],
        "rescheduled": [
            {"at": moment_json(at), "from": moment_json(was), "to": moment_json(due)}
            for at, was, due in snapshot.notes.moves
        ],
    }
    if snapshot.is_item:
        return known | {"data": read(snapshot.data)}
    payload = ("parents", "args", "kwargs", "meta", "schedule", "result")
    options = ("max_attempts", "timeout", "retention")
    known |= {name: read(getattr, job, name) for name in (*payload, *options)}
    known["retry_policy"] = read(lambda: policy_report(job.retry_policy))
    name, turn, constraints, progress = job.group, snapshot.turn, snapshot.constraints, job.progress
    unique = {"key": constraints.key, "how": describe_dedup(constraints.dedup or "")}
    return known | {
        **report(job, "expires", "expired", "cancelled_by"),
        "group": None if name is None else {"name": name, "waits": turn and turn._asdict()},
        "waits_for": list(snapshot.awaited),
        "waits_for_count": snapshot.awaits,
        "schedule_time": moment_json(job.schedule_time if known["schedule"] else None),
        "unique": None if constraints.dedup is None else unique,
        "progress": progress and report(progress, "fraction", "text", "at"),
        "logs": [report(line, "at", "text") for line in job.logs],
    }


def why_report(reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    """Return the reasons why it has not run, in their JSON form."""
    return [report(reason, "kind", "text", "until") for reason in reasons]


def _attempt(attempt: Attempt, task: str, mask: Mask) -> dict[str, Any]:
    known = report(attempt, "number", "started", "ended", "worker", "crashed")
    return known | {"error": _error(masked_error(attempt.error, task, mask))}


def _error(error: ErrorInfo | None) -> dict[str, Any] | None:
    return None if error is None else report(error, "type", "message", "traceback")


_LONGEST: Final = 300
"""Maximum characters of a description in a list."""

_OF_JOBS: Final[dict[str, Any]] = {
    "progress": None,
    "logs": [],
    "why": [],
    "group": None,
    "expires": None,
    "expired": False,
    "cancelled_by": None,
    "max_attempts": None,
}
"""The fields that an item of data does not have."""

PAYLOAD: Final = ("args", "kwargs", "meta", "result", "data")


def masked_brief(seen: FoundJob, mask: Mask) -> dict[str, Any]:
    """Return a job of a list, masked."""
    progress = seen.snapshot.notes.progress
    return brief(seen, mask) | {
        "description": describe(seen.snapshot, mask),
        "moment_ago": seen.ago if seen.has_moment else None,
        "progress": None if progress is None else progress.fraction,
    }


def masked_full(seen: FoundJob, mask: Mask) -> dict[str, Any]:
    """Return all data of a job, masked."""
    return _OF_JOBS | full(seen, mask) | {"description": describe(seen.snapshot, mask)}


def describe(snapshot: Snapshot, mask: Mask) -> str:
    """Return the producer's description, otherwise the masked call or data."""
    task = snapshot.task
    try:
        if snapshot.is_item:
            return cut(written(mask(task, "data", plain(snapshot.data()))), _LONGEST)
        head = snapshot.head
        if head.description is not None:
            return cut(head.description, _LONGEST)
        if head.codec != "json":
            return task
        return cut(f"{task}({call_line(task, head.args, head.kwargs, mask)})", _LONGEST)
    except PayloadError:
        return task


def call_line(task: str, args: Any, kwargs: Any, mask: Mask) -> str:
    """Return the masked arguments as in source code."""
    args, kwargs = mask(task, "args", plain(list(args))), mask(task, "kwargs", plain(dict(kwargs)))
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return args if isinstance(args, str) else HIDDEN
    return call(args, kwargs)


HIDDEN: Final = "•••"

_SECRET: Final = re.compile(
    "passw|passphrase|pwd|secret|token|authorization|bearer|credential|cookie|session"
    "|(api|access|private|signing|encryption)key|cvv|cvc|cardn(umber|o)"
)
_SHORT: Final = re.compile(r"(?:^|[\W_])(?:pass|auth|jwt|otp)$", re.IGNORECASE)
"""Names of secrets that count only as a separate word at the end: `db_pass`, not `compass`."""
_BETWEEN: Final = re.compile(r"[\W_]+")
_DEEPEST: Final = 50


def mask_secrets(task: str, kind: str, value: Any) -> Any:
    """Hide values whose name looks like the name of a secret: the default mask.

    A positional argument has the name of the task's parameter, if this process has imported the
    function; nothing is imported for this.
    """
    if kind == "args" and isinstance(value, list | tuple):
        takes = signature_of_loaded(task)
        if takes is not None:
            return [_under(takes.position(i), each, _DEEPEST) for i, each in enumerate(value)]
    return _masked(value, _DEEPEST)


def _under(name: str, value: Any, depth: int) -> Any:
    plain = _BETWEEN.sub("", name).lower()  # `X-Api-Key`, `api_key` and `apiKey` are alike
    return HIDDEN if _SECRET.search(plain) or _SHORT.search(name) else _masked(value, depth)


def _masked(value: Any, depth: int) -> Any:
    if depth == 0:
        return HIDDEN
    if isinstance(value, dict):
        return {key: _under(str(key), each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each, depth - 1) for each in value]
    return value


_MASKS: Final[dict[str, Mask]] = {"secrets": mask_secrets, "none": unmasked}
_FUNCTION: Final = re.compile(r"(\w+(?:\.\w+)*):(\w+(?:\.\w+)*)")


def read_mask(given: Mask | str | None, what: str = "mask=", otherwise: str = "secrets") -> Mask:
    """Return the mask that is given, otherwise the mask of the settings; text names it.

    Raises:
        UsageError: there is no such mask, or it cannot be called as one.
    """
    where = what if what.endswith("=") else f"{what} "
    if given is None:
        given, where = mask_setting()
        where += " = "
    if given is None:
        return _MASKS[otherwise]
    if not isinstance(given, str):
        return _checked(given, f"{where}{module_file(given) if callable(given) else repr(given)}")
    if given in _MASKS:
        return _MASKS[given]
    said, found = f"{where}{cut(given, 80)!r}", _FUNCTION.fullmatch(given)
    if found is None:
        meant = ":".join(given.rsplit(".", 1))
        end = f"; did you mean {meant!r}?" if _FUNCTION.fullmatch(meant) else ""
        end = did_you_mean(given, _MASKS) or end or "; write secrets, none or MODULE:FUNCTION."
        raise UsageError(f"{said} is not a mask{end}")
    try:
        return _checked(attrgetter(found[2])(import_module(found[1])), said)
    except TaskNotFound as error:
        raise UsageError(f"{said}: {error}") from None
    except AttributeError:
        raise UsageError(
            f"{said}: the module {found[1]!r} has no {found[2]!r}; write MODULE:FUNCTION with the "
            "name of a function in it."
        ) from None


def of_unknown_task(mask: Mask) -> Mask:
    """Return the mask for a job whose task is not known: a function of the user hides by task."""
    return mask if mask in _MASKS.values() else lambda task, kind, value: HIDDEN


def _checked(mask: Any, said: str) -> Mask:
    """Return a mask that hides values for which the function raises."""
    if mask in _MASKS.values():
        return cast("Mask", mask)
    try:
        if not callable(mask) or inspect.iscoroutinefunction(mask):
            raise TypeError
        inspect.signature(mask).bind("task", "kind", None)
    except TypeError:
        raise UsageError(
            f"{said} is not a mask; give a plain function that takes task, kind and value, and "
            "returns what is shown."
        ) from None
    except ValueError:  # a built-in without a signature
        pass
    return partial(_safely, mask, said, set())


def _safely(mask: Mask, said: str, known: set[type], task: str, kind: str, value: Any) -> Any:
    """Call a mask; if it raises, hide the value, and log each type of error once."""
    try:
        return plain(mask(task, kind, value))
    except Exception as error:
        if type(error) not in known:
            known.add(type(error))
            log.warning(
                "%s raised %r for the %s of %s; what it fails on is hidden, so correct the mask",
                *(said, error, kind, task),
            )
        return HIDDEN
