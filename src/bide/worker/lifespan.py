"""Opening resources before the first job, closing them after the last."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bide.errors import UsageError
from bide.logs import Log
from bide.resource import Resource, resources

log = Log("bide.worker")

CLOSING: Final = 10.0
"""Seconds that a resource may take to close."""


class Lifespan:
    """The resources that one worker has open."""

    def __init__(self) -> None:
        self._open: list[tuple[Resource[Any], Any]] = []
        self._values: dict[Resource[Any], Any] = {}

    async def open(self) -> None:
        """Open everything that was registered, in order; whatever one raises stops the worker."""
        for resource in resources():
            await self._open_one(resource)

    async def open_for(self, injected: Iterable[Resource[Any]]) -> None:
        """Open these, and first what they need themselves, unless they are open."""
        for resource in injected:
            if resource not in self._values:
                await self.open_for(_needs(resource).values())
                await self._open_one(resource)

    async def _open_one(self, resource: Resource[Any]) -> None:
        given = self.values_for(_needs(resource))
        generator = resource.function(**given)
        try:
            value = await anext(generator) if resource.is_async else next(generator)
        except (StopIteration, StopAsyncIteration):
            raise UsageError(f"The resource {resource.name} ended without a yield.") from None
        self._open.append((resource, generator))
        self._values[resource] = value

    async def close(self) -> None:
        """Close what is open, the last first; what one raises is logged, and the others close."""
        while self._open:
            resource, generator = self._open.pop()
            try:
                async with asyncio.timeout(CLOSING):
                    if resource.is_async:
                        await anext(generator, None)
                        await generator.aclose()
                    else:
                        next(generator, None)
                        generator.close()
            except TimeoutError:
                log.warning("The resource %s took more than %g s to close", resource.name, CLOSING)
            except BaseException:  # also a SystemExit: the others are to be closed
                log.exception("The resource %s raised when it was closed", resource.name)
        self._values.clear()

    def values_for(self, injected: Mapping[str, Resource[Any]]) -> dict[str, Any]:
        """The values of these resources, by the names of the parameters that want them.

        Raises:
            UsageError: one is not open.
        """
        try:
            return {name: self._values[resource] for name, resource in injected.items()}
        except KeyError as missing:
            (resource,) = missing.args
            raise UsageError(
                f"The resource {resource.name} is not open; register it in a module that the "
                "worker imports before it starts, and before what needs it."
            ) from None


def _needs(resource: Resource[Any]) -> dict[str, Resource[Any]]:
    """The resources that a resource asks for itself, by parameter."""
    defaults = {
        name: getattr(parameter.default, "__bide_resource__", None)
        for name, parameter in inspect.signature(resource.function).parameters.items()
    }
    return {name: needed for name, needed in defaults.items() if needed is not None}
