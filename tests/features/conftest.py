"""Fixtures of these tests, which those of the worker share."""

from tests.support.fixtures import _fresh, home, pile, queue, raw

__all__ = ["_fresh", "home", "pile", "queue", "raw"]
