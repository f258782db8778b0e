"""Resources: a worker process opens them before its first job and closes them after its last.

A resource is a generator function, plain or async, that yields once. The code before the yield runs
when a worker starts, and the code after it when the worker stops. Each task that asks for the
resource receives the yielded value. A resource without a value is a pair of start and stop hooks.

    @bide.resource
    async def database() -> AsyncIterator[Pool]:
        async with create_pool() as pool:
            yield pool

    @queue.task
    async def send(order_id: int, pool: Pool = database.injected) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, Generic, TypeVar, overload

from bide.errors import UsageError

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
        self._injected: Any = _Injected(self)

    def __repr__(self) -> str:
        return f"<Resource {self.name}>"

    @property
    def injected(self) -> T:
        """The default value of a parameter that receives the value of this resource."""
        return self._injected  # type: ignore[no-any-return]


class _Injected:
    """Stands for the value of a resource in a function's signature."""

    def __init__(self, resource: Resource[Any]) -> None:
        self.__bide_resource__ = resource

    def __repr__(self) -> str:
        return f"<injected: {self.__bide_resource__.name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            f"The resource {self.__bide_resource__.name} is open only in a worker; where you call "
            "the function yourself, pass the value."
        )


_resources: list[Resource[Any]] = []


@overload
def resource(function: Callable[..., AsyncIterator[T]], /) -> Resource[T]: ...
@overload
def resource(function: Callable[..., Iterator[T]], /) -> Resource[T]: ...
def resource(function: Any, /) -> Resource[Any]:
    """Register a resource: every worker of this process opens it when it starts.

    Raises:
        UsageError: the function is not a generator function.
    """
    made: Resource[Any] = Resource(function)
    _resources.append(made)
    return made


def resources() -> list[Resource[Any]]:
    """Return all registered resources, in the order in which they are opened."""
    return list(_resources)
