"""Tasks: functions by name, and which names a worker will run.

A name is `module:qualname`. A worker runs a task only if the task was registered (a decorator ran
in its process) or lives in a module that it was told to serve; a name that a payload brings is
looked up among these, and is never imported.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bide.errors import TaskNotFound, UsageError

Function = Callable[..., Any]


class Target(NamedTuple):
    """What a task's name leads to in this process."""

    function: Function
    is_async: bool


_registered: dict[str, Function] = {}


def task_name(task: Function | str) -> str:
    """The name under which a function, or a name itself, is enqueued.

    Raises:
        UsageError: no worker could find it: a lambda, a nested function, one of `__main__`, a
            partial, a method of an instance.
    """
    if isinstance(task, str):
        path, colon, attribute = task.partition(":")
        parts = [*path.split("."), *attribute.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            raise UsageError(f"{task!r} is not a task's name; write 'package.module:function'.")
        return task
    if not callable(task):
        raise UsageError(f"{task!r} is neither a function nor a name 'package.module:function'.")
    module = getattr(task, "__module__", None) or "?"
    qualname: str | None = getattr(task, "__qualname__", None)
    if qualname is None or (inspect.ismethod(task) and not inspect.isclass(task.__self__)):
        raise UsageError(
            f"A {type(task).__name__} carries an object that a worker does not have; enqueue a "
            "function of a module, and what it needs as arguments."
        )
    if module == "__main__":
        raise UsageError(
            f"{qualname} is defined in the program that is being run (__main__), where a worker "
            "cannot import it; move it to a module and import it from there."
        )
    if "<" in qualname:
        raise UsageError(
            f"{module}:{qualname} cannot be found by its name; define the function at the top "
            "level of a module."
        )
    return f"{module}:{qualname}"


def register(function: Function) -> str:
    """Let workers of this process run a function; its name."""
    name = task_name(function)
    _registered[name] = function
    return name


def import_task(name: str) -> Function:
    """Import what a name leads to; for people who type names, never for names in payloads.

    Raises:
        TaskNotFound: the module cannot be imported, or has no such function.
    """
    module_name, _, qualname = task_name(name).partition(":")
    return _lookup(import_module(module_name), module_name, qualname)


def import_module(name: str) -> Any:
    """Import a module by name.

    Raises:
        TaskNotFound: it cannot be imported; the message says why.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise TaskNotFound(
            f"The module {name!r} cannot be imported ({reason}); start from the directory that "
            "holds it, or install it."
        ) from error


class Served:
    """The tasks that one worker runs."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        """Import the modules to serve.

        Raises:
            TaskNotFound: one cannot be imported.
        """
        self._modules = {name: import_module(name) for name in modules}
        self._targets: dict[str, Target] = {}

    def find(self, name: str) -> Target:
        """What a name leads to.

        Raises:
            TaskNotFound: this worker does not serve it; the message says how to allow it.
        """
        target = self._targets.get(name)
        if target is None:
            function = self._find(name)
            target = Target(function, _is_async(function))
            self._targets[name] = target
        return target

    def _find(self, name: str) -> Function:
        if name in _registered:
            return _registered[name]
        module_name, _, qualname = name.partition(":")
        module = self._modules.get(module_name)
        if module is None:
            served = ", ".join(sorted(self._modules)) or "none"
            raise TaskNotFound(
                f"The task {name!r} is not served here (modules served: {served}); start the "
                f"worker as `bide worker {module_name}`, or register the task in a module it "
                "imports."
            )
        return _lookup(module, module_name, qualname)


def _lookup(module: Any, module_name: str, qualname: str) -> Function:
    """Only what the module itself defines: `app.tasks:os.system` leads nowhere."""
    found: Any = module
    for part in qualname.split("."):
        found = None if part.startswith("_") else getattr(found, part, None)
    if not callable(found) or getattr(found, "__module__", None) != module_name:
        raise TaskNotFound(
            f"The module {module_name!r} defines no public function {qualname!r}; check the "
            "spelling, and that this worker runs the code that the producer has."
        )
    function: Function = found
    return function


def _is_async(function: Function) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - an instance may have an async one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
