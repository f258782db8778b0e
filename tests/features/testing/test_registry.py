"""Tests that register tasks, resources and middlewares, and leave no trace."""

from __future__ import annotations

from collections.abc import Iterator

import bide
from bide.tasks.middleware import in_use
from bide.tasks.registry import resources
from bide.tasks.task import defaults_of
from bide.testing import isolated_registry
from tests.features.testing import shop


def test_what_is_registered_inside_is_gone_afterwards() -> None:
    name = f"{__name__}:task"
    before = list(resources()), list(in_use)
    with isolated_registry():
        shop.mail.task(priority=3)(task)
        bide.add_middleware(bide.Middleware())

        @bide.resource
        def pool() -> Iterator[None]:
            yield

        assert defaults_of(name)["priority"] == 3
        assert len(resources()) == len(before[0]) + 1
        assert len(in_use) == len(before[1]) + 1
    assert not defaults_of(name)
    assert (list(resources()), list(in_use)) == before


def test_also_after_an_error_and_what_was_there_before_stays() -> None:
    name = f"{__name__}:task"
    shop.mail.task(priority=3)(task)
    try:
        with isolated_registry():
            shop.mail.task(priority=4)(task)
            raise KeyError
    except KeyError:
        pass
    assert defaults_of(name)["priority"] == 3


def task() -> None: ...
