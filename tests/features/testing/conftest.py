"""Fixtures for tests of what users test with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bide.tasks.registry import _resources
from bide.testing import TestBed, isolated_registry
from tests.features.testing import shop


@pytest.fixture(autouse=True)
def _fresh(signing: str) -> Iterator[None]:
    shop.done.clear()
    shop.begun.clear()
    shop.gate.clear()
    shop.is_down.clear()
    shop.tenant.set("nobody")
    with isolated_registry():
        yield


@pytest.fixture
def bed(url: str) -> Iterator[TestBed]:
    """A bed on each kind of server."""
    with TestBed(url) as bed:
        yield bed


@pytest.fixture
def resources() -> None:
    """The shop's resources, registered."""
    _resources.extend(shop.RESOURCES)
