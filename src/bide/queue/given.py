"""The options that a call of `enqueue` gives, apart from the arguments of the function."""

from __future__ import annotations

from itertools import repeat
from operator import is_not
from typing import Any, Final, cast

from bide.errors import UsageError
from bide.naming import task_name
from bide.options import Options
from bide.task import Function, known

ENQUEUE_OPTIONS: Final = (
    "delay",
    "at",
    "priority",
    "job_id",
    "timeout",
    "retry",
    "retention",
    "durability",
    "on_crash",
    "expires",
    "group",
    "group_concurrency",
    "unique",
    "depends_on",
    "allow_failure",
    "if_failed",
    "on_parent_cancel",
    "description",
    "meta",
    "on_success",
    "on_failure",
)
"""The options of `enqueue`, in the order of its parameters."""


def options_only(task: Function | str, values: tuple[Any, ...]) -> Options:
    """The options of `enqueue` that were given; their names must not be the function's own too.

    Args:
        task: what is enqueued.
        values: of `ENQUEUE_OPTIONS`; None is not given.

    Raises:
        UsageError: the function has a parameter of such a name: which one was meant?
    """
    if not any(map(is_not, values, repeat(None))):
        return {}
    given = {
        name: value
        for name, value in zip(ENQUEUE_OPTIONS, values, strict=True)
        if value is not None
    }
    signature = known(task).signature
    if signature is not None and not signature.names.isdisjoint(given):
        name = next(name for name in given if name in signature.names)
        raise UsageError(
            f"{name}= is an option of a job and an argument of {task_name(task)} too; give the "
            f"option with enqueue_call(f, args, kwargs, {name}=...), and the argument in its "
            f"kwargs or with task.enqueue({name}=...)."
        )
    return cast(Options, given)
