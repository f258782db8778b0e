"""What a task's options say of how its jobs are run, as its worker needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bide.clock import to_us
from bide.errors import UsageError
from bide.options import OnCrash, TaskOptions
from bide.payload.codec import DEFAULT_TIMEOUT
from bide.retry import NO_RETRY, Retry, as_retry

Function = Callable[..., Any]


class Policy(NamedTuple):
    """What a task's decorator says of how its jobs are run; a job's own options go first."""

    timeout: float = DEFAULT_TIMEOUT
    retry: Retry = NO_RETRY
    has_retry: bool = False
    keep: float | None = None
    on_crash: OnCrash = "rerun"
    on_success: Function | str | None = None
    on_failure: Function | str | None = None


def policy_of(options: TaskOptions) -> Policy:
    """The part of a task's options that its worker needs.

    Raises:
        UsageError: an option cannot be meant.
    """
    timeout, retry, keep = (options.get(name) for name in ("timeout", "retry", "retention"))
    on_crash = options.get("on_crash") or "rerun"
    return Policy(
        timeout=DEFAULT_TIMEOUT if timeout is None else check_timeout(timeout),
        retry=as_retry(retry),  # type: ignore[arg-type]
        has_retry=retry is not None,
        keep=None if keep is None else to_us(keep, "retention") / 1e6,  # type: ignore[arg-type]
        on_crash=check_on_crash(on_crash),
        on_success=options.get("on_success"),
        on_failure=options.get("on_failure"),
    )


def check_timeout(timeout: Any) -> float:
    """A time-out in seconds.

    Raises:
        UsageError: it is not a duration of more than 0.
    """
    seconds = to_us(timeout, "timeout") / 1e6
    if seconds <= 0:
        raise UsageError("timeout must be more than 0.")
    return seconds


def check_on_crash(on_crash: Any) -> OnCrash:
    """What happens to a job whose worker died.

    Raises:
        UsageError: it is neither `"rerun"` nor `"fail"`.
    """
    if on_crash not in ("rerun", "fail"):
        raise UsageError(f"on_crash must be 'rerun' or 'fail', not {on_crash!r}.")
    return on_crash  # type: ignore[no-any-return]
