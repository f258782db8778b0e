"""What a test names as a task."""

from __future__ import annotations

from typing import Any

from bide.errors import UsageError
from bide.naming import Named
from bide.task import Function


def known_task(task: Any) -> Function | str:
    """A task as `enqueue` takes it.

    Raises:
        UsageError: it is a method of a task.
    """
    if isinstance(owner := getattr(task, "__self__", None), Named):
        raise UsageError(
            f"Give the task itself, {owner.name}, without .{task.__name__}: its jobs are looked "
            "for, and nothing is called."
        )
    given: Function | str = task
    return given
