"""The registry of a process: names of tasks, and resources.

A resource is a generator function, plain or async, that yields once. The code before the yield runs
when a worker starts, and the code after it when the worker stops. Each task that asks for the
resource receives the yielded value. A resource without a value is a pair of start and stop hooks.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from bide.errors import UsageError
from bide.model.ids import LONGEST_TASK, MAIN, module_of

Function = Callable[..., Any]


class NamedTask:
    """A task with a name by which workers find it."""

    name: str


def task_name(task: Function | str) -> str:
    """Return the name under which a function is enqueued; a name is checked and returned.

    A lambda, a nested function or a partial is refused, because a worker could not find it. A
    function of the main program is named by the module of its file.
    """
    if isinstance(task, NamedTask):
        name = task.name
    elif isinstance(task, str):
        name = _checked_name(task)
    else:
        name = _name_of_function(task) if type(task) is FunctionType else _name_of_callable(task)
    if len(name) > LONGEST_TASK:
        raise UsageError(
            f"The name {name[:40]!r}... of a task has {len(name)} characters, more than "
            f"{LONGEST_TASK}; give it a shorter one with @queue.task(name=...)."
        )
    return name


@lru_cache(maxsize=4096)
def _checked_name(name: str) -> str:
    path, colon, attribute = name.partition(":")
    parts = [*path.split("."), *attribute.split(".")]
    if not is_given(name) and not (colon and all(part.isidentifier() for part in parts)):
        module, dot, function = path.rpartition(".")
        if dot and not colon and all(part.isidentifier() for part in parts[:-1]):
            raise UsageError(f"{name!r} is not a task's name; did you mean '{module}:{function}'?")
        raise UsageError(
            f"{name!r} is not a task's name; write 'package.module:function', or the word that "
            "a task was given as its name, such as 'send_email'."
        )
    return name


@lru_cache(maxsize=4096)
def _name_of_function(function: FunctionType) -> str:
    return _name_of_callable(function)


def _name_of_callable(task: Function) -> str:
    if isinstance(task, list):
        raise UsageError(
            "A list is not a function; pass prepared jobs, as chain(...) returns them, to "
            "queue.enqueue_many(...)."
        )
    if not callable(task):
        raise UsageError(
            f"{task!r} is neither a function nor a name 'package.module:function'; pass the "
            "function without calling it, and its arguments behind it: enqueue(function, 42)."
        )
    holder, qualname = task, getattr(task, "__qualname__", None)
    if inspect.ismethod(task):  # also an inherited method
        holder = task.__self__ if inspect.isclass(task.__self__) else type(task.__self__)
        qualname = f"{holder.__qualname__}.{task.__name__}"
    if qualname is None and hasattr(type(task), "prepare"):
        raise UsageError(
            f"{task!r} has options of its own; enqueue it with task.options(...).enqueue(...), or "
            "give the task without them, and its options here."
        )
    if qualname is None:
        raise UsageError(
            f"A {type(task).__name__} has no name by which a worker could find it; enqueue a "
            "function of a module, and what it needs as arguments."
        )
    module = module_of(holder) if hasattr(holder, "__module__") else "builtins"
    if module == "builtins":
        raise UsageError(
            f"{qualname} is a built-in of Python, which no worker serves; enqueue a function of a "
            "module of yours that calls it."
        )
    if module is None and holder.__module__ in MAIN:
        raise UsageError(
            f"{qualname} is defined in the program that is being run (__main__), where a worker "
            f"cannot import it; {_move(holder)}."
        )
    if "<" in qualname:
        raise UsageError(
            f"{module}:{qualname} cannot be found by its name; define the function at the top "
            "level of a module, and use functools.wraps in a decorator of your own."
        )
    return f"{module or '?'}:{qualname}"


def _move(defined: Any) -> str:
    """Return how a worker could import what a program defines, for the end of a sentence."""
    file = getattr(sys.modules.get(defined.__module__), "__file__", None) or ""
    stem = os.path.basename(file).removesuffix(".py")
    if file.endswith(".py") and not stem.isidentifier():
        name = re.sub(r"\W", "_", stem)
        return f"rename {os.path.basename(file)} to the name of a module, such as {name}.py"
    return "move it to a module and import it from there"


def task_inside(function: Any) -> Any:
    """Return the task that a function wraps, as `functools.wraps` notes it; None without one."""
    while (function := getattr(function, "__wrapped__", None)) is not None:
        if isinstance(function, NamedTask):
            return function
    return None


def is_given(name: str) -> bool:
    """Whether a name can be given to a task: a word of letters, digits, `_` and `-`."""
    return name.replace("-", "_").isidentifier()


def same(one: Function, other: Function) -> bool:
    """Whether two functions are one function that was loaded as a module and as `__main__`."""
    (module, _, name), (other_module, _, other_name) = (
        module_file(function).partition(":") for function in (one, other)
    )
    if name != other_name or module == other_module:
        return name == other_name
    return "__main__" in (module, other_module) and _file(one) == _file(other) is not None


def _file(function: Function) -> str | None:
    """Return the real path of a function's file; None if it is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code and os.path.realpath(code.co_filename)


def module_file(function: Function) -> str:
    """Return `module:qualname` of a function, for errors."""
    module = getattr(function, "__module__", None) or "?"
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def check_function(function: Function) -> None:
    """Refuse objects that a worker cannot call as a task: a class, a generator, a method."""
    if inspect.isclass(function):
        raise UsageError(
            f"{function.__qualname__} is a class, and a task is a function; decorate a function "
            "that creates the object."
        )
    if not callable(function) and not isinstance(function, classmethod):
        raise UsageError(
            f"The decorator task takes a function, not {function!r}; give a task its name as in "
            '@queue.task(name="send_email").'
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        name = getattr(function, "__qualname__", repr(function))
        raise UsageError(
            f"{name} is a generator function, whose values no worker would collect; return a "
            "list, or enqueue a job for each value."
        )
    _refuse_method(function)
    _refuse_resource(function)


def _refuse_resource(function: Function) -> None:
    """Refuse a resource as a default value: a run would receive the resource, not its value."""
    defaults = (getattr(function, "__defaults__", None) or (),)
    for value in (*defaults[0], *(getattr(function, "__kwdefaults__", None) or {}).values()):
        if isinstance(value, Resource):
            raise UsageError(
                f"{function.__qualname__} has the resource {value.name} itself as a default value; "
                f"write {value.function.__name__}.injected, and each run receives its value."
            )


def _refuse_method(function: Function) -> None:
    """Refuse a decorated method or class method.

    As an attribute, the task would not be bound, and its first argument would be missing. At the
    time of decoration the class does not exist yet, so this checks the name of the first parameter.
    """
    owner, dot, name = getattr(function, "__qualname__", "").rpartition(".")
    if isinstance(function, classmethod):
        first = "cls"
    elif dot and inspect.isfunction(function):
        first = next(iter(function.__code__.co_varnames[: function.__code__.co_argcount]), "")
    else:
        return
    if first in ("self", "cls"):
        holder = f"{owner}(...)" if first == "self" else owner
        raise UsageError(
            f"{owner}.{name} is a method, and a task has no {first!r}; leave it undecorated and "
            f"enqueue it as queue.enqueue({holder}.{name}, ...), or decorate a function that takes "
            "the object as an argument."
        )


T = TypeVar("T")


class Resource(Generic[T]):
    """A generator function whose value is open while a worker runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Take a generator function.

        Raises:
            UsageError: it is not a generator function.
        """
        self.is_async: Final = inspect.isasyncgenfunction(function)
        if not self.is_async and not inspect.isgeneratorfunction(function):
            raise UsageError(
                f"{getattr(function, '__qualname__', function)!r} is not a generator function; a "
                "resource opens something, yields it once, and closes it."
            )
        self.function: Final = function
        self.name: Final = f"{function.__module__}:{function.__qualname__}"
        for one in inspect.signature(function).parameters.values():
            is_rest = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            if one.default is one.empty and not is_rest:
                raise UsageError(
                    f"The resource {self.name} has an argument {one.name!r}, and no caller passes "
                    "one; give it a default, such as another resource's .injected."
                )
        self._injected: Any = _Injected(self)

    def __repr__(self) -> str:
        return f"<Resource {self.name}>"

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Refuse a call: the value is open in a worker only."""
            raise UsageError(
                f"The resource {self.name} is opened by a worker, not by a call; take its value as "
                f"an argument of the task: x={self.function.__name__}.injected."
            )

    @property
    def injected(self) -> T:
        """The default value of a parameter that receives the value of this resource."""
        return self._injected  # type: ignore[no-any-return]


class _Injected:
    """The placeholder for the value of a resource in a function's signature."""

    def __init__(self, resource: Resource[Any]) -> None:
        self.__bide_resource__ = resource

    def __repr__(self) -> str:
        return f"<injected: {self.__bide_resource__.name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: Any) -> Any:
        raise UsageError(
            f"The resource {self.__bide_resource__.name} is open only in a worker; where you call "
            "the function yourself, pass the value."
        )

    if not TYPE_CHECKING:  # what a caller does first with a value
        __call__ = __getitem__ = __iter__ = __enter__ = __exit__ = _refuse
        __aenter__ = __aexit__ = _refuse


_resources: list[Resource[Any]] = []


@overload
def resource(function: Callable[..., AsyncIterator[T]], /) -> Resource[T]: ...
@overload
def resource(function: Callable[..., Iterator[T]], /) -> Resource[T]: ...
def resource(function: Any = None, /) -> Resource[Any]:
    """Register a resource: every worker of this process opens it when it starts.

        @bide.resource
        async def database() -> AsyncIterator[Pool]:
            async with create_pool() as pool:
                yield pool

        @queue.task
        async def send(order_id: int, pool: Pool = database.injected) -> None: ...

    Raises:
        UsageError: the function is not a generator function.
    """
    if function is None:
        raise UsageError("Write @bide.resource above the function, without parentheses.")
    made: Resource[Any] = Resource(function)
    _resources.append(made)
    return made


def resources() -> list[Resource[Any]]:
    """Return all registered resources, in the order in which they are opened."""
    return list(_resources)
