"""Leaving no trace in what a process has registered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bide.middleware import _used
from bide.queue.homes import _homes
from bide.queue.schedules import _declared
from bide.resource import _resources
from bide.task import _registered


@contextmanager
def isolated_registry() -> Iterator[None]:
    """Forget at the end which tasks, schedules, resources and middlewares were registered inside.

    What had been registered before can be used inside, and is there again afterwards.
    """
    tasks, schedules = dict(_registered), dict(_declared)
    resources, middlewares = list(_resources), list(_used)
    homes = {home: dict(names) for home, names in _homes.items()}
    try:
        yield
    finally:
        _registered.clear()
        _registered.update(tasks)
        _declared.clear()
        _declared.update(schedules)
        _homes.clear()
        _homes.update(homes)
        _resources[:] = resources
        _used[:] = middlewares
