"""What tasks may be called, and which functions have a name at all."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from bide.errors import UsageError

Function = Callable[..., Any]


class Named:
    """A task that says by which name workers find it."""

    name: str


def is_given(name: str) -> bool:
    """Whether a name is one that a task can be given: a word, of letters, digits, `_` and `-`."""
    return name.replace("-", "_").isidentifier()


def same(one: Function, other: Function) -> bool:
    """Whether two functions are one, loaded twice; a program is `__main__` to itself."""
    (module, _, name), (other_module, _, other_name) = (
        place(function).partition(":") for function in (one, other)
    )
    if name != other_name or module == other_module:
        return name == other_name
    return "__main__" in (module, other_module) and _file(one) == _file(other) is not None


def _file(function: Function) -> str | None:
    """Where it was read from, by whatever name; None of what was not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code and os.path.realpath(code.co_filename)


def place(function: Function) -> str:
    """Where a function stands, for an error to say."""
    module = getattr(function, "__module__", None) or "?"
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def refuse_method(function: Function) -> None:
    """Refuse what is decorated inside a class and wants an object, or the class, first.

    Read as an attribute it would not be bound, and its first argument would be lost. Functions in a
    class know nothing of it yet; but what their first parameter is called is agreed everywhere.

    Raises:
        UsageError: it does; the message says how methods are enqueued.
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


def way_out(qualname: str) -> str:
    """How a function of `__main__` can be enqueued after all."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and not spec.name.endswith("__main__"):
        return f"enqueue it by the name that workers import it by: {spec.name + ':' + qualname!r}"
    return "move it to a module and import it from there"
