"""A delay queue of either kind, called from a test that blocks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bide import AsyncDelayQueue, DelayQueue


class Awaited:
    """Something awaited, each of whose methods is run to its end in another thread's loop."""

    def __init__(self, portal: Any, inner: Any) -> None:
        self._portal = portal
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._inner, name)
        if not callable(member):
            return self._wrapped(member)

        def call(*args: Any, **kwargs: Any) -> Any:
            async def run() -> Any:
                came = member(*args, **kwargs)
                return await came if inspect.isawaitable(came) else came

            return self._wrapped(self._portal.call(run))

        return call

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        return self._wrapped(self._inner[index])

    def __iter__(self) -> Iterator[Any]:
        return (self._wrapped(one) for one in self._inner)

    def __enter__(self) -> Any:
        self._block = self._portal.wrap_async_context_manager(self._inner)
        return self._wrapped(self._block.__enter__())

    def __exit__(self, *exc: Any) -> Any:
        return self._block.__exit__(*exc)

    def _wrapped(self, value: Any) -> Any:
        if type(value).__name__.startswith("Async") and type(value).__module__.startswith("bide"):
            return Awaited(self._portal, value)
        return value


@contextmanager
def open_pile(portal: Any, kind: str, url: str, **options: Any) -> Iterator[Any]:
    """A delay queue, blocking (`sync`) or awaited (`aio`)."""
    pile: Any
    if kind == "sync":
        pile = DelayQueue("orders", url=url, **options)
    else:
        pile = Awaited(portal, AsyncDelayQueue("orders", url=url, **options))
    yield pile
    pile.close()
