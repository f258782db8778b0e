"""What a test names as a task: what `enqueue` takes, or a task of Django."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from bide.errors import UsageError
from bide.naming import Named
from bide.task import Function

_DJANGO: Final = ("django.tasks.base", "django_tasks.base")


class DjangoTask(Protocol):
    """A task of `django.tasks`, or of the package `django-tasks`."""

    @property
    def func(self) -> Callable[..., Any]:
        """The function that it runs."""
        ...


GivenTask: TypeAlias = Function | str | DjangoTask


def known_task(task: Any) -> Function | str:
    """A task as `enqueue` takes it; for a task of Django, the name that its jobs have.

    Raises:
        UsageError: it is no task, or a method of one; or a task of Django that bide does not
            enqueue.
    """
    if isinstance(owner := getattr(task, "__self__", None), Named):
        raise UsageError(
            f"Give the task itself, {owner.name}, without .{task.__name__}: its jobs are looked "
            "for, and nothing is called."
        )
    if any(kind.__module__ in _DJANGO and kind.__name__ == "Task" for kind in type(task).__mro__):
        from bide.contrib.django.backend import job_name  # whoever has a task has Django

        return job_name(task)
    if not callable(task) and not isinstance(task, str):
        raise UsageError(
            f"Give a task, then its arguments, such as (send, 42, delay='1h'), not {task!r}."
        )
    given: Function | str = task
    return given
